// Streaming decode equals whole decode, for text and for arbitrary ids.
// SPDX-License-Identifier: MIT
#include "text/detokenizer.h"

#include "text/utf8.h"
#include "text_data.h"

namespace terrace::test {
namespace {

using SpecialText = Tokenizer::SpecialText;

std::string stream(const Tokenizer& t, const Ids& ids, SpecialText special) {
    Detokenizer d(t, special);
    std::string out;
    for (const TokenId id : ids) {
        const std::string part = d.push(id);
        EXPECT_FALSE(first_invalid_utf8(part)) << "half a character was emitted";
        out += part;
    }
    const std::string tail = d.flush();
    EXPECT_FALSE(first_invalid_utf8(tail));
    return out + tail;
}

TEST(Detokenizer, CharacterSplitOverTokensComesOutWhole) {
    const Tokenizer toy = ToyTokenizer{}.make();  // token id = byte
    Detokenizer d(toy);
    EXPECT_EQ(d.push('a'), "a");
    EXPECT_EQ(d.push(0xF0), "");
    EXPECT_EQ(d.push(0x9F), "");
    EXPECT_EQ(d.push(0x98), "");
    EXPECT_EQ(d.push(0x80), "\xF0\x9F\x98\x80");
    EXPECT_EQ(d.flush(), "");
}

TEST(Detokenizer, BrokenCharacterIsReplacedAsSoonAsItIsCertain) {
    const Tokenizer toy = ToyTokenizer{}.make();
    Detokenizer d(toy);
    EXPECT_EQ(d.push(0xE4), "");
    EXPECT_EQ(d.push(0xB8), "");
    EXPECT_EQ(d.push('x'), "\xEF\xBF\xBDx");  // one replacement for the two bytes
    EXPECT_EQ(d.push(0xE4), "");
    EXPECT_EQ(d.push(0xE4), "\xEF\xBF\xBD");
    EXPECT_EQ(d.flush(), "\xEF\xBF\xBD");
    EXPECT_EQ(d.flush(), "");  // ready for the next stream
    EXPECT_EQ(d.push(0x80), "\xEF\xBF\xBD");
}

TEST(Detokenizer, RandomIdsStreamToWhatDecodeGives) {
    Random random(1);
    for (const Tokenizer* t : {&qwen3_tokenizer(), &demo_tokenizer()})
        for (int round = 0; round < 300; ++round) {
            Ids ids;
            for (int64_t i = random.below(60); i >= 0; --i)
                ids.push_back(static_cast<TokenId>(random.below(t->vocab_size() + 3) - 1));
            for (const auto special : {SpecialText::keep, SpecialText::skip})
                ASSERT_EQ(stream(*t, ids, special), t->decode(ids, special));
        }
}

TEST(Detokenizer, RandomBytesStreamToWhatDecodeGives) {
    const Tokenizer toy = ToyTokenizer{}.make();
    Random random(2);
    // Bytes at which well-formedness changes, so that every rule is hit often.
    const uint8_t edge[] = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2,
                            0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    for (int round = 0; round < 3000; ++round) {
        Ids ids;
        for (int64_t i = random.below(12); i >= 0; --i)
            ids.push_back(edge[random.below(static_cast<int64_t>(std::size(edge)))]);
        ASSERT_EQ(stream(toy, ids, SpecialText::keep), toy.decode(ids));
    }
}

TEST(Detokenizer, ReplacementFollowsMaximalSubparts) {
    // The example of the Unicode standard, chapter 3, table 3-8.
    EXPECT_EQ(utf8_lossy("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
              "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
              "b\xEF\xBF\xBD"
              "c\xEF\xBF\xBD\xEF\xBF\xBD"
              "d");
    // Surrogates and overlong forms: every byte on its own.
    EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(utf8_lossy("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Detokenizer, SkipsOnlySpecialTokensWhenAsked) {
    const Tokenizer& t = qwen3_tokenizer();
    const auto ids = must(t.encode("<|im_start|>a<think>b<|im_end|>", Tokenizer::Specials::parse));
    EXPECT_EQ(stream(t, ids, SpecialText::skip), "a<think>b");  // <think> is added, not special
    EXPECT_EQ(stream(t, ids, SpecialText::keep), "<|im_start|>a<think>b<|im_end|>");
}

}  // namespace
}  // namespace terrace::test
