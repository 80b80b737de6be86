// Token ids against an independent implementation, over every plane of Unicode, for a 151,669-entry
// vocabulary and for the demo model's. Vectors: tools/text_vectors.
// SPDX-License-Identifier: MIT
#include "text_data.h"

namespace terrace::test {
namespace {

void expect_ids_equal(const Tokenizer& tokenizer, const char* name) {
    const auto vectors = read_test_json("text/token-ids.json");
    const auto& texts = vectors.at("texts");
    const auto& ids = vectors.at(name);
    ASSERT_GT(texts.size(), 500u);
    ASSERT_EQ(texts.size(), ids.size());
    for (size_t i = 0; i < texts.size(); ++i) {
        const auto text = texts[i].get<std::string>();
        const auto have = tokenizer.encode(text, Tokenizer::Specials::parse);
        ASSERT_OK(have);
        EXPECT_EQ(*have, ids[i].get<Ids>()) << "text " << i << ": " << texts[i].dump(-1, ' ', true);
    }
}

TEST(TokenIds, Qwen3AgreesWithAnIndependentImplementation) {
    expect_ids_equal(qwen3_tokenizer(), "qwen3");
}

TEST(TokenIds, DemoModelAgreesWithAnIndependentImplementation) {
    expect_ids_equal(demo_tokenizer(), "demo");
}

TEST(TokenIds, SecondPassFromTheWordCacheGivesTheSame) {
    // Both vocabularies in turn through one thread's cache: entries of one must not serve the
    // other.
    expect_ids_equal(qwen3_tokenizer(), "qwen3");
    expect_ids_equal(demo_tokenizer(), "demo");
    expect_ids_equal(qwen3_tokenizer(), "qwen3");
}

TEST(TokenIds, GoldenPromptOfTheDemoModelIsItsText) {
    // The reference results of the demo model start from these texts.
    const std::string heldout = read_test_file("demo/heldout.txt");
    const auto ids = must(demo_tokenizer().encode(heldout, Tokenizer::Specials::parse));
    EXPECT_EQ(demo_tokenizer().decode(ids), heldout);
    const TokenId separator =
        must(demo_tokenizer().encode("<|endoftext|>", Tokenizer::Specials::parse)).at(0);
    EXPECT_EQ(separator, 4093);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), separator), 15);
}

TEST(TokenIds, EveryTokenOfBothVocabulariesHasItsOwnBytes) {
    EXPECT_EQ(qwen3_tokenizer().vocab_size(), 151669);
    EXPECT_EQ(demo_tokenizer().vocab_size(), 4096);
    for (const Tokenizer* t : {&qwen3_tokenizer(), &demo_tokenizer()})
        for (TokenId id = 0; id < t->vocab_size(); ++id)
            ASSERT_EQ(t->token_to_id(t->piece(id)), id) << t->piece(id);
}

TEST(TokenIds, DecodingGivesTheTextBackWhenItWasNormalized) {
    const auto vectors = read_test_json("text/token-ids.json");
    Random random(7);
    for (int round = 0; round < 300; ++round) {
        std::string text;
        for (int i = 0; i < 40; ++i) {
            // Letters and ideographs that no normal form touches, and spaces.
            const int64_t kind = random.below(4);
            if (kind == 0)
                text += static_cast<char>(' ' + random.below(95));
            else if (kind == 1)
                text += "\xE4\xB8" + std::string(1, static_cast<char>(0x80 + random.below(64)));
            else if (kind == 2)
                text += "\xF0\x9F\x98" + std::string(1, static_cast<char>(0x80 + random.below(64)));
            else
                text += "\xD0" + std::string(1, static_cast<char>(0xB0 + random.below(9)));
        }
        for (const Tokenizer* t : {&qwen3_tokenizer(), &demo_tokenizer()})
            ASSERT_EQ(t->decode(must(t->encode(text, Tokenizer::Specials::parse))), text);
    }
}

}  // namespace
}  // namespace terrace::test
