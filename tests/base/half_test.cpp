// f16 and bf16 conversions: all 65536 patterns one way, and back against a rounding that is done in
// double by searching the neighbours, which shares no step with the bit arithmetic under test.
// SPDX-License-Identifier: MIT
#include "base/half.h"

#include <cmath>
#include <limits>

#include "support/support.h"

namespace terrace::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint32_t kSeeds = 200000;

// Value of a pattern by the formula of IEEE 754, in double.
double value_of(uint32_t bits, int exp_bits, int man_bits) {
    const int bias = (1 << (exp_bits - 1)) - 1;
    const auto man = static_cast<double>(bits & ((1u << man_bits) - 1));
    const int exp = static_cast<int>(bits >> man_bits) & ((1 << exp_bits) - 1);
    const double magnitude = exp == 0 ? std::ldexp(man, 1 - bias - man_bits)
                                      : std::ldexp(1 + std::ldexp(man, -man_bits), exp - bias);
    return (bits >> (exp_bits + man_bits)) & 1 ? -magnitude : magnitude;
}

// Nearest finite magnitude, ties to the even pattern; one step beyond the largest is infinity.
uint16_t nearest(float f, int exp_bits, int man_bits) {
    const uint32_t inf = ((1u << exp_bits) - 1) << man_bits;
    const double want = std::fabs(static_cast<double>(f));
    // Binary search for the last pattern not above: patterns of one sign ascend with their value.
    uint32_t low = 0, high = inf;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        (value_of(middle, exp_bits, man_bits) <= want ? low : high) = middle;
    }
    // The pattern of infinity, read as a number, is the value that the next exponent would have:
    // what overflow rounds against.
    const double down = want - value_of(low, exp_bits, man_bits);
    const double up = value_of(high, exp_bits, man_bits) - want;
    const uint32_t chosen = down < up ? low : up < down ? high : (low & 1) == 0 ? low : high;
    const uint32_t sign = std::signbit(f) ? 1u << (exp_bits + man_bits) : 0u;
    return static_cast<uint16_t>(sign | (std::isinf(f) ? inf : chosen));
}
uint16_t nearest_f16(float f) {
    return nearest(f, 5, 10);
}
uint16_t nearest_bf16(float f) {
    return nearest(f, 8, 7);
}

void expect_both(float f) {
    ASSERT_EQ(f32_to_f16(f), nearest_f16(f)) << std::hexfloat << f;
    ASSERT_EQ(f32_to_bf16(f), nearest_bf16(f)) << std::hexfloat << f;
}

TEST(Half, EveryF16PatternHasItsIeeeValue) {
    for (uint32_t h = 0; h < 65536; ++h) {
        const float f = f16_to_f32(static_cast<uint16_t>(h));
        if ((h & 0x7c00u) == 0x7c00u) {
            ASSERT_EQ(std::isinf(f), (h & 0x3ffu) == 0) << h;
            ASSERT_EQ(std::isnan(f), (h & 0x3ffu) != 0) << h;
            ASSERT_EQ(std::signbit(f), (h & 0x8000u) != 0) << h;
        } else {
            ASSERT_EQ(static_cast<double>(f), value_of(h, 5, 10)) << h;
            ASSERT_EQ(std::signbit(f), (h & 0x8000u) != 0) << h;
        }
    }
}

TEST(Half, EveryF16PatternSurvivesTheWayToF32AndBack) {
    for (uint32_t h = 0; h < 65536; ++h) {
        const bool nan = (h & 0x7c00u) == 0x7c00u && (h & 0x3ffu) != 0;
        // A signalling NaN comes back quiet, its payload kept.
        const uint32_t want = nan ? h | 0x200u : h;
        ASSERT_EQ(f32_to_f16(f16_to_f32(static_cast<uint16_t>(h))), want) << h;
    }
}

TEST(Half, EveryBf16PatternSurvivesTheWayToF32AndBack) {
    for (uint32_t b = 0; b < 65536; ++b) {
        const bool nan = (b & 0x7f80u) == 0x7f80u && (b & 0x7fu) != 0;
        const uint32_t want = nan ? b | 0x40u : b;
        ASSERT_EQ(f32_to_bf16(bf16_to_f32(static_cast<uint16_t>(b))), want) << b;
        if ((b & 0x7f80u) != 0x7f80u) {
            ASSERT_EQ(static_cast<double>(bf16_to_f32(static_cast<uint16_t>(b))),
                      value_of(b, 8, 7));
        }
    }
}

TEST(Half, MidpointsOfNeighboursGoToTheEvenPattern) {
    for (uint32_t h = 0; h < 0x7c00; ++h) {
        // Midpoints of f16 neighbours are exact in f32, and so are the f32 values beside them.
        const auto tie = static_cast<float>((value_of(h, 5, 10) + value_of(h + 1, 5, 10)) / 2);
        ASSERT_EQ(f32_to_f16(tie), (h & 1) == 0 ? h : h + 1) << h;
        ASSERT_EQ(f32_to_f16(std::nextafterf(tie, 0)), h) << h;
        ASSERT_EQ(f32_to_f16(std::nextafterf(tie, kInf)), h + 1) << h;
        ASSERT_EQ(f32_to_f16(-tie), 0x8000u | ((h & 1) == 0 ? h : h + 1)) << h;
    }
    for (uint32_t b = 0; b < 0x7f80; ++b) {
        const float tie = std::bit_cast<float>((b << 16) | 0x8000u);
        ASSERT_EQ(f32_to_bf16(tie), (b & 1) == 0 ? b : b + 1) << b;
        ASSERT_EQ(f32_to_bf16(std::nextafterf(tie, 0)), b) << b;
        ASSERT_EQ(f32_to_bf16(std::nextafterf(tie, kInf)), b + 1) << b;
    }
}

TEST(Half, RandomBitsRoundAsDoubleArithmeticSays) {
    Random random(11);
    for (uint32_t i = 0; i < kSeeds; ++i) {
        const float f = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
        if (!std::isnan(f)) expect_both(f);
        // Random bits seldom fall where f16 has values: aim there too, subnormals included.
        const uint32_t exp = 127 - 27 + static_cast<uint32_t>(random.below(45));
        expect_both(std::bit_cast<float>((static_cast<uint32_t>(random.next()) & 0x807fffffu) |
                                         (exp << 23)));
    }
}

TEST(Half, EdgesOfTheRangeRoundRight) {
    for (const float f :
         {0.0f,        -0.0f,      0x1p-149f,    0x1p-126f,    0x1p-25f,        0x1.000002p-25f,
          0x1p-24f,    0x1.8p-24f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-14f,        65504.0f,
          65519.0f,    65519.996f, 65520.0f,     65536.0f,     0x1.fffffep127f, 0x1.fep127f,
          0x1.ffp127f, kInf,       -kInf})
        for (const float g : {f, -f})
            expect_both(g);
    EXPECT_EQ(f32_to_f16(0x1p-25f), 0u);  // half of the smallest subnormal: a tie, to zero
    EXPECT_EQ(f32_to_f16(-0x1p-25f), 0x8000u);
    EXPECT_EQ(f32_to_bf16(0x1.ffp127f), 0x7f80u);  // beyond the largest bf16 by half a step
}

TEST(Half, NanStaysNanWithItsSign) {
    // The payload's top bits are all zero in the first: dropping them alone would give infinity.
    for (const uint32_t u : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffffffffu, 0x7fa00000u}) {
        const float f = std::bit_cast<float>(u);
        EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f)))) << u;
        EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f)))) << u;
        EXPECT_EQ(f32_to_f16(f) >> 15, u >> 31) << u;
        EXPECT_EQ(f32_to_bf16(f) >> 15, u >> 31) << u;
    }
}

}  // namespace
}  // namespace terrace::test
