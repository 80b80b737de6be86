// What interpreter, filters, tests and methods share: limits, failures with a line, and the Python
// rules for attributes, items and ordering. Internal to src/text. One object per rendering, one
// thread.
//
// Limits make any template end: every expression, loop turn and list element costs a step, every
// string made costs its bytes, values nest at most Value::kMaxDepth deep.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template.h"
#include "text/template_ast.h"

namespace terrace::jinja {

struct Args {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;

    // The argument at position `i` or called `name`; null when absent.
    const Value* find(size_t i, std::string_view name) const;
};

struct Namespace final : TemplateObject {
    Dict members;
};

class Runtime {
  public:
    Runtime(std::string_view where, const RenderLimits& limits) : where_(where), limits_(limits) {}

    [[noreturn]] void fail(std::string_view what) const;
    void at_line(int line) { line_ = line; }
    int line() const { return line_; }
    size_t max_output() const { return limits_.max_output; }
    const RenderLimits& limits() const { return limits_; }
    void charge(uint64_t steps);
    void charge_bytes(uint64_t bytes);

    Value text(std::string s);
    Value list(std::vector<Value> items, Value::Sequence kind = Value::Sequence::list);
    Value dict(Dict entries);
    std::string str(const Value& v);  // charged, as printed
    bool equals(const Value& a, const Value& b);
    bool less(const Value& a, const Value& b);  // fails where Python has no order
    bool contains(const Value& container, const Value& item);

    // object.name and object[key]; undefined when there is none. Fails on an undefined object.
    Value attribute(const Value& object, std::string_view name);
    Value item(const Value& object, const Value& key);
    // A dotted path as filters take it: "function.name", "0.role". `otherwise`, when given, stands
    // in for every undefined part.
    Value path(const Value& object, std::string_view dotted, const Value* otherwise = nullptr);
    // The items as a list: of a list itself, a dictionary's keys, a string's characters, none of
    // undefined. Fails on the rest.
    Value items(const Value& v);

    // template_filters.cpp, template_tests.cpp, template_methods.cpp
    Value filter(std::string_view name, const Value& in, const Args& args);
    bool test(std::string_view name, const Value& in, const Args& args);
    Value method(const Value& object, std::string_view name, const Args& args);

    // Arguments with checks; `otherwise` when absent.
    std::string text_arg(const Args& args, size_t i, std::string_view name,
                         std::string_view otherwise);
    int64_t int_arg(const Args& args, size_t i, std::string_view name, int64_t otherwise);
    bool bool_arg(const Args& args, size_t i, std::string_view name, bool otherwise);
    const Value& needed_arg(const Args& args, size_t i, std::string_view name);

  private:
    std::string_view where_;
    RenderLimits limits_;
    int line_ = 0;
    uint64_t steps_ = 0;
    uint64_t bytes_ = 0;
};

std::string_view type_name(const Value& v);  // as Python calls it

}  // namespace terrace::jinja
