// SPDX-License-Identifier: MIT
#include "exl3/pack.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "exl3/decode.h"
#include "exl3/golden.h"
#include "support/support.h"

namespace terrace {
namespace {

TEST(Pack, RandomTilesUnpackAndPackToThemselvesAtEveryWidth) {
    test::Random random(11);
    for (int n16 = 16; n16 <= 128; n16 += 8)
        for (int repeat = 0; repeat < 20; ++repeat) {
            std::vector<uint16_t> tile(static_cast<size_t>(n16)), again(tile.size(), 0xabcd);
            for (uint16_t& w : tile)
                w = static_cast<uint16_t>(random.next());
            uint16_t states[256];
            for (int t = 0; t < 256; ++t)
                states[t] = static_cast<uint16_t>(state_at(tile.data(), n16, t));
            EXPECT_TRUE(is_tail_biting(states, n16)) << n16;
            pack_states(states, n16, again.data());
            ASSERT_EQ(again, tile) << n16;
        }
}

TEST(Pack, TailBitingSequencesSurviveThePackedForm) {
    test::Random random(12);
    for (const int n16 : {16, 24, 48, 56, 64, 88, 120, 128}) {
        // A ring of random bits, cut into windows one bit at a time.
        std::vector<int> ring(static_cast<size_t>(16 * n16));
        for (int& b : ring)
            b = static_cast<int>(random.below(2));
        uint16_t states[256];
        for (int t = 0; t < 256; ++t) {
            uint32_t s = 0;
            for (int j = 0; j < 16; ++j) {
                const int at = ((t + 1) * n16 / 16 - 16 + j + 16 * n16) % (16 * n16);
                s = s << 1 | static_cast<uint32_t>(ring[static_cast<size_t>(at)]);
            }
            states[t] = static_cast<uint16_t>(s);
        }
        std::vector<uint16_t> tile(static_cast<size_t>(n16));
        pack_states(states, n16, tile.data());
        for (int t = 0; t < 256; ++t)
            ASSERT_EQ(state_at(tile.data(), n16, t), states[t]) << n16;
    }
}

TEST(Pack, BrokenSequencesAreNotTailBiting) {
    std::vector<uint16_t> tile(48, 0x5a5a);
    uint16_t states[256];
    for (int t = 0; t < 256; ++t)
        states[t] = static_cast<uint16_t>(state_at(tile.data(), 48, t));
    ASSERT_TRUE(is_tail_biting(states, 48));
    for (const int t : {0, 100, 255}) {
        states[t] ^= 0x8000;  // an old bit: must disagree with the state before
        EXPECT_FALSE(is_tail_biting(states, 48)) << t;
        states[t] ^= 0x8000;
    }
    states[255] ^= 1;  // a bit that position 0 must repeat
    EXPECT_FALSE(is_tail_biting(states, 48));
}

TEST(Pack, OracleStatesPackToTheOracleWords) {
    const auto doc = nlohmann::json::parse(test::read_text("oracle/tiles.json"));
    for (const auto& tile : doc["tiles"]) {
        const auto words = test::words_from_hex(tile["words"]);
        const auto states = test::words_from_hex(tile["states"]);
        std::vector<uint16_t> packed(words.size());
        pack_states(states.data(), static_cast<int>(words.size()), packed.data());
        EXPECT_EQ(packed, words) << tile["K"];
    }
}

TEST(Pack, SignsRoundTrip) {
    test::Random random(13);
    std::vector<uint16_t> packed(8);
    for (uint16_t& w : packed)
        w = static_cast<uint16_t>(random.next());
    std::vector<f16> signs(128);
    unpack_signs(packed.data(), 128, signs.data());
    std::vector<uint16_t> again(8);
    pack_signs(signs.data(), 128, again.data());
    EXPECT_EQ(again, packed);
}

}  // namespace
}  // namespace terrace
