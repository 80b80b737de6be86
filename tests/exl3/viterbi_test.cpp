// The search against the oracle's errors, the published table, and itself on other instruction
// sets.
// SPDX-License-Identifier: MIT
#include "exl3/viterbi.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/cpu_features.h"
#include "exl3/decode.h"
#include "exl3/golden.h"
#include "exl3/pack.h"
#include "support/support.h"

namespace terrace {
namespace {

double squared_error(const uint16_t* states, const float* target, Codebook codebook) {
    double sum = 0;
    for (int t = 0; t < 256; ++t) {
        const double d = static_cast<double>(f16_to_f32(code_value_bits(codebook, states[t]))) -
                         static_cast<double>(target[t]);
        sum += d * d;
    }
    return sum;
}

TEST(Viterbi, ReachesTheOraclesErrorOnItsTiles) {
    const auto doc = nlohmann::json::parse(test::read_text("oracle/tiles.json"));
    double ours = 0, theirs = 0;
    int seen = 0;
    for (const auto& v : doc["viterbi"]) {
        const int n16 = 16 * v["K"].get<int>();
        const Codebook codebook = test::codebook_named(v["codebook"]);
        const auto halves = test::words_from_hex(v["input_fp16"]);
        std::vector<float> target;
        for (const uint16_t h : halves)
            target.push_back(f16_to_f32(h));
        ASSERT_EQ(target.size(), 256u);
        const SearchTables tables(n16, codebook);
        TileSearch search(tables, 256);
        uint16_t states[256];
        const float reported = search.encode(target.data(), states);
        EXPECT_TRUE(is_tail_biting(states, n16));
        const double error = squared_error(states, target.data(), codebook);
        EXPECT_NEAR(static_cast<double>(reported) / error, 1.0, 1e-4);
        // Single tiles may differ by the choice of the node at which the ring closes.
        EXPECT_LT(error, 1.02 * v["sq_error"].get<double>()) << v["K"] << v["codebook"];
        ours += error / v["sq_error"].get<double>();
        theirs += 1;
        ++seen;
    }
    EXPECT_EQ(seen, 24);
    EXPECT_LT(ours / theirs, 1.002);
    EXPECT_GT(ours / theirs, 0.97);
}

TEST(Viterbi, UnitGaussiansReachThePublishedErrors) {
    // EXL3 format 5.6: scale and mean squared error by codebook and bits.
    const float scales[2][8] = {{1.30f, 1.24f, 1.18f, 1.12f, 1.04f, .957f, .913f, .875f},
                                {1.20f, .994f, .939f, .905f, .865f, .826f, .769f, .717f}};
    const double published[3][8] = {
        {.2680, .0688, .0177, .00465, .00124, .000332, .000088, .000023},
        {.2673, .0681, .0173, .00453, .00122, .000318, .000087, .000023},
        {.2707, .0678, .0175, .00443, .00115, .000306, .000083, .000022}};
    constexpr int kTiles = 32;
    test::Random random(7);
    const std::vector<float> gauss = random.normals(256 * kTiles);
    for (const Codebook codebook : {Codebook::three_inst, Codebook::mcg, Codebook::mul1})
        for (int bits = 1; bits <= 8; ++bits) {
            const float scale = scales[codebook == Codebook::mul1][bits - 1];
            const SearchTables tables(16 * bits, codebook);
            TileSearch search(tables, 256);
            double sum = 0;
            for (int i = 0; i < kTiles; ++i) {
                float target[256];
                uint16_t states[256];
                for (int t = 0; t < 256; ++t)
                    target[t] = scale * gauss[static_cast<size_t>(256 * i + t)];
                search.encode(target, states);
                ASSERT_TRUE(is_tail_biting(states, 16 * bits));
                sum += squared_error(states, target, codebook);
            }
            const double mse = sum / (256 * kTiles) / static_cast<double>(scale * scale);
            const double table = published[static_cast<int>(codebook)][bits - 1];
            EXPECT_LT(mse, 1.03 * table) << to_string(codebook) << " " << bits;
            EXPECT_GT(mse, 0.95 * table) << to_string(codebook) << " " << bits;
        }
}

TEST(Viterbi, HalfBitsFallBetweenTheirNeighbours) {
    test::Random random(8);
    const std::vector<float> target = random.normals(256 * 8, 0.9f);
    double previous = INFINITY;
    for (int n16 = 24; n16 <= 64; n16 += 8) {
        const SearchTables tables(n16, Codebook::mul1);
        TileSearch search(tables, 256);
        double sum = 0;
        for (size_t i = 0; i < 8; ++i) {
            uint16_t states[256];
            search.encode(target.data() + 256 * i, states);
            ASSERT_TRUE(is_tail_biting(states, n16)) << n16;
            sum += squared_error(states, target.data() + 256 * i, Codebook::mul1);
        }
        // Half a bit is a factor of two in error; the code loses a little of it.
        EXPECT_LT(sum, 0.62 * previous) << n16;
        previous = sum;
    }
}

TEST(Viterbi, FindsAnExactEncodingAgain) {
    test::Random random(9);
    for (const int n16 : {32, 40, 64, 128}) {
        std::vector<uint16_t> tile(static_cast<size_t>(n16));
        for (uint16_t& w : tile)
            w = static_cast<uint16_t>(random.next());
        float target[256];
        for (int t = 0; t < 256; ++t)
            target[t] = f16_to_f32(code_value_bits(Codebook::mul1, state_at(tile.data(), n16, t)));
        const SearchTables tables(n16, Codebook::mul1);
        TileSearch search(tables, 256);
        uint16_t states[256];
        EXPECT_EQ(search.encode(target, states), 0.0f) << n16;
        EXPECT_EQ(squared_error(states, target, Codebook::mul1), 0.0) << n16;
    }
}

TEST(Viterbi, EveryInstructionSetFindsTheSameStates) {
    test::Random random(10);
    const std::vector<float> target = random.normals(256, 0.9f);
    for (const int n16 : {16, 24, 40, 48, 56, 64, 128}) {
        const SearchTables tables(n16, Codebook::mul1);
        uint16_t plain[256];
        TileSearch search(tables, 256, SearchKernel::plain);
        const float error = search.encode(target.data(), plain);
        for (const SearchKernel kernel : {SearchKernel::avx2, SearchKernel::avx512}) {
            if (kernel == SearchKernel::avx2 && !cpu_features().avx2) continue;
            if (kernel == SearchKernel::avx512 && !cpu_features().avx512) continue;
            uint16_t states[256];
            TileSearch vector(tables, 256, kernel);
            EXPECT_EQ(vector.encode(target.data(), states), error) << n16;
            EXPECT_TRUE(std::equal(states, states + 256, plain)) << n16;
        }
    }
}

TEST(Viterbi, ASearchRemembersNothingOfTheTileBefore) {
    test::Random random(14);
    const std::vector<float> first = random.normals(256), second = random.normals(256);
    const SearchTables tables(56, Codebook::mul1);
    TileSearch used(tables, 256), fresh(tables, 256);
    uint16_t a[256], b[256];
    used.encode(first.data(), a);
    used.encode(second.data(), a);
    fresh.encode(second.data(), b);
    EXPECT_TRUE(std::equal(a, a + 256, b));
}

}  // namespace
}  // namespace terrace
