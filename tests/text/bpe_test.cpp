// The two merging strategies against each other and against the definition.
// SPDX-License-Identifier: MIT
#include "text/bpe.h"

#include <map>

#include "support/support.h"

namespace terrace::test {
namespace {

TEST(ByteAlphabet, SpellsEveryByteWithItsOwnCharacter) {
    std::map<std::string, int> seen;
    for (int b = 0; b < 256; ++b) {
        const std::string spelled = byte_alphabet_spelling(static_cast<uint8_t>(b));
        EXPECT_TRUE(seen.emplace(spelled, b).second);
        const SpelledBytes back = bytes_of_spelling(spelled);
        EXPECT_TRUE(back.in_alphabet);
        EXPECT_EQ(back.bytes, std::string(1, static_cast<char>(b)));
    }
    EXPECT_EQ(byte_alphabet_spelling(' '), "\xC4\xA0");   // U+0120
    EXPECT_EQ(byte_alphabet_spelling('\n'), "\xC4\x8A");  // U+010A
    EXPECT_EQ(byte_alphabet_spelling(0xAD), "\xC5\x83");  // U+0143, the last one
}

TEST(ByteAlphabet, OtherCharactersStandForThemselves) {
    EXPECT_FALSE(bytes_of_spelling("a b").in_alphabet);
    EXPECT_EQ(bytes_of_spelling("a b").bytes, "a b");
    EXPECT_EQ(bytes_of_spelling("\xE4\xB8\xAD").bytes, "\xE4\xB8\xAD");
}

struct RandomMerges {
    Bpe bpe;
    std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>> rules;  // pair -> rank, product

    explicit RandomMerges(Random& random) {
        TokenId next = 4;
        for (int rank = 0; rank < 60; ++rank) {
            const auto a = static_cast<TokenId>(random.below(next));
            const auto b = static_cast<TokenId>(random.below(next));
            if (rules.contains({a, b})) continue;
            rules[{a, b}] = {rank, next};
            bpe.add_merge(a, b, next++);
        }
    }

    std::vector<TokenId> by_definition(std::vector<TokenId> s) const {
        while (true) {
            size_t best = s.size();
            int best_rank = 0;
            for (size_t i = 0; i + 1 < s.size(); ++i) {
                const auto rule = rules.find({s[i], s[i + 1]});
                if (rule != rules.end() && (best == s.size() || rule->second.first < best_rank)) {
                    best = i;
                    best_rank = rule->second.first;
                }
            }
            if (best == s.size()) return s;
            s[best] = rules.at({s[best], s[best + 1]}).second;
            s.erase(s.begin() + static_cast<ptrdiff_t>(best) + 1);
        }
    }
};

TEST(Bpe, ScanAndHeapFollowTheDefinition) {
    Random random(11);
    int merged = 0;
    for (int set = 0; set < 40; ++set) {
        const RandomMerges merges(random);
        for (int round = 0; round < 60; ++round) {
            std::vector<TokenId> word(static_cast<size_t>(random.below(Bpe::kScanLimit + 1)));
            for (auto& s : word)
                s = static_cast<TokenId>(random.below(4));
            const auto want = merges.by_definition(word);
            merged += want.size() < word.size();
            auto scanned = word, heaped = word;
            merges.bpe.merge_by_scan(scanned);
            merges.bpe.merge_by_heap(heaped);
            ASSERT_EQ(scanned, want);
            ASSERT_EQ(heaped, want);
        }
    }
    EXPECT_GT(merged, 1000);
}

TEST(Bpe, HeapFollowsTheDefinitionOnLongWords) {
    Random random(12);
    for (int set = 0; set < 20; ++set) {
        const RandomMerges merges(random);
        std::vector<TokenId> word(600);
        for (auto& s : word)
            s = static_cast<TokenId>(random.below(4));
        auto heaped = word;
        merges.bpe.merge_by_heap(heaped);
        ASSERT_EQ(heaped, merges.by_definition(word));
    }
}

TEST(BytesIndex, KeepsTheFirstOfTwoEqualKeys) {
    BytesIndex index;
    EXPECT_FALSE(index.find("a"));
    EXPECT_TRUE(index.insert("a", 1));
    EXPECT_FALSE(index.insert("a", 2));
    std::vector<std::string> keys;
    for (int i = 0; i < 1000; ++i)
        keys.push_back("key" + std::to_string(i));
    for (int i = 0; i < 1000; ++i)
        EXPECT_TRUE(index.insert(keys[static_cast<size_t>(i)], i + 10));
    EXPECT_EQ(index.find("a"), 1);
    EXPECT_EQ(index.find("key999"), 1009);
    EXPECT_FALSE(index.find("key1000"));
    EXPECT_FALSE(index.find(""));
}

}  // namespace
}  // namespace terrace::test
