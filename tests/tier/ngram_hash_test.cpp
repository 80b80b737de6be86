// Rows of hashed n-grams against the published values of the real model, and against constants that
// checkpoints store.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include <cstring>

#include "base/error.h"
#include "io/model_dir.h"
#include "support/support.h"
#include "tier/ngram_table.h"

namespace terrace::test {
namespace {

using ::testing::ElementsAre;
constexpr TokenId kEos = 248044;

ModelConfig real_config() {
    ModelConfig c;
    c.vocab = 248320;
    c.seed = 1234;
    c.eos = kEos;
    c.ngram_size = 3;
    c.heads_per_ngram = 8;
    c.ngram_vocab_base = 20000000;
    c.ple_layers = {LayerIx{1}};
    c.ple_dim = 2560;
    return c;
}

std::vector<int64_t> rows_of(const NgramHash& hash, const std::vector<TokenId>& ids) {
    std::vector<int64_t> rows(static_cast<size_t>(hash.heads()));
    hash.rows(ids, rows.data());
    return rows;
}

const std::vector<int64_t> kRows1000 = {
    1876085,   31308566,  59776718,  71834192,  97499724,  100188615, 134972424, 142751402,
    178377549, 180579936, 219367837, 221375066, 245391246, 270637420, 285992863, 304819575};
const std::vector<int64_t> kRows2000 = {
    19790471,  34833089,  42404878,  69061955,  86249091,  105322281, 133942170, 152120809,
    172190926, 185410703, 205959965, 232453570, 252787123, 273475306, 280450173, 315915558};
const std::vector<int64_t> kRows3000 = {
    17238551,  37786998,  58085363,  66530061,  90936363,  119077008, 131292711, 147589323,
    163669071, 180711380, 217289238, 227679745, 246259980, 264845837, 284375812, 302034413};

TEST(NgramHash, RealModelsConstantsFollowFromItsConfiguration) {
    const NgramHash hash = NgramHash::derive(real_config(), 0);
    EXPECT_THAT(hash.multipliers, ElementsAre(23703573157769, 20109073645365, 8052911324071));
    EXPECT_THAT(hash.primes, ElementsAre(20000003, 20000023, 20000033, 20000047, 20000059, 20000063,
                                         20000069, 20000077, 20000081, 20000093, 20000107, 20000147,
                                         20000153, 20000159, 20000161, 20000171));
    EXPECT_EQ(hash.offsets[0], 0);
    EXPECT_EQ(hash.offsets[1], 20000003);
    EXPECT_EQ(hash.offsets[2], 40000026);
    EXPECT_EQ(hash.offsets[15], 300001275);
    EXPECT_EQ(hash.rows_used(), 320001446);
    EXPECT_EQ(hash.separator, kEos);
}

TEST(NgramHash, RealModelsRowsAreThePublishedOnes) {
    const NgramHash hash = NgramHash::derive(real_config(), 0);
    EXPECT_EQ(rows_of(hash, {1000}), kRows1000);
    EXPECT_EQ(rows_of(hash, {1000, 2000}), kRows2000);
    EXPECT_EQ(rows_of(hash, {1000, 2000, 3000}), kRows3000);
}

TEST(NgramHash, AMissingPredecessorReadsAsTheSeparator) {
    const NgramHash hash = NgramHash::derive(real_config(), 0);
    EXPECT_EQ(rows_of(hash, {kEos, 1000}), kRows1000);
    EXPECT_EQ(rows_of(hash, {kEos, kEos, 1000}), kRows1000);
    EXPECT_EQ(rows_of(hash, {kEos, 1000, 2000}), kRows2000);
}

TEST(NgramHash, ASeparatorCutsEverythingOlder) {
    const NgramHash hash = NgramHash::derive(real_config(), 0);
    EXPECT_EQ(rows_of(hash, {777, kEos, 1000}), kRows1000);
    EXPECT_EQ(rows_of(hash, {5, 777, kEos, 1000}), kRows1000);
    // [1000, E, 3000]: position 2 is (3000, E, E).
    EXPECT_EQ(rows_of(hash, {1000, kEos, 3000}), rows_of(hash, {3000}));
    EXPECT_NE(rows_of(hash, {1000, 42, 3000}), rows_of(hash, {3000}));
}

TEST(NgramHash, TheSeparatorItselfSeesItsPredecessors) {
    const NgramHash hash = NgramHash::derive(real_config(), 0);
    // [1000, E, 3000]: position 1 is (E, 1000, E), by the formula.
    const int64_t two = (int64_t{kEos} * hash.multipliers[0]) ^ (1000 * hash.multipliers[1]);
    const int64_t three = two ^ (int64_t{kEos} * hash.multipliers[2]);
    const auto rows = rows_of(hash, {1000, kEos});
    for (size_t h = 0; h < 16; ++h)
        EXPECT_EQ(rows[h], (h < 8 ? two : three) % hash.primes[h] + hash.offsets[h]) << h;
    EXPECT_NE(rows, rows_of(hash, {kEos}));
}

TEST(NgramHash, OlderIdsThanTheLongestNgramDoNotMatter) {
    const NgramHash hash = NgramHash::derive(real_config(), 0);
    EXPECT_EQ(rows_of(hash, {9, 8, 7, 1000, 2000, 3000}), kRows3000);
    EXPECT_EQ(rows_of(hash, {kEos, 1000, 2000, 3000}), kRows3000);
}

TEST(NgramHash, TheLargestIdsStayInsideEachHeadsRows) {
    const NgramHash hash = NgramHash::derive(real_config(), 0);
    Random random(3);
    for (int i = 0; i < 20000; ++i) {
        std::vector<TokenId> ids;
        for (int j = 0; j < 3; ++j)
            ids.push_back(i == 0 ? 248319 : static_cast<TokenId>(random.below(248320)));
        const auto rows = rows_of(hash, ids);
        for (size_t h = 0; h < 16; ++h) {
            ASSERT_GE(rows[h], hash.offsets[h]);
            ASSERT_LT(rows[h], hash.offsets[h] + hash.primes[h]);
        }
    }
}

// A step sees its new tokens and the last two ids from before: the rows must not depend on where
// the steps were cut.
TEST(NgramHash, ChunksWithCarriedIdsGiveTheRowsOfOneShot) {
    const NgramHash hash = NgramHash::derive(real_config(), 0);
    Random random(4);
    std::vector<TokenId> all;
    for (int i = 0; i < 60; ++i)
        all.push_back(random.below(5) == 0 ? kEos : static_cast<TokenId>(random.below(248320)));
    std::vector<std::vector<int64_t>> want;
    for (size_t i = 1; i <= all.size(); ++i)
        want.push_back(rows_of(hash, {all.begin(), all.begin() + static_cast<int64_t>(i)}));
    for (const size_t chunk : {1u, 2u, 3u, 5u, 16u, 60u})
        for (size_t at = 0; at < all.size(); at += chunk) {
            // What a caller keeps between steps: at most two ids.
            const size_t first = at - std::min<size_t>(at, 2);
            for (size_t i = at; i < std::min(all.size(), at + chunk); ++i)
                ASSERT_EQ(rows_of(hash, {all.begin() + static_cast<int64_t>(first),
                                         all.begin() + static_cast<int64_t>(i) + 1}),
                          want[i])
                    << "chunk " << chunk << " position " << i;
        }
}

std::vector<int64_t> stored(const Checkpoint& checkpoint, const std::string& name) {
    const TensorView t = must(checkpoint.require(name));
    std::vector<int64_t> out(static_cast<size_t>(t.elements()));
    std::memcpy(out.data(), t.data, t.bytes);
    return out;
}

TEST(NgramHash, DerivedConstantsEqualTheStoredOnesOfEveryInjection) {
    const std::filesystem::path data(TERRACE_TEST_DATA), source(TERRACE_SOURCE_DIR);
    size_t injections = 0;
    for (const auto& folder :
         {data / "tiny-bf16", data / "tiny-exl3", source / "models" / "demo"}) {
        const ModelDir dir = must(ModelDir::open(folder));
        const ModelConfig& c = dir.config();
        for (size_t i = 0; i < c.ple_layers.size(); ++i, ++injections) {
            const std::string prefix = c.tensor_prefix + "layers." +
                                       std::to_string(ix(c.ple_layers[i])) + ".ple.ple_embedding.";
            const NgramHash hash = NgramHash::derive(c, static_cast<int32_t>(i));
            EXPECT_EQ(hash.multipliers, stored(dir.checkpoint(), prefix + "layer_multipliers"));
            EXPECT_EQ(hash.primes, stored(dir.checkpoint(), prefix + "ngram_heads_vocab_sizes"));
            EXPECT_EQ(hash.offsets, stored(dir.checkpoint(), prefix + "ngram_heads_offsets"));
            EXPECT_EQ(hash.separator, c.eos);
        }
    }
    EXPECT_EQ(injections, 5u);
}

}  // namespace
}  // namespace terrace::test
