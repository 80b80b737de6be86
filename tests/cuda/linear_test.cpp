// Decoded rows of linears on the GPU against the reference, and the plan of few-row products.
// SPDX-License-Identifier: MIT
#include "cuda/linear/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpu.h"

namespace terrace::test {
namespace {

// Sums are exact; the int16 of a row and the missing f16 rounding of code values (4e-8) remain.
constexpr double kIntegerLimit = 1e-7;
constexpr double kHalfLimit = 1e-6;
constexpr double kPlainLimit = 1e-11;

LinearCase::Job exl3_job(int out, int n16, Codebook codebook = Codebook::mul1) {
    LinearCase::Job j;
    j.out = out;
    j.n16 = n16;
    j.codebook = codebook;
    return j;
}
LinearCase::Job plain_job(int out, DType dtype) {
    LinearCase::Job j;
    j.out = out;
    j.dtype = dtype;
    return j;
}
std::vector<RowRun> decoded(int rows) {
    return {{0, rows, RowKind::decode}};
}
void linear_conforms(const LinearCase& c, double limit, const std::string& what) {
    conforms([&](Rig& rig) { return run_linear(rig, c); }, limit, what);
}
LinearCase one(int rows, int in, LinearCase::Job job) {
    LinearCase c;
    c.rows = rows;
    c.in = in;
    c.jobs = {job};
    c.runs = decoded(rows);
    return c;
}

class CudaLinear : public GpuTest {};

TEST_F(CudaLinear, Mul1OfEveryWidthIsExactUpToActivationRounding) {
    for (int n16 = 16; n16 <= 128; n16 += 8)
        for (const int rows : {1, 3, 7, 16})
            linear_conforms(one(rows, 384, exl3_job(256, n16)), kIntegerLimit,
                            fmt::format("n16 {} rows {}", n16, rows));
}

TEST_F(CudaLinear, OtherCodebooksOfEveryWidth) {
    for (const Codebook codebook : {Codebook::three_inst, Codebook::mcg})
        for (int n16 = 16; n16 <= 128; n16 += 16)
            for (const int rows : {1, 9, 16})
                linear_conforms(
                    one(rows, 384, exl3_job(256, n16, codebook)), kHalfLimit,
                    fmt::format("codebook {} n16 {} rows {}", to_string(codebook), n16, rows));
}

TEST_F(CudaLinear, PaddedSizes) {  // so few outputs that their own rounding counts
    for (const int in : {17, 100, 200, 1000})
        for (const int out : {1, 90, 131}) {
            linear_conforms(one(2, in, exl3_job(out, 64)), 3 * kIntegerLimit,
                            fmt::format("mul1 {} x {}", in, out));
            linear_conforms(one(5, in, exl3_job(out, 48, Codebook::mcg)), kHalfLimit,
                            fmt::format("mcg {} x {}", in, out));
        }
}

TEST_F(CudaLinear, PlainWeightsOfEveryTypeAndSize) {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
        for (const int in : {7, 17, 64, 1032, 2560})
            for (const int rows : {1, 4, 11, 16})
                linear_conforms(one(rows, in, plain_job(37, dtype)), kPlainLimit,
                                fmt::format("plain in {} rows {}", in, rows));
}

TEST_F(CudaLinear, SeveralWeightsOfOneInput) {
    LinearCase c;
    c.in = 512;
    c.jobs = {exl3_job(384, 96), exl3_job(128, 64),        plain_job(48, DType::bf16),
              exl3_job(100, 40), plain_job(5, DType::f16), exl3_job(256, 48, Codebook::three_inst)};
    for (const int rows : {1, 2, 6, 13}) {
        c.rows = rows;
        c.runs = decoded(rows);
        linear_conforms(c, kHalfLimit, fmt::format("{} rows", rows));
    }
}

TEST_F(CudaLinear, ModelSizes) {
    LinearCase qkv;
    qkv.in = 2560;
    qkv.rows = 2;
    qkv.jobs = {exl3_job(12288, 96), exl3_job(512, 96), exl3_job(512, 80), exl3_job(640, 96)};
    linear_conforms(qkv, kIntegerLimit, "q, k, v, index");
    linear_conforms(one(1, 6144, exl3_job(2560, 96)), kIntegerLimit, "o");
    linear_conforms(one(16, 2560, exl3_job(640, 64)), kIntegerLimit, "shared gate");
    linear_conforms(one(1, 2560, plain_job(512, DType::f16)), kPlainLimit, "router");
}

TEST_F(CudaLinear, InputsBeyondOneExactSum) {
    linear_conforms(one(1, 40000, exl3_job(128, 16)), 4e-7, "in 40000");
}

TEST_F(CudaLinear, RowsHaveTheSameBitsAloneAndInAnyBatch) {
    for (const Codebook codebook : {Codebook::mul1, Codebook::mcg}) {
        LinearCase c;
        c.in = 1300;
        c.rows = 37;  // three groups
        c.runs = decoded(37);
        c.jobs = {exl3_job(300, 64, codebook), plain_job(33, DType::f16)};
        const Lists all = run_linear(*gpu(), c);
        for (const int n : {1, 2, 5, 8, 16})
            for (int r = 0; r + n <= 37; r += 11) {
                LinearCase part = c;
                part.first = r;
                part.rows = n;
                part.runs = decoded(n);
                const Lists few = run_linear(*gpu(), part);
                for (size_t j = 0; j < few.size(); ++j) {
                    const auto out = static_cast<size_t>(c.jobs[j].out);
                    const auto from = all[j].begin() + static_cast<int64_t>(out) * r;
                    expect_equal_bits(few[j], {from, from + static_cast<int64_t>(out) * n},
                                      fmt::format("job {} rows {} from {}", j, n, r));
                }
            }
    }
}

TEST(GemvPlan, EveryPartHasWorkAndFitsAnExactSum) {
    for (int in = 128; in <= 120000; in += 1664)
        for (const cuda::Cut cut : {cuda::Cut::by_device, cuda::Cut::by_inputs})
            for (const int groups : {1, 4, 20, 96, 1940}) {
                const cuda::GemvPlan plan = cuda::plan_gemv(in, groups, 16000, 132, 16, cut);
                ASSERT_GE(plan.parts, 1) << in;
                ASSERT_LE(plan.parts, cuda::kMaxParts) << in;
                EXPECT_LE((in / 16 + plan.parts - 1) / plan.parts * 16, 16000) << in;
                if (plan.parts == 1) continue;
                EXPECT_GE(in / 16 / plan.parts, cuda::kGemvWarps) << in;
                // Partial sums in memory are bounded.
                if (plan.meet == cuda::Meet::memory) {
                    EXPECT_LE(groups * plan.parts, cuda::kMostPartBlocks * 132) << in;
                }
            }
    EXPECT_EQ(cuda::plan_gemv(128256, 4, 16000, 132, 16, cuda::Cut::by_device).parts, 0);
}

TEST(GemvPlan, WideWeightsAreNotCutAndNarrowOnesMeetInClusters) {
    const auto plan = [](int in, int groups) {
        return cuda::plan_gemv(in, groups, 16000, 132, 16, cuda::Cut::by_device);
    };
    EXPECT_EQ(plan(2560, 1940).parts, 1);
    EXPECT_GE(plan(2560, 4).parts, 5);
    EXPECT_EQ(plan(6144, 20).meet, cuda::Meet::cluster);
    EXPECT_EQ(plan(2560, 96).meet, cuda::Meet::memory);
}

TEST(RowPlan, AllBlocksAreResidentAndEveryPartFitsSharedMemory) {
    for (int blocks = 1; blocks <= 1000; blocks += 13)
        for (const int groups : {1, 4, 20, 55, 109, 128, 256}) {
            const cuda::RowPlan plan = cuda::plan_row(blocks, groups, 132);
            if (plan.parts == 0) continue;
            EXPECT_LE(plan.parts, std::min(blocks, cuda::kMaxParts)) << blocks;
            EXPECT_LE((blocks + plan.parts - 1) / plan.parts, 64) << blocks;
            EXPECT_LE(groups * plan.parts, cuda::kRowResident * 132) << blocks << " x " << groups;
        }
}

TEST(RowPlan, ModelSizes) {
    const auto parts = [](int in, int groups) {
        return cuda::plan_row(in / 128, groups, 132).parts;
    };
    EXPECT_EQ(parts(2560, 128), 2);   // qkv and z
    EXPECT_EQ(parts(2560, 109), 2);   // q, k, v and index
    EXPECT_EQ(parts(6144, 20), 5);    // three clusters of neighbours
    EXPECT_EQ(parts(2560, 1940), 0);  // the head goes another way
}

TEST(GemvPlan, PartsByInputsDoNotDependOnTheDeviceOrTheLaunch) {
    for (const int groups : {1, 50, 4000})
        for (const int sms : {20, 132})
            EXPECT_EQ(cuda::plan_gemv(2560, groups, 16000, sms, 16, cuda::Cut::by_inputs).parts, 4);
}

}  // namespace
}  // namespace terrace::test
