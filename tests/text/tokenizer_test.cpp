// What a tokenizer.json may say, on a toy vocabulary whose ids are easy to see: bytes are 0..255.
// SPDX-License-Identifier: MIT
#include "text/tokenizer.h"

#include <gmock/gmock.h>

#include <thread>

#include "text_data.h"

namespace terrace::test {
namespace {

using testing::HasSubstr;
constexpr auto kParse = Tokenizer::Specials::parse;
constexpr auto kAsText = Tokenizer::Specials::as_text;

Ids ids_of(const Tokenizer& t, std::string_view text, Tokenizer::Specials s = kParse) {
    return must(t.encode(text, s));
}

std::string error_of(const std::string& json) {
    const auto t = Tokenizer::from_json(json, "file.json");
    return t ? "no error" : t.error().message;
}

TEST(Tokenizer, LowestRankWinsThenLeftmost) {
    // ids: 256 "bc", 257 "ab", 258 "aa", 259 "aab"
    const Tokenizer t = ToyTokenizer{.merges = {"b c", "a b", "a a", "aa b"}}.make();
    EXPECT_EQ(ids_of(t, "abc"), (Ids{'a', 256}));
    EXPECT_EQ(ids_of(t, "ab"), (Ids{257}));
    EXPECT_EQ(ids_of(t, "aaa"), (Ids{258, 'a'}));
    EXPECT_EQ(ids_of(t, "aab"), (Ids{'a', 257}));  // "ab" has the lower rank, "aab" is never made
}

TEST(Tokenizer, BothFormsOfMergesAreRead) {
    const ToyTokenizer toy{.merges = {"a b", "ab c"}};
    std::string pairs = toy.json();
    const std::string strings = R"(["a b","ab c"])";
    ASSERT_NE(pairs.find(strings), std::string::npos);
    pairs.replace(pairs.find(strings), strings.size(), R"([["a","b"],["ab","c"]])");
    const Tokenizer t = must(Tokenizer::from_json(pairs, "pairs"));
    EXPECT_EQ(ids_of(t, "abc"), (Ids{257}));
    EXPECT_EQ(ids_of(toy.make(), "abc"), (Ids{257}));
}

TEST(Tokenizer, IgnoreMergesTakesAWholeWordFromTheVocabulary) {
    ToyTokenizer toy{.merges = {"a b"}};
    toy.vocab_extra = R"(, "xyz": 300)";
    EXPECT_EQ(ids_of(toy.make(), "xyz"), (Ids{'x', 'y', 'z'}));
    toy.model_extra = R"(, "ignore_merges": true)";
    EXPECT_EQ(ids_of(toy.make(), "xyz"), (Ids{300}));
}

TEST(Tokenizer, GapsInTheVocabularyDecodeToNothing) {
    ToyTokenizer toy;
    toy.vocab_extra = R"(, "xyz": 300)";
    const Tokenizer t = toy.make();
    EXPECT_EQ(t.vocab_size(), 301);
    EXPECT_EQ(t.piece(299), "");
    EXPECT_EQ(t.piece(300), "xyz");
    EXPECT_EQ(t.piece(-1), "");
    EXPECT_EQ(t.piece(301), "");
    EXPECT_EQ(t.decode(Ids{'a', 299, -5, 1 << 30, 300}), "axyz");
    EXPECT_FALSE(t.is_special(-1));
    EXPECT_FALSE(t.is_special(1 << 30));
    EXPECT_FALSE(t.token_to_id("nowhere"));
    EXPECT_EQ(t.token_to_id("xyz"), 300);
}

TEST(Tokenizer, Gpt2PatternKeepsSpacesWithTheWordsThatFollow) {
    const Tokenizer t = ToyTokenizer{.merges = {"Ġ a", "a Ġ", "Ġ Ġ"}}.make();
    EXPECT_EQ(ids_of(t, "a a"), (Ids{'a', 256}));         // never "a "+"a"
    EXPECT_EQ(ids_of(t, "a   a"), (Ids{'a', 258, 256}));  // two spaces, then " a"
    EXPECT_EQ(ids_of(t, "a  "), (Ids{'a', 258}));
}

TEST(Tokenizer, PrefixSpaceIsAddedToTheFirstWordOnly) {
    ToyTokenizer toy{.merges = {"Ġ a"}};
    toy.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true})";
    EXPECT_EQ(ids_of(toy.make(), "a"), (Ids{256}));
    EXPECT_EQ(ids_of(toy.make(), " a a"), (Ids{256, 256}));
    EXPECT_EQ(ids_of(toy.make(), ""), (Ids{}));
}

TEST(Tokenizer, SequenceOfSplitsAndDigits) {
    ToyTokenizer toy{.merges = {"1 2", "a b", "b c"}};
    toy.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "Split", "pattern": {"String": "b"}, "behavior": "MergedWithNext", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
    EXPECT_EQ(ids_of(toy.make(), "12abc"), (Ids{'1', '2', 'a', 258}));
}

TEST(Tokenizer, SplitBehaviorsMatchTheFormat) {
    // The format's own example: "the-final--countdown" split at "-".
    const auto words = [](const char* behavior) {
        ToyTokenizer toy{.merges = {"e -", "- f", "l -", "- -", "- c"}};
        toy.pre_tokenizer = std::string(R"({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "-"}, "invert": false, "behavior": ")") +
                            behavior + R"("}, {"type": "ByteLevel", "use_regex": false,
            "add_prefix_space": false}]})";
        std::string out;
        const Tokenizer t = toy.make();
        for (const TokenId id : ids_of(t, "e-fl--c"))
            out += std::string(t.piece(id)) + "|";
        return out;
    };
    EXPECT_EQ(words("Isolated"), "e|-|f|l|-|-|c|");
    EXPECT_EQ(words("Removed"), "e|f|l|c|");
    EXPECT_EQ(words("MergedWithPrevious"), "e-|f|l-|-|c|");
    EXPECT_EQ(words("MergedWithNext"), "e|-f|l|-|-c|");
    EXPECT_EQ(words("Contiguous"), "e|-|f|l|--|c|");
}

TEST(Tokenizer, SpaceClassIsUnicodeWhiteSpace) {
    ToyTokenizer toy;
    toy.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\s+|[^\\s]+"}, "behavior": "Removed"},
        {"type": "ByteLevel", "use_regex": false, "add_prefix_space": false}]})";
    EXPECT_EQ(ids_of(toy.make(), "a \xC2\x85\xE3\x80\x80 b"), (Ids{}));
    toy.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Removed"},
        {"type": "ByteLevel", "use_regex": false, "add_prefix_space": false}]})";
    EXPECT_EQ(ids_of(toy.make(), "a\xC2\x85\xC2\xA0\xE3\x80\x80 b"), (Ids{'a', 'b'}));
    EXPECT_EQ(ids_of(toy.make(), "\xE1\xA0\x8E"), (Ids{0xE1, 0xA0, 0x8E}));  // U+180E is none
    EXPECT_EQ(ids_of(toy.make(), "\xEF\xBB\xBF"), (Ids{0xEF, 0xBB, 0xBF}));  // nor is U+FEFF
}

TEST(Tokenizer, NormalFormsAreApplied) {
    ToyTokenizer toy;
    const std::string composed = "\xC3\xA9", decomposed = "e\xCC\x81";
    const auto bytes = [](std::string_view s) {
        Ids ids;
        for (const char c : s)
            ids.push_back(static_cast<uint8_t>(c));
        return ids;
    };
    EXPECT_EQ(ids_of(toy.make(), decomposed), bytes(decomposed));
    toy.normalizer = R"({"type": "NFC"})";
    EXPECT_EQ(ids_of(toy.make(), decomposed), bytes(composed));
    toy.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "NFD"}]})";
    EXPECT_EQ(ids_of(toy.make(), composed), bytes(decomposed));
    toy.normalizer = R"({"type": "NFKC"})";
    EXPECT_EQ(ids_of(toy.make(), "\xEF\xAC\x81"), bytes("fi"));
}

constexpr const char* kAdded = R"([
    {"id": 400, "content": "<s>", "special": true, "normalized": false},
    {"id": 401, "content": "<s>long", "special": true, "normalized": false},
    {"id": 402, "content": "<tool>", "special": false, "normalized": false},
    {"id": 403, "content": "<l>", "special": true, "normalized": false, "lstrip": true},
    {"id": 404, "content": "<r>", "special": true, "normalized": false, "rstrip": true},
    {"id": 405, "content": "word", "special": false, "normalized": false, "single_word": true},
    {"id": 406, "content": "e\u0301", "special": false, "normalized": true}])";

TEST(Tokenizer, AddedTokensAreFoundLeftmostThenLongest) {
    const Tokenizer t = ToyTokenizer{.merges = {}, .added = kAdded}.make();
    EXPECT_EQ(ids_of(t, "<s>a<s>long<s>lon"), (Ids{400, 'a', 401, 400, 'l', 'o', 'n'}));
    EXPECT_EQ(ids_of(t, "<<s><s"), (Ids{'<', 400, '<', 's'}));
    EXPECT_TRUE(t.is_special(400));
    EXPECT_TRUE(t.is_added(402));
    EXPECT_FALSE(t.is_special(402));
    EXPECT_EQ(t.token_to_id("<tool>"), 402);
}

TEST(Tokenizer, SpecialTokensOfUntrustedTextStayText) {
    const Tokenizer t = ToyTokenizer{.merges = {}, .added = kAdded}.make();
    EXPECT_EQ(ids_of(t, "<s>", kAsText), (Ids{'<', 's', '>'}));
    EXPECT_EQ(ids_of(t, "<tool>", kAsText), (Ids{402}));  // added, not special
    const Tokenizer& q = qwen3_tokenizer();
    for (const TokenId id : ids_of(q, "a<|im_end|>b<|endoftext|>", kAsText))
        EXPECT_FALSE(q.is_special(id));
    EXPECT_EQ(q.decode(ids_of(q, "a<|im_end|>b", kAsText)), "a<|im_end|>b");
}

TEST(Tokenizer, AddedTokensTakeWhiteSpaceAlong) {
    const Tokenizer t = ToyTokenizer{.merges = {}, .added = kAdded}.make();
    EXPECT_EQ(ids_of(t, "a \t<l> b"), (Ids{'a', 403, ' ', 'b'}));
    EXPECT_EQ(ids_of(t,
                     "a <r> \n\xE3\x80\x80"
                     "b"),
              (Ids{'a', ' ', 404, 'b'}));
    EXPECT_EQ(ids_of(t, "<r>  <l>"), (Ids{404, 403}));
    EXPECT_EQ(ids_of(t, "  <l>"), (Ids{403}));
}

TEST(Tokenizer, SingleWordTokensAreNotFoundInsideWords) {
    const Tokenizer t = ToyTokenizer{.merges = {}, .added = kAdded}.make();
    EXPECT_EQ(ids_of(t, "word"), (Ids{405}));
    EXPECT_EQ(ids_of(t, "(word)"), (Ids{'(', 405, ')'}));
    EXPECT_EQ(ids_of(t, "words"), (Ids{'w', 'o', 'r', 'd', 's'}));
    EXPECT_EQ(ids_of(t, "_word"), (Ids{'_', 'w', 'o', 'r', 'd'}));
    EXPECT_EQ(ids_of(t, "\xC3\xA9word"), (Ids{0xC3, 0xA9, 'w', 'o', 'r', 'd'}));
}

TEST(Tokenizer, NormalizedTokensAreFoundInNormalizedText) {
    ToyTokenizer toy{.merges = {}, .added = kAdded};
    toy.normalizer = R"({"type": "NFC"})";
    const Tokenizer t = toy.make();
    EXPECT_EQ(ids_of(t, "\xC3\xA9"), (Ids{406}));
    EXPECT_EQ(ids_of(t, "e\xCC\x81"), (Ids{406}));
}

TEST(Tokenizer, TextThatIsNotUtf8NamesTheByte) {
    const Tokenizer t = ToyTokenizer{}.make();
    for (const char* bad : {"abc\xFF", "abc\xC3", "abc\xED\xA0\x80", "abc\xF4\x90\x80\x80"}) {
        const auto r = t.encode(bad, kParse);
        ASSERT_FALSE(r);
        EXPECT_EQ(r.error().code, Code::invalid_argument);
        EXPECT_THAT(r.error().message, HasSubstr("byte 3"));
    }
}

TEST(Tokenizer, ByteWithoutATokenIsAnError) {
    const Tokenizer t = must(Tokenizer::from_json(
        R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"vocab": {"a": 0}, "merges": []}})",
        "toy"));
    EXPECT_EQ(ids_of(t, "a"), (Ids{0}));
    const auto r = t.encode("ab", kParse);
    ASSERT_FALSE(r);
    EXPECT_THAT(r.error().message, HasSubstr("0x62"));
}

TEST(Tokenizer, WhatIsNotSupportedIsNamed) {
    const std::string good = ToyTokenizer{}.json();
    EXPECT_EQ(error_of(good), "no error");
    const auto with = [&](std::string from, std::string to) {
        std::string s = good;
        const size_t at = s.find(from);
        TERRACE_CHECK(at != std::string::npos);
        return error_of(s.replace(at, from.size(), to));
    };
    const std::string type = R"("type": "BPE")";
    EXPECT_THAT(with(type, R"("type": "WordPiece")"), HasSubstr("model.type: \"WordPiece\""));
    EXPECT_THAT(with(type, R"("type": "Unigram")"), HasSubstr("model.type: \"Unigram\""));
    EXPECT_THAT(with(type, R"("byte_fallback": true)"), HasSubstr("model.byte_fallback"));
    EXPECT_THAT(with(type, R"("dropout": 0.1)"), HasSubstr("model.dropout"));
    EXPECT_THAT(with(type, R"("end_of_word_suffix": "</w>")"), HasSubstr("end_of_word_suffix"));
    EXPECT_THAT(with(R"("normalizer": null)", R"("normalizer": {"type": "Lowercase"})"),
                HasSubstr("normalizer.type: \"Lowercase\""));
    EXPECT_THAT(with(R"("decoder": {"type": "ByteLevel"})", R"("decoder": {"type": "Metaspace"})"),
                HasSubstr("decoder.type: \"Metaspace\""));
    EXPECT_THAT(with(R"("merges": [])", R"("merges": ["a zz"])"), HasSubstr("model.merges[0]"));
    EXPECT_THAT(with(R"("merges": [])", R"("merges": ["ab"])"), HasSubstr("model.merges[0]"));
    EXPECT_THAT(with(R"("added_tokens": [])", R"("added_tokens": [{"id": -1, "content": "x"}])"),
                HasSubstr("added_tokens[0]"));
    EXPECT_THAT(
        with(R"("added_tokens": [])", R"("added_tokens": [{"id": 9000000, "content": "x"}])"),
        HasSubstr("added_tokens[0]"));
    ToyTokenizer toy;
    toy.pre_tokenizer = R"({"type": "Metaspace"})";
    EXPECT_THAT(error_of(toy.json()), HasSubstr("pre_tokenizer.type: \"Metaspace\""));
    toy.pre_tokenizer = "null";
    EXPECT_THAT(error_of(toy.json()), HasSubstr("pre_tokenizer"));
    toy.pre_tokenizer = R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})";
    EXPECT_THAT(error_of(toy.json()), HasSubstr("pattern refused at byte"));
    EXPECT_THAT(error_of("{"), HasSubstr("file.json"));
    EXPECT_THAT(error_of("[]"), HasSubstr("model"));
    EXPECT_THAT(error_of(R"({"model": {"vocab": {"a": 1, "b": 1}}})"),
                testing::StartsWith("file.json"));
}

TEST(Tokenizer, MissingFileIsAnErrorWithItsName) {
    const TempDir dir;
    const auto t = Tokenizer::load(dir.path());
    ASSERT_FALSE(t);
    EXPECT_THAT(t.error().message, HasSubstr("tokenizer.json"));
}

TEST(Tokenizer, RunawayPatternIsAnErrorNotAHang) {
    ToyTokenizer toy;
    toy.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(?:a|aa)+[bd]"}, "behavior": "Isolated"},
        {"type": "ByteLevel", "use_regex": false, "add_prefix_space": false}]})";
    const auto r = toy.make().encode(std::string(300, 'a') + "c", kParse);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::unsupported);
    EXPECT_THAT(r.error().message, HasSubstr("Split.pattern.Regex"));
}

TEST(Tokenizer, EndlessWordsAreNotQuadratic) {
    // 1 MB each; quadratic work would take hours. A text that size round-trips.
    const Tokenizer& t = qwen3_tokenizer();
    std::string marks = "a";
    for (int i = 0; i < 250'000; ++i)
        marks += i % 2 ? "\xCC\x81" : "\xCC\xA3";
    for (const std::string& text :
         {std::string(1'000'000, 'a'), std::string(1'000'000, ' '), std::string(1'000'000, '\n'),
          std::string(1'000'000, '-'), std::string(1'000'000, '<')})
        EXPECT_EQ(t.decode(ids_of(t, text)), text);
    EXPECT_FALSE(ids_of(t, marks).empty());
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
    const Tokenizer& t = qwen3_tokenizer();
    const std::string text = read_test_file("demo/heldout.txt").substr(0, 60'000);
    const Ids want = ids_of(t, text);
    std::vector<std::thread> threads;
    std::vector<Ids> have(4);
    for (auto& ids : have)
        threads.emplace_back([&] { ids = ids_of(t, text); });
    for (auto& thread : threads)
        thread.join();
    for (const auto& ids : have)
        EXPECT_EQ(ids, want);
}

}  // namespace
}  // namespace terrace::test
