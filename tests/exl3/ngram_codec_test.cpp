// SPDX-License-Identifier: MIT
#include "exl3/ngram_codec.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/support.h"

namespace terrace {
namespace {

// The definition, one bit at a time: bit n of the stream is bit n % 16 of word 1 + n / 16, and bit
// m of element i's state is stream bit ((i - m / K) mod d) * K + m % K.
uint32_t slow_state(const uint16_t* row, int d, int bits, int i) {
    uint32_t state = 0;
    for (int m = 0; m < 16; ++m) {
        const int n = (((i - m / bits) % d + d) % d) * bits + m % bits;
        state |= static_cast<uint32_t>(row[1 + n / 16] >> (n % 16) & 1) << m;
    }
    return state;
}

double slow_value(const uint16_t* row, int d, int bits, int i, double bias) {
    const uint32_t p = slow_state(row, d, bits, i) * 0x83dcd12du;
    const uint32_t b = (p & 255) + (p >> 8 & 255) + (p >> 16 & 255) + (p >> 24);
    const double exact = (1024.0 + b) * static_cast<double>(f16{0x1eee}.f32()) +
                         static_cast<double>(f16{0xc931}.f32());
    const double code = static_cast<double>(f16::from(static_cast<float>(exact)).f32());
    return code * static_cast<double>(f16{row[0]}.f32()) + bias;
}

TEST(NgramCodec, RandomRowsDecodeAsTheDefinitionSays) {
    test::Random random(31);
    for (const int d : {32, 160, 256})
        for (int bits = 1; bits <= 8; ++bits) {
            ASSERT_OK(check_ngram_shape(d, bits));
            std::vector<uint16_t> row(static_cast<size_t>(ngram_row_words(d, bits)));
            for (uint16_t& w : row)
                w = static_cast<uint16_t>(random.next());
            row[0] = f16::from(0.037f).bits;
            std::vector<f16> bias;
            for (int i = 0; i < d; ++i)
                bias.push_back(f16::from(static_cast<float>(random.normal())));
            std::vector<float> out(static_cast<size_t>(d));
            decode_ngram_row(row.data(), d, bits, bias.data(), out.data());
            for (int i = 0; i < d; ++i) {
                const auto at = static_cast<size_t>(i);
                ASSERT_EQ(ngram_state(row.data(), d, bits, i), slow_state(row.data(), d, bits, i));
                ASSERT_EQ(out[at],
                          static_cast<float>(slow_value(row.data(), d, bits, i,
                                                        static_cast<double>(bias[at].f32()))))
                    << d << " " << bits << " " << i;
            }
        }
}

TEST(NgramCodec, RowSizesAreThoseOfTheTables) {
    EXPECT_EQ(ngram_row_words(160, 5), 51);
    EXPECT_EQ(ngram_row_words(160, 6), 61);
    EXPECT_EQ(check_ngram_shape(160, 9).error().code, Code::corrupt_data);
    EXPECT_FALSE(check_ngram_shape(160, 0).has_value());
    EXPECT_FALSE(check_ngram_shape(40, 3).has_value());  // 120 bits are not whole words
    EXPECT_FALSE(check_ngram_shape(16, 8).has_value());
    EXPECT_TRUE(check_ngram_shape(48, 3).has_value());
}

TEST(NgramCodec, EncodedRowsDecodeCloseToTheirValues) {
    // Mean squared error of the code on unit Gaussians (EXL3 format 5.6); a row has one scale of
    // its own and few samples, hence the margin.
    const double published[9] = {0, .2707, .0678, .0175, .00443, .00115, .000306, .000083, .000022};
    constexpr int kWidth = 160, kRows = 12;
    for (int bits = 1; bits <= 8; ++bits) {
        test::Random random(32);
        NgramEncoder encoder(kWidth, bits);
        double error = 0, power = 0;
        for (int r = 0; r < kRows; ++r) {
            std::vector<float> values = random.normals(kWidth, 0.01f * static_cast<float>(r + 1));
            std::vector<f16> bias;
            for (float& v : values) {
                bias.push_back(f16::from(static_cast<float>(0.02 * random.normal())));
                v += bias.back().f32();
            }
            std::vector<uint16_t> row(static_cast<size_t>(ngram_row_words(kWidth, bits)), 0xffff);
            ASSERT_OK(encoder.encode(values.data(), bias.data(), row.data()));
            std::vector<float> out(kWidth);
            decode_ngram_row(row.data(), kWidth, bits, bias.data(), out.data());
            double row_error = 0, row_power = 0;
            for (size_t i = 0; i < kWidth; ++i) {
                const double d = static_cast<double>(out[i]) - static_cast<double>(values[i]);
                const double x =
                    static_cast<double>(values[i]) - static_cast<double>(bias[i].f32());
                row_error += d * d;
                row_power += x * x;
            }
            error += row_error / row_power;
            power += 1;
        }
        EXPECT_LT(error / power, 1.15 * published[bits]) << bits;
        EXPECT_GT(error / power, 0.80 * published[bits]) << bits;
    }
}

TEST(NgramCodec, ARowEqualToTheBiasIsExact) {
    std::vector<f16> bias;
    std::vector<float> values;
    for (int i = 0; i < 160; ++i) {
        bias.push_back(f16::from(0.01f * static_cast<float>(i)));
        values.push_back(bias.back().f32());
    }
    std::vector<uint16_t> row(51, 0xffff);
    ASSERT_OK(encode_ngram_row(values.data(), 160, 5, bias.data(), row.data()));
    std::vector<float> out(160);
    decode_ngram_row(row.data(), 160, 5, bias.data(), out.data());
    EXPECT_EQ(out, values);
}

TEST(NgramCodec, ValuesThatAreNotFiniteOrTooLargeAreErrors) {
    const std::vector<f16> bias(160);
    std::vector<float> values(160, 1.0f);
    std::vector<uint16_t> row(51);
    values[70] = NAN;
    const Status nan = encode_ngram_row(values.data(), 160, 5, bias.data(), row.data());
    ASSERT_FALSE(nan.has_value());
    EXPECT_NE(nan.error().message.find("value 70"), std::string::npos);
    values.assign(160, 1e6f);
    const Status large = encode_ngram_row(values.data(), 160, 5, bias.data(), row.data());
    ASSERT_FALSE(large.has_value());
    EXPECT_EQ(large.error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace terrace
