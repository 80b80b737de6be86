// The value type of chat templates: JSON in and out, Python's spelling of numbers and strings.
// SPDX-License-Identifier: MIT
#include "text/template_value.h"

#include <gmock/gmock.h>

#include <limits>

#include "text_data.h"

namespace terrace::test {
namespace {

TEST(TemplateValue, JsonGoesInAndOutUnchanged) {
    const std::string text =
        R"({"b": [1, -2.5, true, false, null, "x\n\"\\é😀"], "a": {"z": {}, "y": []}})";
    EXPECT_EQ(must(to_json(must(Value::from_json(text)))), text);
}

TEST(TemplateValue, FloatsAreSpelledAsInPython) {
    EXPECT_EQ(python_float(1.0), "1.0");
    EXPECT_EQ(python_float(-0.0), "-0.0");
    EXPECT_EQ(python_float(0.1), "0.1");
    EXPECT_EQ(python_float(1e15), "1000000000000000.0");
    EXPECT_EQ(python_float(1e16), "1e+16");
    EXPECT_EQ(python_float(1.5e-5), "1.5e-05");
    EXPECT_EQ(python_float(0.0001), "0.0001");
    EXPECT_EQ(python_float(1e300), "1e+300");
    EXPECT_EQ(python_float(std::numeric_limits<double>::infinity()), "inf");
    EXPECT_EQ(python_float(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(TemplateValue, CopiesDoNotSeeLaterChanges) {
    Value a = Value::dict();
    a.set("k", 1);
    Value b = a;
    b.set("k", 2).set("l", 3);
    EXPECT_EQ(a.find("k")->as_integer(), 1);
    EXPECT_EQ(a.find("l"), nullptr);
    EXPECT_EQ(b.find("k")->as_integer(), 2);
}

TEST(TemplateValue, LargeDictionariesKeepOrderAndFindEveryKey) {
    Value v = Value::dict();
    for (int i = 999; i >= 0; --i)
        v.set("key" + std::to_string(i), i);
    v.set("key500", -1);
    ASSERT_EQ(v.as_dict().size(), 1000u);
    EXPECT_EQ(v.as_dict().entries().front().first, "key999");
    for (int i = 0; i < 1000; ++i)
        EXPECT_EQ(v.find("key" + std::to_string(i))->as_integer(), i == 500 ? -1 : i);
    EXPECT_EQ(v.find("key1000"), nullptr);
}

TEST(TemplateValue, JsonNestedTooDeeplyIsAnError) {
    const auto nested = [](int n) {
        return std::string(static_cast<size_t>(n), '[') + std::string(static_cast<size_t>(n), ']');
    };
    EXPECT_OK(Value::from_json(nested(90)));
    EXPECT_FALSE(Value::from_json(nested(200)).has_value());
    EXPECT_FALSE(Value::from_json(nested(100'000)).has_value());
    EXPECT_FALSE(Value::from_json("{\"a\": ").has_value());
}

TEST(TemplateValue, DepthAndWeightCountWhatIsInside) {
    const Value flat = Value::list({Value(1), Value(2)});
    EXPECT_EQ(Value(1).depth(), 0);
    EXPECT_EQ(flat.depth(), 1);
    EXPECT_EQ(Value::list({flat, flat}).depth(), 2);
    EXPECT_EQ(flat.weight(), 3u);
    EXPECT_EQ(Value::list({flat, flat}).weight(), 7u);
    Value doubling = flat;
    for (int i = 0; i < 90; ++i)
        doubling = Value::list({doubling, doubling});
    EXPECT_GT(doubling.weight(), uint64_t{1} << 62);  // saturates instead of wrapping
}

TEST(TemplateValue, UndefinedAndObjectsAreNotJson) {
    EXPECT_FALSE(to_json(Value::undefined()).has_value());
    EXPECT_FALSE(to_json(Value::list({Value(1), Value::undefined()})).has_value());
}

TEST(TemplateValue, TruthIsPythons) {
    for (const Value& v : {Value(), Value(false), Value(0), Value(0.0), Value(""), Value::list({}),
                           Value::dict(), Value::undefined()})
        EXPECT_FALSE(v.truthy()) << v.repr();
    for (const Value& v : {Value(true), Value(-1), Value(0.5), Value("0"), Value::list({Value()})})
        EXPECT_TRUE(v.truthy()) << v.repr();
}

}  // namespace
}  // namespace terrace::test
