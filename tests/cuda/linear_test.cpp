// Decoded rows of linears on the GPU against the reference, and the plan of few-row products.
// SPDX-License-Identifier: MIT
#include "cuda/linear/plan.h"

#include <fmt/format.h>

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
    for (int in = 128; in <= 40960; in += 1664)
        for (const int out : {128, 512, 2560, 12288, 248320}) {
            const cuda::GemvPlan p = cuda::plan_gemv(in, out, 15872, 132);
            EXPECT_GE(p.parts, 1);
            EXPECT_LE((p.row_tiles + p.parts - 1) / p.parts * 16, 15872) << to_string(p);
            EXPECT_GE(p.row_tiles / p.parts, p.parts == 1 ? 1 : cuda::kGemvWarps) << to_string(p);
        }
}

TEST(GemvPlan, WideWeightsAreNotCutAndNarrowOnesFillTheDevice) {
    EXPECT_EQ(cuda::plan_gemv(2560, 248320, 15872, 132).parts, 1);
    EXPECT_GE(cuda::plan_gemv(6144, 2560, 15872, 132).blocks(), 120);
    EXPECT_GE(cuda::plan_gemv(2560, 512, 15872, 132).blocks(), 64);
}

}  // namespace
}  // namespace terrace::test
