// V16: every function against plain scalar code, and AVX-512 against AVX2 bit for bit.
// SPDX-License-Identifier: MIT
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/cpu_features.h"
#include "base/half.h"
#include "cpu/simd_probe.h"
#include "exl3/hadamard.h"
#include "support/support.h"

namespace terrace {
namespace {

using test::Random;
using test::SimdProbe;

class Simd : public testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        const bool wide = std::string_view(GetParam()) == "avx512";
        if (wide ? !cpu_features().avx512 : !cpu_features().avx2)
            GTEST_SKIP() << "this machine has no " << GetParam();
        p = wide ? &test::kAvx512Probe : &test::kAvx2Probe;
    }
    const SimdProbe* p = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Isa, Simd, testing::Values("avx2", "avx512"),
                         [](const auto& i) { return std::string(i.param); });

// Distance from the true value in units in the last place of the nearest float.
double ulps(float got, double want) {
    const auto nearest = static_cast<float>(want);
    const double ulp = std::max(std::ldexp(1.0, std::ilogb(nearest) - 23), 0x1p-149);
    return std::abs(static_cast<double>(got) - want) / ulp;
}

TEST_P(Simd, ExpStaysWithinItsStatedErrorOverTheWholeRange) {
    double worst = 0;
    for (double x = -87.3; x < 88.7; x += 16 * 0.00013) {
        float in[16];
        float out[16];
        for (int i = 0; i < 16; ++i)
            in[i] = static_cast<float>(x + i * 0.00013);
        p->exp(in, out);
        for (int i = 0; i < 16; ++i)
            worst = std::max(worst, ulps(out[i], std::exp(static_cast<double>(in[i]))));
    }
    EXPECT_LT(worst, 1.5);
}

TEST_P(Simd, ExpHandlesItsEdges) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const float in[16] = {0.0f, -0.0f, -kInf, kInf,    std::nanf(""), -200.0f, 200.0f, -95.0f,
                          1.0f, -1.0f, 88.8f, -103.0f, -104.5f,       88.7f,   -88.0f, 0.5f};
    float out[16];
    p->exp(in, out);
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], 1.0f);
    EXPECT_EQ(out[2], 0.0f);
    EXPECT_EQ(out[3], kInf);
    EXPECT_TRUE(std::isnan(out[4]));
    EXPECT_EQ(out[5], 0.0f);
    EXPECT_EQ(out[6], kInf);
    EXPECT_NEAR(out[7] / std::exp(-95.0), 1.0, 1e-3);  // subnormal: few bits are left
    EXPECT_EQ(out[10], kInf);
    EXPECT_GT(out[11], 0.0f);
    EXPECT_EQ(out[12], 0.0f);
    EXPECT_LT(out[13], kInf);
}

TEST_P(Simd, SigmoidAndSiluFollowTheirDefinition) {
    for (double x = -80; x < 80; x += 16 * 0.01) {
        float in[16];
        float s[16];
        float u[16];
        for (int i = 0; i < 16; ++i)
            in[i] = static_cast<float>(x + i * 0.01);
        p->sigmoid(in, s);
        p->silu(in, u);
        for (int i = 0; i < 16; ++i) {
            const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(in[i])));
            EXPECT_LT(ulps(s[i], want), 3.0) << in[i];
            EXPECT_LT(ulps(u[i], want * in[i]), 4.0) << in[i];
        }
    }
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const float in[16] = {-kInf, kInf, -1000.0f, 1000.0f};
    float s[16];
    p->sigmoid(in, s);
    EXPECT_EQ(s[0], 0.0f);
    EXPECT_EQ(s[1], 1.0f);
    EXPECT_EQ(s[2], 0.0f);
    EXPECT_EQ(s[3], 1.0f);
}

TEST_P(Simd, RsqrtIsSqrtThenDivision) {
    Random random(1);
    float in[16];
    float out[16];
    for (float& v : in)
        v = static_cast<float>(random.uniform() * 100 + 1e-6);
    p->rsqrt(in, out);
    for (int i = 0; i < 16; ++i)
        EXPECT_EQ(out[i], 1.0f / std::sqrt(in[i]));
}

TEST_P(Simd, RoundingTakesTiesToEven) {
    const float in[16] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.49f, 0.51f, 3.0f, 1e9f};
    const float want[16] = {0, 2, 2, -0.0f, -2, -2, 0, 1, 3, 1e9f};
    float out[16];
    p->round_even(in, out);
    for (int i = 0; i < 10; ++i)
        EXPECT_EQ(out[i], want[i]);
}

TEST_P(Simd, ReductionsHaveTheDocumentedTree) {
    Random random(2);
    for (int round = 0; round < 100; ++round) {
        const std::vector<float> x = random.normals(16);
        std::vector<float> t = x;
        for (size_t d = 8; d >= 1; d /= 2)
            for (size_t i = 0; i < d; ++i)
                t[i] = t[i] + t[i + d];
        EXPECT_EQ(p->reduce_add(x.data()), t[0]);
        EXPECT_EQ(p->reduce_max(x.data()), *std::max_element(x.begin(), x.end()));
    }
}

TEST_P(Simd, EveryHalfConvertsAsTheScalarCodeDoes) {
    for (uint32_t h = 0; h < 0x10000; h += 16) {
        uint16_t in[16];
        float f[16];
        float b[16];
        for (uint32_t i = 0; i < 16; ++i)
            in[i] = static_cast<uint16_t>(h + i);
        p->from_f16(in, f);
        p->from_bf16(in, b);
        for (int i = 0; i < 16; ++i) {
            const float want = f16_to_f32(in[i]);
            if (std::isnan(want)) {
                EXPECT_TRUE(std::isnan(f[i]));  // the hardware makes a signalling NaN quiet
            } else {
                EXPECT_EQ(std::bit_cast<uint32_t>(f[i]), std::bit_cast<uint32_t>(want));
            }
            EXPECT_EQ(std::bit_cast<uint32_t>(b[i]), static_cast<uint32_t>(in[i]) << 16);
        }
    }
}

TEST_P(Simd, RoundingToHalfIsNearestEven) {
    Random random(3);
    for (int round = 0; round < 2000; ++round) {
        float in[16];
        uint16_t out[16];
        for (float& v : in)
            v = std::bit_cast<float>(static_cast<uint32_t>(random.next() & 0x87ffffffu) +
                                     0x32000000u);
        p->to_f16(in, out);
        for (int i = 0; i < 16; ++i)
            EXPECT_EQ(out[i], f32_to_f16(in[i])) << in[i];
    }
}

TEST_P(Simd, PartialFormsTouchOnlyTheirElements) {
    for (int n = 0; n <= 16; ++n) {
        std::vector<float> in(static_cast<size_t>(n));  // exact size: a sanitizer sees an overrun
        std::vector<uint16_t> half(static_cast<size_t>(n));
        for (int i = 0; i < n; ++i) {
            in[static_cast<size_t>(i)] = static_cast<float>(i + 1);
            half[static_cast<size_t>(i)] = f32_to_f16(static_cast<float>(i + 1));
        }
        float out[16];
        uint16_t half_out[16];
        float wide[16];
        std::fill_n(out, 16, -7.0f);
        std::fill_n(half_out, 16, uint16_t{0x1234});
        p->copy_n(in.data(), out, n);
        p->copy_f16_n(half.data(), half_out, n);
        p->bf16_n(half.data(), wide, n);
        for (int i = 0; i < 16; ++i) {
            EXPECT_EQ(out[i], i < n ? static_cast<float>(i + 1) : -7.0f);
            EXPECT_EQ(half_out[i], i < n ? half[static_cast<size_t>(i)] : 0x1234);
            EXPECT_EQ(wide[i], i < n ? bf16_to_f32(half[static_cast<size_t>(i)]) : 0.0f);
        }
    }
}

TEST_P(Simd, ShufflesComparesAndNarrowingMoveTheRightElements) {
    float x[16];
    float y[16];
    float out[64];
    for (int i = 0; i < 16; ++i) {
        x[i] = static_cast<float>(i);
        y[i] = static_cast<float>(15 - i);
    }
    p->swaps(x, out);
    for (int i = 0; i < 16; ++i)
        for (int s = 0; s < 4; ++s)
            EXPECT_EQ(out[16 * s + i], static_cast<float>(i ^ (1 << s)));
    uint32_t bits = 0;
    p->select_lt(x, y, out, &bits);
    EXPECT_EQ(bits, 0x00ffu);
    for (int i = 0; i < 16; ++i)
        EXPECT_EQ(out[i], static_cast<float>(std::min(i, 15 - i)));
    p->broadcast4(x + 2, out);
    for (int i = 0; i < 16; ++i)
        EXPECT_EQ(out[i], static_cast<float>(2 + i % 4));
    const float wide[16] = {1e6f, -1e6f, 32767.4f, -32768.0f, 1.5f, 2.5f, -3, 7,
                            8,    9,     10,       11,        12,   13,   14, 15};
    const int16_t want[16] = {32767, -32768, 32767, -32768, 2,  2,  -3, 7,
                              8,     9,      10,    11,     12, 13, 14, 15};
    int16_t narrow[16];
    p->to_i16(wide, narrow);
    for (int i = 0; i < 16; ++i)
        EXPECT_EQ(narrow[i], want[i]) << i;
}

TEST_P(Simd, HadamardGivesTheBitsOfTheScalarTransform) {
    Random random(4);
    for (int round = 0; round < 20; ++round) {
        std::vector<float> x = random.normals(128);
        std::vector<float> want = x;
        butterflies128(want.data());
        p->fwht(x.data());
        EXPECT_EQ(std::memcmp(x.data(), want.data(), 512), 0);
    }
}

TEST(SimdPair, ExpGivesEqualBitsOnBothInstructionSets) {
    if (!cpu_features().avx512) GTEST_SKIP() << "this machine has no AVX-512";
    Random random(5);
    for (int round = 0; round < 20000; ++round) {
        float in[16];
        float a[16];
        float b[16];
        for (float& v : in)
            v = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
        for (float& v : in)
            if (round & 1) v = static_cast<float>(random.normal() * 30);
        test::kAvx2Probe.exp(in, a);
        test::kAvx512Probe.exp(in, b);
        ASSERT_EQ(std::memcmp(a, b, sizeof a), 0);
        test::kAvx2Probe.silu(in, a);
        test::kAvx512Probe.silu(in, b);
        ASSERT_EQ(std::memcmp(a, b, sizeof a), 0);
    }
}

}  // namespace
}  // namespace terrace
