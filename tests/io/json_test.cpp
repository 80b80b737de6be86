// The JSON facade: values, errors that name file and path, and what is refused.
// SPDX-License-Identifier: MIT
#include "io/json.h"

#include <gmock/gmock.h>

#include "io_support.h"

namespace terrace::test {
namespace {

Json parse(std::string_view text) {
    return must(parse_json(text, "f.json"));
}

TEST(Json, ScalarsAreRead) {
    EXPECT_EQ(must(parse("true").as_bool()), true);
    EXPECT_EQ(must(parse("-7").as_int()), -7);
    EXPECT_EQ(must(parse("9223372036854775807").as_int()), INT64_MAX);
    EXPECT_EQ(must(parse("1.5").as_double()), 1.5);
    EXPECT_EQ(must(parse("3").as_double()), 3.0);
    EXPECT_EQ(must(parse(R"("a\u00e9\n")").as_string()), "a\xc3\xa9\n");
    EXPECT_TRUE(parse("null").is_null());
}

TEST(Json, IntegersMayBeWrittenAsExactFloats) {
    EXPECT_EQ(must(parse("1e7").as_int()), 10000000);
    EXPECT_EQ(must(parse("6.0").as_int()), 6);
    EXPECT_ERROR(parse("6.5").as_int(), Code::invalid_argument, "is 6.5, need an integer");
    EXPECT_ERROR(parse("1e300").as_int(), Code::invalid_argument, "need an integer of 64 bits");
    EXPECT_ERROR(parse("18446744073709551615").as_int(), Code::invalid_argument,
                 "need an integer of 64 bits");
}

TEST(Json, WrongKindsNameTheDocumentAndThePath) {
    const Json j = parse(R"({"a":{"b":[1,{"c":"x"}]}})");
    const Json c = must(must(must(j.get("a")).get("b")).elements())[1];
    EXPECT_ERROR(c.get_int("c"), Code::invalid_argument,
                 "f.json: a.b[1].c is a string, need an integer");
    EXPECT_ERROR(c.get_int("d"), Code::invalid_argument, "f.json: a.b[1].d is missing");
    EXPECT_ERROR(j.get("zz"), Code::invalid_argument, "f.json: zz is missing");
    EXPECT_ERROR(j.get_bool("a"), Code::invalid_argument,
                 "f.json: a is an object, need true or false");
    EXPECT_ERROR(j.elements(), Code::invalid_argument, "f.json is an object, need an array");
    EXPECT_ERROR(parse("[1]").members(), Code::invalid_argument,
                 "f.json is an array, need an object");
    EXPECT_ERROR(parse("[1]").get("k"), Code::invalid_argument, "need an object with \"k\"");
    EXPECT_ERROR(parse("1").as_string(), Code::invalid_argument, "is a number, need a string");
    EXPECT_ERROR(parse("\"1\"").as_double(), Code::invalid_argument, "is a string, need a number");
}

TEST(Json, ContainersKeepDocumentOrder) {
    const Json j = parse(R"({"z":1,"a":[10,20],"m":null})");
    EXPECT_EQ(j.size(), 3u);
    const auto members = must(j.members());
    EXPECT_EQ(members[0].key, "z");
    EXPECT_EQ(members[1].key, "a");
    EXPECT_EQ(members[1].value.size(), 2u);
    EXPECT_EQ(must(must(members[1].value.elements())[1].as_int()), 20);
    EXPECT_TRUE(members[2].value.is_null());
    EXPECT_EQ(parse("5").size(), 0u);
    EXPECT_FALSE(j.find("y").has_value());
    EXPECT_FALSE(parse("[]").find("y").has_value());
}

TEST(Json, FallbacksServeAbsentAndNullButNotWrongKinds) {
    const Json j = parse(R"({"n":null,"i":1,"s":"t","d":0.5,"b":false})");
    EXPECT_EQ(must(j.int_or("n", 4)), 4);
    EXPECT_EQ(must(j.int_or("none", 4)), 4);
    EXPECT_EQ(must(j.int_or("i", 4)), 1);
    EXPECT_EQ(must(j.double_or("d", 4)), 0.5);
    EXPECT_EQ(must(j.double_or("n", 4)), 4.0);
    EXPECT_EQ(must(j.string_or("s", "u")), "t");
    EXPECT_EQ(must(j.string_or("n", "u")), "u");
    EXPECT_EQ(must(j.bool_or("b", true)), false);
    EXPECT_EQ(must(j.bool_or("none", true)), true);
    EXPECT_FALSE(j.int_or("s", 4));
    EXPECT_FALSE(j.string_or("i", ""));
    EXPECT_FALSE(j.bool_or("i", true));
    EXPECT_FALSE(j.double_or("s", 1));
}

TEST(Json, AValueOutlivesTheHandlesItCameFrom) {
    std::optional<Json> inner;
    {
        const Json j = parse(R"({"a":{"b":"kept"}})");
        inner = must(must(j.get("a")).get("b"));
    }
    EXPECT_EQ(must(inner->as_string()), "kept");
    EXPECT_EQ(inner->where(), "f.json: a.b");
}

TEST(Json, SyntaxErrorsSayWhere) {
    EXPECT_ERROR(parse_json("{\n  \"a\": 1,\n  \"b\" 2\n}", "f.json"), Code::corrupt_data,
                 "f.json: not valid JSON: line 3, column 7: syntax error");
    for (const char* bad : {"", " ", "{", "[1,]", "{\"a\":1,}", "01", "1 2", "nul", "\"a", "'a'",
                            "[1", "\"\x01\"", "\"\\ud800\"", "\xff", "{1:2}", "1e999"})
        EXPECT_FALSE(parse_json(bad, "f.json")) << bad;
}

TEST(Json, BytesThatAreNotUtf8AreRefusedAndNotEchoed) {
    const auto r = parse_json("{\"a\":\"\xc3\x28\"}", "f.json");
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::corrupt_data);
    for (const char c : r.error().message)
        EXPECT_LT(static_cast<unsigned char>(c), 0x7f);
}

TEST(Json, ByteOrderMarkIsSkipped) {
    EXPECT_EQ(must(parse("\xEF\xBB\xBF[1]").elements()).size(), 1u);
}

TEST(Json, NestingIsReadUpToTheLimitAndRefusedBeyond) {
    const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
    EXPECT_OK(parse_json(nested(64), "f.json"));
    EXPECT_ERROR(parse_json(nested(65), "f.json"), Code::corrupt_data,
                 "f.json: JSON nested deeper than 64 levels");
    EXPECT_ERROR(parse_json(nested(1'000'000), "f.json"), Code::corrupt_data,
                 "nested deeper than 64");
    EXPECT_OK(parse_json(nested(8), "f.json", {.max_depth = 8}));
    EXPECT_ERROR(parse_json(nested(9), "f.json", {.max_depth = 8}), Code::corrupt_data,
                 "deeper than 8");
}

TEST(Json, SizeLimitHolds) {
    EXPECT_ERROR(parse_json("[1,2,3]", "f.json", {.max_bytes = 6}), Code::invalid_argument,
                 "f.json: JSON of 7 bytes, at most 6 are read");
    EXPECT_OK(parse_json("[1,2,3]", "f.json", {.max_bytes = 7}));
}

TEST(Json, DuplicateKeysAreRefusedAtAnyLevel) {
    EXPECT_ERROR(parse_json(R"({"a":1,"a":2})", "f.json"), Code::corrupt_data,
                 "key \"a\" appears twice");
    EXPECT_ERROR(parse_json(R"([{"x":{"b":1,"\u0062":2}}])", "f.json"), Code::corrupt_data,
                 "key \"b\" appears twice");
    EXPECT_OK(parse_json(R"({"a":{"a":1},"b":{"a":1}})", "f.json"));
}

TEST(Json, QuotedTextParsesBackToItself) {
    std::string every;
    for (int c = 0; c < 128; ++c)
        every += static_cast<char>(c);
    every += "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    EXPECT_EQ(must(parse(quote_json(every)).as_string()), every);
    EXPECT_EQ(quote_json("a\"b\\c\n\x01"), R"("a\"b\\c\n\u0001")");
    EXPECT_EQ(quote_json(""), "\"\"");
}

TEST(Json, QuotingReplacesWhatIsNotUtf8) {
    const std::string bad = "\xEF\xBF\xBD";
    EXPECT_EQ(quote_json("a\xff"
                         "b"),
              "\"a" + bad + "b\"");
    EXPECT_EQ(quote_json("\xe2\x82"), "\"" + bad + bad + "\"");            // cut sequence
    EXPECT_EQ(quote_json("\xc0\x80"), "\"" + bad + bad + "\"");            // overlong
    EXPECT_EQ(quote_json("\xed\xa0\x80"), "\"" + bad + bad + bad + "\"");  // surrogate
    EXPECT_EQ(quote_json("\xf4\x90\x80\x80"),
              "\"" + bad + bad + bad + bad + "\"");  // above U+10FFFF
    Random random(1);
    for (int round = 0; round < 2000; ++round) {
        std::string text(static_cast<size_t>(random.below(12)), '\0');
        for (char& c : text)
            c = static_cast<char>(random.next());
        EXPECT_OK(parse_json(quote_json(text), "f.json"));
    }
}

}  // namespace
}  // namespace terrace::test
