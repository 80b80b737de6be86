// Inputs that are not numbers: what comes out of such a row says so where the reference does, ids stay
// valid, and no other row changes a bit. Attention with such a query gives NaN or zeros in its head.
// Scores of a query that is not finite may be anything: their row is lost anyway.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cmath>
#include <set>

#include "gpu.h"

namespace terrace::test {
namespace {

constexpr float kValues[] = {NAN, INFINITY, -INFINITY};

// Columns [from, from + n) of row `row`, of rows of `width`: finite in `spoiled` where the reference is,
// or 0 where it may be; all else has the bits of `clean`.
enum class Zero : uint8_t { is_a_number, stands_for_nan };
void expect_contained(const std::vector<float>& clean, const std::vector<float>& spoiled,
                      const std::vector<float>& reference, size_t width, size_t row, size_t from,
                      size_t n, Zero zero, const std::string& what) {
    ASSERT_EQ(clean.size(), spoiled.size()) << what;
    ASSERT_EQ(clean.size(), reference.size()) << what;
    const auto finite = [&](float v) {
        return std::isfinite(v) && (v != 0 || zero == Zero::is_a_number);
    };
    std::vector<float> rest_clean = clean, rest = spoiled;
    for (size_t i = row * width + from; i < row * width + from + n; ++i) {
        ASSERT_EQ(finite(spoiled[i]), finite(reference[i]))
            << what << ": element " << i << " is " << spoiled[i] << ", the reference's "
            << reference[i];
        rest_clean[i] = rest[i] = 0;
    }
    expect_equal_bits(rest, rest_clean, what);
}

class NonFinite : public GpuTest {};

TEST_F(NonFinite, RowsOfLinears) {
    for (const int rows : {1, 3, 7, 16, 70})
        for (const float value : kValues) {
            LinearCase c;
            c.rows = rows;
            c.in = 640;
            c.jobs = {{256, 64},
                      {130, 40},
                      {128, 48, DType::f16, Codebook::mcg},
                      {256, 64, DType::f16, Codebook::three_inst},
                      {64, 0, DType::f16},
                      {24, 0, DType::bf16},
                      {40, 0, DType::f32}};
            const Lists clean = run_linear(*gpu(), c);
            c.spoil = {rows / 2, 333, value};
            const Lists got = run_linear(*gpu(), c), expected = run_linear(reference(), c);
            for (size_t j = 0; j < c.jobs.size(); ++j) {
                const auto out = static_cast<size_t>(c.jobs[j].out);
                expect_contained(clean[j], got[j], expected[j], out, static_cast<size_t>(rows / 2),
                                 0, out, Zero::is_a_number,
                                 fmt::format("{} rows, {}, job {}", rows, value, j));
            }
        }
}

TEST_F(NonFinite, RowsOfWideLinearsThatBlocksCutIntoParts) {
    for (const int rows : {1, 4, 16})
        for (const float value : kValues) {
            LinearCase c;
            c.rows = rows;
            c.in = 6144;
            c.jobs = {{2560, 64}, {256, 64, DType::f16, Codebook::mcg}};
            const Lists clean = run_linear(*gpu(), c);
            c.spoil = {rows - 1, 6143, value};
            const Lists got = run_linear(*gpu(), c), expected = run_linear(reference(), c);
            for (size_t j = 0; j < c.jobs.size(); ++j) {
                const auto out = static_cast<size_t>(c.jobs[j].out);
                expect_contained(clean[j], got[j], expected[j], out, static_cast<size_t>(rows - 1),
                                 0, out, Zero::is_a_number,
                                 fmt::format("{} rows, {}, job {}", rows, value, j));
            }
        }
}

TEST_F(NonFinite, RowsOfExperts) {
    for (const ExpertKind kind : {ExpertKind::exl3, ExpertKind::mixed, ExpertKind::plain})
        for (const int rows : {1, 4, 9, 70})
            for (const float value : kValues) {
                MoeCase c;
                c.rows = rows;
                c.hidden = 256;
                c.kind = kind;
                c.shared = kind == ExpertKind::plain ? kind : ExpertKind::exl3;
                c.favourite = 3;  // all rows meet in one expert
                const auto clean = run_moe(*gpu(), c);
                c.spoil = {rows / 2, 17, value};
                expect_contained(
                    clean, run_moe(*gpu(), c), run_moe(reference(), c), 256,
                    static_cast<size_t>(rows / 2), 0, 256, Zero::is_a_number,
                    fmt::format("kind {}, {} rows, {}", static_cast<int>(kind), rows, value));
            }
}

TEST_F(NonFinite, QueriesOfAttention) {
    struct Shape {
        int heads, head_dim;
    };
    for (const Shape s : {Shape{24, 256}, Shape{4, 32}})
        for (const int rows : {1, 5, 40})
            for (const float value : kValues) {
                QsaCase c;
                c.seqs = {{1, 700, rows}, {2, 0, 3}};
                c.heads = s.heads;
                c.head_dim = s.head_dim;
                c.top = 64;
                const auto clean = run_attend(*gpu(), c);
                const int row = rows / 2, head = 3;
                c.spoil = {row, head * s.head_dim + 5, value};
                const auto dim = static_cast<size_t>(s.head_dim);
                expect_contained(clean, run_attend(*gpu(), c), run_attend(reference(), c),
                                 static_cast<size_t>(s.heads) * dim, static_cast<size_t>(row),
                                 head * dim, dim, Zero::stands_for_nan,
                                 fmt::format("{} heads, {} rows, {}", s.heads, rows, value));
            }
}

TEST_F(NonFinite, QueriesOfTheIndexLeaveOtherRowsAlone) {
    for (const int rows : {2, 5, 40})
        for (const float value : kValues) {
            QsaCase c;
            c.seqs = {{1, 1000, rows}};
            c.index_heads = 4;
            c.index_dim = 128;
            c.top = 64;
            const auto clean = run_index_scores(*gpu(), c);
            c.spoil = {rows / 2, 130, value};
            auto got = run_index_scores(*gpu(), c);
            ASSERT_EQ(got.size(), clean.size());
            // Rows follow each other, row r has (1000 + r + 1) / 4 scores.
            size_t at = 0;
            for (int r = 0; r < rows; ++r)
                for (int b = 0; b < (1001 + r) / 4; ++b, ++at)
                    if (r == rows / 2) got[at] = clean[at];
            expect_equal_bits(got, clean, fmt::format("{} rows, {}", rows, value));
        }
}

TEST_F(NonFinite, RowsOfTheRouterGiveValidExperts) {
    for (const int rows : {1, 5, 40})
        for (const int experts : {40, 512})
            for (const float value : kValues) {
                RouteCase c;
                c.rows = rows;
                c.experts = experts;
                c.k = 10;
                const RouteResult clean = run_route(*gpu(), c);
                const int row = rows / 2;
                c.spoil = {row, 3, value};
                const RouteResult got = run_route(*gpu(), c);
                const auto what = fmt::format("{} rows, {} experts, {}", rows, experts, value);
                for (int r = 0; r < rows; ++r) {
                    std::set<int32_t> ids;
                    for (int j = 0; j < c.k; ++j) {
                        const auto at = static_cast<size_t>(r * c.k + j);
                        ASSERT_TRUE(got.ids[at] >= 0 && got.ids[at] < experts) << what;
                        ids.insert(got.ids[at]);
                        if (r == row) continue;
                        ASSERT_EQ(got.ids[at], clean.ids[at]) << what;
                        ASSERT_EQ(got.weights[at], clean.weights[at]) << what;
                    }
                    ASSERT_EQ(ids.size(), static_cast<size_t>(c.k)) << what;
                }
            }
}

TEST_F(NonFinite, ScoresOfSelectedBlocksAreBelowAllNumbers) {
    for (const int pos0 : {4000, 100000}) {
        SelectCase c;
        c.pos0 = pos0;
        c.rows = 3;
        c.top = 512;
        c.score = [](int r, int b) {
            return r == 1 && b % 3 ? NAN : static_cast<float>((b * 7919 + r) % 10007);
        };
        EXPECT_EQ(run_select(*gpu(), c), run_select(reference(), c)) << pos0;
    }
}

}  // namespace
}  // namespace terrace::test
