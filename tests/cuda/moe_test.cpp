// Router and experts of decoded rows on the GPU against the reference.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <array>

#include "gpu.h"

namespace terrace::test {
namespace {

class CudaRoute : public GpuTest {};

void route_conforms(const RouteCase& c, const std::string& what) {
    const RouteResult expected = run_route(reference(), c), got = run_route(*gpu(), c);
    EXPECT_EQ(got.ids, expected.ids) << what;
    EXPECT_LT(nmse(got.weights, expected.weights), 1e-10) << what;
}
float mixed_logit(int row, int expert) {
    return 4.0f * case_numbers(9, 1, static_cast<uint64_t>(row * 4096 + expert), 1)[0];
}

TEST_F(CudaRoute, LargestFirstForAnyCounts) {
    for (const int experts : {1, 5, 16, 33, 512, 700})
        for (const int k : {1, 2, 10, 40})
            for (const Renormalise r : {Renormalise::yes, Renormalise::no})
                if (k <= experts) {
                    RouteCase c{7, experts, k, r, mixed_logit};
                    route_conforms(c, fmt::format("{} of {}", k, experts));
                }
}

TEST_F(CudaRoute, TiesGoToTheLowerExpert) {
    RouteCase c{3, 512, 10, Renormalise::yes,
                [](int row, int e) { return static_cast<float>((e * 7 + row) % 5); }};
    route_conforms(c, "five values");
    c.logit = [](int, int) { return -2.5f; };
    route_conforms(c, "all equal");
}

TEST_F(CudaRoute, SubnormalAndInfiniteLogitsKeepTheirOrder) {
    RouteCase c{1, 40, 6, Renormalise::no, [](int, int e) {
                    return e == 17 ? -INFINITY : e % 3 ? static_cast<float>(e) * 1e-40f : -0.5f;
                }};
    route_conforms(c, "subnormals");
}

TEST_F(CudaRoute, RoutersOfEveryKindChooseLikeTheReference) {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
        for (const auto& [hidden, experts, k] : std::vector<std::array<int, 3>>{{2560, 512, 10},
                                                                                {17, 5, 2},
                                                                                {264, 40, 33},
                                                                                {1000, 512, 32},
                                                                                {64, 513, 7},
                                                                                {3000, 9, 1}})
            for (const int rows : {1, 3, 16, 21}) {
                RouteCase c{rows, experts, k};
                c.hidden = hidden;
                c.dtype = dtype;
                c.renormalise = rows == 3 ? Renormalise::no : Renormalise::yes;
                c.runs = {{0, rows, RowKind::decode}};
                route_conforms(c, fmt::format("{} of {} x {}, {} rows", k, hidden, experts, rows));
            }
}

// Rows of a batch in runs of both kinds against each row alone with its kind.
TEST_F(CudaRoute, RowHasTheSameBitsAloneAndInABatch) {
    RouteCase batch{90, 512, 10};
    batch.hidden = 2560;
    batch.runs = {{0, 1, RowKind::decode},
                  {1, 66, RowKind::prefill},
                  {67, 4, RowKind::decode},
                  {71, 2, RowKind::prefill},
                  {73, 17, RowKind::decode}};
    const RouteResult all = run_route(*gpu(), batch);
    for (const int row : {0, 1, 33, 66, 67, 70, 71, 73, 88, 89}) {
        RouteCase one = batch;
        one.first = row;
        one.rows = 1;
        const bool prefilled = (row >= 1 && row < 67) || row == 71 || row == 72;
        one.runs = {{0, 1, prefilled ? RowKind::prefill : RowKind::decode}};
        const RouteResult r = run_route(*gpu(), one);
        for (size_t j = 0; j < 10; ++j) {
            EXPECT_EQ(r.ids[j], all.ids[static_cast<size_t>(row) * 10 + j]) << row;
            EXPECT_EQ(r.weights[j], all.weights[static_cast<size_t>(row) * 10 + j]) << row;
        }
    }
}

class CudaMoe : public GpuTest {};

constexpr double kIntegerLimit = 3e-7;  // two products in a row, and their 4e-8 each
constexpr double kF32Limit = 1e-10;

void moe_conforms(MoeCase c, double limit, const std::string& what) {
    c.runs = {{0, c.rows, RowKind::decode}};
    conforms([&](Rig& rig) { return Lists{run_moe(rig, c)}; }, limit,
             fmt::format("{}, {} rows", what, c.rows));
}

TEST_F(CudaMoe, ExpertsOfTrellises) {
    MoeCase c;
    c.hidden = 256;
    c.width = 128;
    c.shared_width = 256;
    for (c.rows = 1; c.rows <= 16; ++c.rows)
        moe_conforms(c, kIntegerLimit, "8 experts");
    c.with_shared = false;
    c.rows = 5;
    moe_conforms(c, kIntegerLimit, "none shared");
    c.experts = 3;
    c.k = 3;
    c.rows = 13;
    moe_conforms(c, kIntegerLimit, "all chosen");
}

TEST_F(CudaMoe, PaddedSizes) {
    MoeCase c;
    for (const int hidden : {17, 200})
        for (const int width : {40, 130}) {
            c.hidden = hidden;
            c.width = width;
            c.shared_width = 300 - width;
            c.rows = 6;
            moe_conforms(c, kIntegerLimit, fmt::format("{} x {}", hidden, width));
        }
}

TEST_F(CudaMoe, EveryRowsFavouriteExpert) {
    MoeCase c;
    c.experts = 40;
    c.k = 5;
    c.favourite = 7;
    for (const int rows : {1, 4, 5, 9, 16}) {
        c.rows = rows;
        moe_conforms(c, kIntegerLimit, "favourite");
    }
}

TEST_F(CudaMoe, PlainAndMixedExpertsAndOtherCodebooks) {
    MoeCase c;
    c.hidden = 100;
    c.width = 50;
    c.shared_width = 70;
    c.k = 3;
    for (const ExpertKind kind : {ExpertKind::plain, ExpertKind::mixed, ExpertKind::exl3})
        for (const ExpertKind shared : {ExpertKind::plain, ExpertKind::exl3})
            for (const int rows : {1, 16}) {
                c.kind = kind;
                c.shared = shared;
                c.rows = rows;
                const bool fast = kind == ExpertKind::exl3 && shared == ExpertKind::exl3;
                moe_conforms(c, fast ? kIntegerLimit : kF32Limit, "kinds");
            }
    c.codebook = Codebook::mcg;
    moe_conforms(c, kF32Limit, "mcg");
}

TEST_F(CudaMoe, ModelSizes) {
    MoeCase c;
    c.hidden = 2560;
    c.width = c.shared_width = 640;
    c.experts = 12;
    c.k = 10;
    c.rows = 1;
    moe_conforms(c, kIntegerLimit, "2560 x 640");
    c.k = 2;
    c.rows = 7;
    moe_conforms(c, kIntegerLimit, "2560 x 640");
}

TEST_F(CudaMoe, RowsHaveTheSameBitsAloneAndInAnyBatch) {
    for (const ExpertKind kind : {ExpertKind::exl3, ExpertKind::mixed}) {
        MoeCase c;
        c.kind = kind;
        c.hidden = 384;
        c.width = 256;
        c.experts = 9;
        c.k = 4;
        c.rows = 37;  // three groups
        c.runs = {{0, 37, RowKind::decode}};
        const auto all = run_moe(*gpu(), c);
        for (const int n : {1, 3, 6, 16})
            for (int r = 0; r + n <= 37; r += 7) {
                MoeCase part = c;
                part.first = r;
                part.rows = n;
                part.runs = {{0, n, RowKind::decode}};
                expect_equal_bits(run_moe(*gpu(), part),
                                  {all.begin() + 384L * r, all.begin() + 384L * (r + n)},
                                  fmt::format("{} rows from {}", n, r));
            }
    }
}

}  // namespace
}  // namespace terrace::test
