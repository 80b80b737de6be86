// Tests of chat templates: {{ value is name(arguments) }}. Semantics are Jinja 3's.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <unordered_map>

#include "text/template_runtime.h"
#include "text/template_text.h"

namespace terrace::jinja {
namespace {

using Test = bool (*)(Runtime&, const Value&, const Args&);
using Kind = Value::Kind;

template <Kind kind>
bool is_kind(Runtime&, const Value& v, const Args&) {
    return v.is(kind);
}

template <bool truth>
bool is_bool(Runtime&, const Value& v, const Args&) {
    return v.is(Kind::boolean) && v.as_bool() == truth;
}

int64_t integer(Runtime& rt, const Value& v) {
    if (!v.is(Kind::integer) && !v.is(Kind::boolean))
        rt.fail(fmt::format("the test needs an integer, not {}", type_name(v)));
    return v.as_integer();
}

bool eq(Runtime& rt, const Value& v, const Args& a) {
    return rt.equals(v, rt.needed_arg(a, 0, "other"));
}
bool lt(Runtime& rt, const Value& v, const Args& a) {
    return rt.less(v, rt.needed_arg(a, 0, "other"));
}
bool gt(Runtime& rt, const Value& v, const Args& a) {
    return rt.less(rt.needed_arg(a, 0, "other"), v);
}
bool ne(Runtime& rt, const Value& v, const Args& a) {
    return !eq(rt, v, a);
}
bool le(Runtime& rt, const Value& v, const Args& a) {
    return lt(rt, v, a) || eq(rt, v, a);
}
bool ge(Runtime& rt, const Value& v, const Args& a) {
    return gt(rt, v, a) || eq(rt, v, a);
}

const std::unordered_map<std::string_view, Test>& tests() {
    static const std::unordered_map<std::string_view, Test> table = {
        {"boolean", is_kind<Kind::boolean>},
        {"callable", is_kind<Kind::object>},
        {"defined", [](Runtime&, const Value& v, const Args&) { return !v.is_undefined(); }},
        {"divisibleby",
         [](Runtime& rt, const Value& v, const Args& a) {
             const int64_t by = integer(rt, rt.needed_arg(a, 0, "num"));
             if (by == 0) rt.fail("division by zero");
             return by == -1 || integer(rt, v) % by == 0;
         }},
        {"eq", eq},
        {"equalto", eq},
        {"==", eq},
        {"even", [](Runtime& rt, const Value& v, const Args&) { return integer(rt, v) % 2 == 0; }},
        {"false", is_bool<false>},
        {"float", is_kind<Kind::real>},
        {"ge", ge},
        {">=", ge},
        {"gt", gt},
        {">", gt},
        {"greaterthan", gt},
        {"in", [](Runtime& rt, const Value& v,
                  const Args& a) { return rt.contains(rt.needed_arg(a, 0, "seq"), v); }},
        {"integer", is_kind<Kind::integer>},
        {"iterable",
         [](Runtime&, const Value& v, const Args&) {
             return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
         }},
        {"le", le},
        {"<=", le},
        {"lower", [](Runtime& rt, const Value& v, const Args&) { return is_lower(rt.str(v)); }},
        {"lt", lt},
        {"<", lt},
        {"lessthan", lt},
        {"mapping", is_kind<Kind::dict>},
        {"ne", ne},
        {"!=", ne},
        {"none", is_kind<Kind::none>},
        {"number", [](Runtime&, const Value& v, const Args&) { return v.is_number(); }},
        {"odd", [](Runtime& rt, const Value& v, const Args&) { return integer(rt, v) % 2 != 0; }},
        {"sameas",
         [](Runtime& rt, const Value& v, const Args& a) {
             const Value& other = rt.needed_arg(a, 0, "other");
             return v.kind() == other.kind() && rt.equals(v, other);
         }},
        {"sequence",
         [](Runtime&, const Value& v, const Args&) {
             return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
         }},
        {"string", is_kind<Kind::string>},
        {"true", is_bool<true>},
        {"undefined", is_kind<Kind::undefined>},
        {"upper", [](Runtime& rt, const Value& v, const Args&) { return is_upper(rt.str(v)); }},
    };
    return table;
}

}  // namespace

bool Runtime::test(std::string_view name, const Value& in, const Args& args) {
    charge(1);
    const auto it = tests().find(name);
    if (it == tests().end()) fail(fmt::format("no test named '{}'", name));
    return it->second(*this, in, args);
}

}  // namespace terrace::jinja
