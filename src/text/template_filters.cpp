// Filters of chat templates: {{ value | name(arguments) }}. Semantics are Jinja 3's, except tojson,
// which is transformers'. Filters that give a generator there give a list here.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "text/template_runtime.h"
#include "text/template_text.h"

namespace terrace::jinja {
namespace {

using Filter = Value (*)(Runtime&, const Value&, const Args&);

// What sorting and comparing filters look at: an attribute path, and lower case unless told.
struct Key {
    Runtime& rt;
    std::string attribute;
    bool case_sensitive;

    Key(Runtime& runtime, const Args& args, size_t case_at, size_t attribute_at)
        : rt(runtime), case_sensitive(runtime.bool_arg(args, case_at, "case_sensitive", false)) {
        const Value* v = args.find(attribute_at, "attribute");
        if (v && !v->is_none()) attribute = v->str();
    }
    Value one(const Value& v, std::string_view path) const {
        Value key = path.empty() ? v : rt.path(v, path);
        if (!case_sensitive && key.is_string()) key = rt.text(to_lower(key.as_string()));
        return key;
    }
    Value operator()(const Value& v) const {
        if (attribute.find(',') == std::string::npos) return one(v, attribute);
        std::vector<Value> keys;
        for (const auto part : split(attribute, ",", -1, Direction::forward))
            keys.push_back(one(v, part));
        return rt.list(std::move(keys));
    }
};

Value sorted(Runtime& rt, const std::vector<Value>& items, const Key& key, bool reverse) {
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& v : items)
        keyed.emplace_back(key(v), v);
    rt.charge(keyed.size());
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
        return reverse ? rt.less(b.first, a.first) : rt.less(a.first, b.first);
    });
    std::vector<Value> out;
    for (auto& [k, v] : keyed)
        out.push_back(std::move(v));
    return rt.list(std::move(out));
}

Args rest_of(const Args& args, size_t from) {
    Args rest;
    rest.positional.assign(
        args.positional.begin() + static_cast<ptrdiff_t>(std::min(from, args.positional.size())),
        args.positional.end());
    return rest;
}

// select, reject, selectattr, rejectattr: test by name, or truth.
enum class Keep : uint8_t { passing, failing };
enum class Look : uint8_t { at_item, at_attribute };
template <Keep keep, Look look>
Value pick(Runtime& rt, const Value& in, const Args& args) {
    const size_t first = look == Look::at_attribute ? 1 : 0;
    const std::string attribute = first ? rt.needed_arg(args, 0, "attribute").str() : std::string();
    const bool by_name = args.positional.size() > first;
    const std::string test = by_name ? rt.text_arg(args, first, "test", "") : std::string();
    const Args rest = rest_of(args, first + 1);
    std::vector<Value> out;
    const Value items = rt.items(in);
    for (const Value& v : items.as_list()) {
        rt.charge(1);
        const Value subject = first ? rt.path(v, attribute) : v;
        const bool passes = by_name ? rt.test(test, subject, rest) : subject.truthy();
        if (passes == (keep == Keep::passing)) out.push_back(v);
    }
    return rt.list(std::move(out));
}

Value map(Runtime& rt, const Value& in, const Args& args) {
    std::vector<Value> out;
    const Value items = rt.items(in);
    const Value* attribute = args.find(SIZE_MAX, "attribute");
    if (attribute) {
        const std::string path = attribute->str();
        const Value* otherwise = args.find(SIZE_MAX, "default");
        for (const Value& v : items.as_list()) {
            rt.charge(1);
            out.push_back(rt.path(v, path, otherwise));
        }
    } else {
        const std::string name = rt.needed_arg(args, 0, "filter").str();
        Args rest = rest_of(args, 1);
        rest.named = args.named;
        for (const Value& v : items.as_list()) {
            rt.charge(1);
            out.push_back(rt.filter(name, v, rest));
        }
    }
    return rt.list(std::move(out));
}

Value tojson(Runtime& rt, const Value& in, const Args& args) {
    JsonStyle style;
    style.ensure_ascii = rt.bool_arg(args, 0, "ensure_ascii", false);
    style.sort_keys = rt.bool_arg(args, 3, "sort_keys", false);
    const Value* indent = args.find(1, "indent");
    if (indent && !indent->is_none()) {
        style.pretty = true;
        style.item_separator.assign(1, ',');
        if (indent->is_string())
            style.indent = indent->as_string();
        else
            style.indent.assign(
                static_cast<size_t>(std::clamp<int64_t>(rt.int_arg(args, 1, "indent", 0), 0, 64)),
                ' ');
    }
    const Value* separators = args.find(2, "separators");
    if (separators && !separators->is_none()) {
        if (!separators->is_list() || separators->as_list().size() != 2 ||
            !separators->as_list()[0].is_string() || !separators->as_list()[1].is_string())
            rt.fail("tojson: separators are two strings");
        style.item_separator = separators->as_list()[0].as_string();
        style.key_separator = separators->as_list()[1].as_string();
    }
    // An upper bound before the work: every node may cost a line and its indentation.
    const uint64_t per_node = style.item_separator.size() + style.key_separator.size() +
                              style.indent.size() * (static_cast<uint64_t>(in.depth()) + 1);
    rt.charge(in.weight());
    rt.charge(in.weight() * (per_node / 64));
    auto out = to_json(in, style);
    if (!out) rt.fail(fmt::format("tojson: {}", out.error().message));
    return rt.text(std::move(*out));
}

Value join(Runtime& rt, const Value& in, const Args& args) {
    const Value* d = args.find(0, "d");
    const std::string separator = d ? rt.str(*d) : std::string();
    const Value* attribute = args.find(1, "attribute");
    const Value items = rt.items(in);
    std::string out;
    bool first = true;
    for (const Value& v : items.as_list()) {
        rt.charge(1);
        if (!std::exchange(first, false)) out += separator;
        out += rt.str(attribute && !attribute->is_none() ? rt.path(v, attribute->str()) : v);
        rt.charge_bytes(separator.size());
        if (out.size() > rt.max_output()) break;  // text() reports it
    }
    return rt.text(std::move(out));
}

Value indent(Runtime& rt, const Value& in, const Args& args) {
    const Value* width = args.find(0, "width");
    std::string pad(4, ' ');
    if (width && width->is_string())
        pad = width->as_string();
    else if (width)
        pad.assign(
            static_cast<size_t>(std::clamp<int64_t>(rt.int_arg(args, 0, "width", 4), 0, 1000)),
            ' ');
    const bool first = rt.bool_arg(args, 1, "first", false);
    const bool blank = rt.bool_arg(args, 2, "blank", false);
    std::string s = rt.str(in);
    s += '\n';
    const auto lines = split_lines(s, false);
    rt.charge_bytes(s.size() + lines.size() * pad.size());
    std::string out = first ? pad : std::string();
    for (size_t i = 0; i < lines.size(); ++i) {
        if (i > 0) {
            out += '\n';
            if (blank || !lines[i].empty()) out += pad;
        }
        out += lines[i];
    }
    return rt.text(std::move(out));
}

Value to_int(Runtime& rt, const Value& in, const Args& args) {
    const Value otherwise = args.find(0, "default") ? *args.find(0, "default") : Value(0);
    const auto from_real = [&](double d) {
        return std::abs(d) < 9.2e18 ? Value(static_cast<int64_t>(d)) : otherwise;
    };
    if (in.is(Value::Kind::integer) || in.is(Value::Kind::boolean)) return in.as_integer();
    if (in.is(Value::Kind::real)) return from_real(in.as_real());
    if (!in.is_string()) return otherwise;
    const int64_t base = rt.int_arg(args, 1, "base", 10);
    std::string s(strip(in.as_string(), Side::both));
    std::erase(s, '_');
    const char* begin = s.data();
    const char* end = begin + s.size();
    if (begin != end && *begin == '+') ++begin;
    int64_t v = 0;
    if (base >= 2 && base <= 36) {
        const bool hex = base == 16 && s.size() > 2 && s[0] == '0' && (s[1] | 32) == 'x';
        const auto r = std::from_chars(begin + (hex ? 2 : 0), end, v, static_cast<int>(base));
        if (r.ec == std::errc{} && r.ptr == end && begin != end) return v;
    }
    double d = 0;
    const auto r = std::from_chars(begin, end, d);
    return r.ec == std::errc{} && r.ptr == end && begin != end ? from_real(d) : otherwise;
}

Value to_float(Runtime&, const Value& in, const Args& args) {
    if (in.is_number()) return in.as_real();
    const Value otherwise = args.find(0, "default") ? *args.find(0, "default") : Value(0.0);
    if (!in.is_string()) return otherwise;
    const std::string_view s = strip(in.as_string(), Side::both);
    const char* begin = s.data() + (s.starts_with('+') ? 1 : 0);
    double d = 0;
    const auto r = std::from_chars(begin, s.data() + s.size(), d);
    return r.ec == std::errc{} && r.ptr == s.data() + s.size() && !s.empty() ? Value(d) : otherwise;
}

Value round(Runtime& rt, const Value& in, const Args& args) {
    if (!in.is_number()) rt.fail(fmt::format("round of '{}'", type_name(in)));
    const int64_t precision = rt.int_arg(args, 0, "precision", 0);
    const std::string how = rt.text_arg(args, 1, "method", "common");
    if (precision < -300 || precision > 300) rt.fail("round: precision out of range");
    const double x = in.as_real();
    const double scale = std::pow(10.0, static_cast<double>(precision));
    if (how == "ceil") return std::ceil(x * scale) / scale;
    if (how == "floor") return std::floor(x * scale) / scale;
    if (how != "common") rt.fail("round: method is common, ceil or floor");
    if (!in.is(Value::Kind::real) && precision >= 0) return in.as_integer();
    if (!std::isfinite(x)) return x;
    if (precision <= 0) return std::nearbyint(x * scale) / scale;
    // Correct rounding of the decimal value, ties to even, as Python does it: through text.
    const std::string digits = fmt::format("{:.{}f}", x, precision);
    double out = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), out);
    return out;
}

Value extreme(Runtime& rt, const Value& in, const Args& args, bool largest) {
    const Key key(rt, args, 0, 1);
    const Value items = rt.items(in);
    const Value* best = nullptr;
    Value best_key;
    for (const Value& v : items.as_list()) {
        Value k = key(v);
        if (!best || (largest ? rt.less(best_key, k) : rt.less(k, best_key))) {
            best = &v;
            best_key = std::move(k);
        }
    }
    return best ? *best : Value::undefined();
}

Value unique(Runtime& rt, const Value& in, const Args& args) {
    const Key key(rt, args, 0, 1);
    const Value items = rt.items(in);
    std::vector<Value> out, keys;
    for (const Value& v : items.as_list()) {
        Value k = key(v);
        const bool seen = std::any_of(keys.begin(), keys.end(),
                                      [&](const Value& other) { return rt.equals(k, other); });
        if (seen) continue;
        keys.push_back(std::move(k));
        out.push_back(v);
    }
    return rt.list(std::move(out));
}

Value dictsort(Runtime& rt, const Value& in, const Args& args) {
    if (!in.is_dict()) rt.fail(fmt::format("dictsort of '{}'", type_name(in)));
    const bool case_sensitive = rt.bool_arg(args, 0, "case_sensitive", false);
    const std::string by = rt.text_arg(args, 1, "by", "key");
    Args key_args;
    key_args.positional = {Value(case_sensitive), Value(by == "value" ? "1" : "0")};
    const Key key(rt, key_args, 0, 1);
    std::vector<Value> pairs;
    for (const auto& [k, v] : in.as_dict().entries())
        pairs.push_back(rt.list({Value(k), v}, Value::Sequence::tuple));
    return sorted(rt, pairs, key, rt.bool_arg(args, 2, "reverse", false));
}

Value sum(Runtime& rt, const Value& in, const Args& args) {
    const Value* attribute = args.find(0, "attribute");
    const Value* start = args.find(1, "start");
    bool real = false;
    double total = 0;
    int64_t whole = 0;
    const auto add = [&](const Value& v) {
        if (!v.is_number()) rt.fail(fmt::format("sum over '{}'", type_name(v)));
        real |= v.is(Value::Kind::real);
        total += v.as_real();
        if (!v.is(Value::Kind::real) && __builtin_add_overflow(whole, v.as_integer(), &whole))
            rt.fail("sum does not fit into 64 bits");
    };
    if (start) add(*start);
    const Value items = rt.items(in);
    for (const Value& v : items.as_list())
        add(attribute && !attribute->is_none() ? rt.path(v, attribute->str()) : v);
    return real ? Value(total) : Value(whole);
}

Value batch(Runtime& rt, const Value& in, const Args& args) {
    const int64_t n = rt.int_arg(args, 0, "linecount", 0);
    if (n < 1) rt.fail("batch: linecount is at least 1");
    const Value* fill = args.find(1, "fill_with");
    const Value items = rt.items(in);
    std::vector<Value> out, row;
    const auto close = [&] { out.push_back(rt.list(std::exchange(row, {}))); };
    for (const Value& v : items.as_list()) {
        if (std::ssize(row) == n) close();
        row.push_back(v);
    }
    if (!row.empty()) {
        if (fill && !fill->is_none()) {
            rt.charge(static_cast<uint64_t>(n));
            row.resize(static_cast<size_t>(n), *fill);
        }
        close();
    }
    return rt.list(std::move(out));
}

Value length(Runtime& rt, const Value& in, const Args&) {
    switch (in.kind()) {
        case Value::Kind::undefined:
            return 0;
        case Value::Kind::string:
            rt.charge(in.as_string().size() / 64);
            return count_characters(in.as_string());
        case Value::Kind::list:
            return in.as_list().size();
        case Value::Kind::dict:
            return in.as_dict().size();
        default:
            rt.fail(fmt::format("'{}' has no length", type_name(in)));
    }
}

Value reverse(Runtime& rt, const Value& in, const Args&) {
    const Value items = rt.items(in);
    std::vector<Value> out(items.as_list().rbegin(), items.as_list().rend());
    if (!in.is_string()) return rt.list(std::move(out));
    std::string s;
    for (const Value& c : out)
        s += c.as_string();
    return rt.text(std::move(s));
}

template <std::string (*f)(std::string_view)>
Value text_filter(Runtime& rt, const Value& in, const Args&) {
    return rt.text(f(rt.str(in)));
}

Value pairs(Runtime& rt, const Value& in, const Args&) {
    if (in.is_undefined()) return rt.list({});
    if (!in.is_dict()) rt.fail(fmt::format("items of '{}'", type_name(in)));
    return rt.method(in, "items", {});
}

const std::unordered_map<std::string_view, Filter>& filters() {
    static const std::unordered_map<std::string_view, Filter> table = {
        {"abs",
         [](Runtime& rt, const Value& in, const Args&) -> Value {
             if (in.is(Value::Kind::real)) return std::abs(in.as_real());
             if (!in.is_number() || in.as_integer() == INT64_MIN)
                 rt.fail(fmt::format("abs of '{}'", type_name(in)));
             return std::abs(in.as_integer());
         }},
        {"attr",
         [](Runtime& rt, const Value& in, const Args& a) -> Value {
             return rt.attribute(in, rt.text_arg(a, 0, "name", ""));
         }},
        {"batch", batch},
        {"capitalize", text_filter<capitalize>},
        {"center",
         [](Runtime& rt, const Value& in, const Args& a) -> Value {
             return rt.method(Value(rt.str(in)), "center",
                              {{Value(rt.int_arg(a, 0, "width", 80))}, {}});
         }},
        {"count", length},
        {"d",
         [](Runtime& rt, const Value& in, const Args& a) { return rt.filter("default", in, a); }},
        {"default",
         [](Runtime& rt, const Value& in, const Args& a) -> Value {
             const Value* otherwise = a.find(0, "default_value");
             const bool falsy_too = rt.bool_arg(a, 1, "boolean", false);
             if (in.is_undefined() || (falsy_too && !in.truthy()))
                 return otherwise ? *otherwise : Value("");
             return in;
         }},
        {"dictsort", dictsort},
        {"e", text_filter<escape_html>},
        {"escape", text_filter<escape_html>},
        {"first",
         [](Runtime& rt, const Value& in, const Args&) -> Value {
             const Value items = rt.items(in);
             return items.as_list().empty() ? Value::undefined() : items.as_list().front();
         }},
        {"float", to_float},
        {"forceescape", text_filter<escape_html>},
        {"format",
         [](Runtime& rt, const Value& in, const Args& a) -> Value {
             return rt.method(in, "%", {{rt.list(a.positional, Value::Sequence::tuple)}, {}});
         }},
        {"indent", indent},
        {"int", to_int},
        {"items", pairs},
        {"join", join},
        {"last",
         [](Runtime& rt, const Value& in, const Args&) -> Value {
             const Value items = rt.items(in);
             return items.as_list().empty() ? Value::undefined() : items.as_list().back();
         }},
        {"length", length},
        {"list",
         [](Runtime& rt, const Value& in, const Args&) -> Value {
             return rt.list(rt.items(in).as_list());
         }},
        {"lower", text_filter<to_lower>},
        {"map", map},
        {"max",
         [](Runtime& rt, const Value& in, const Args& a) { return extreme(rt, in, a, true); }},
        {"min",
         [](Runtime& rt, const Value& in, const Args& a) { return extreme(rt, in, a, false); }},
        {"reject", pick<Keep::failing, Look::at_item>},
        {"rejectattr", pick<Keep::failing, Look::at_attribute>},
        {"replace",
         [](Runtime& rt, const Value& in, const Args& a) -> Value {
             Args args{
                 {Value(rt.str(rt.needed_arg(a, 0, "old"))),
                  Value(rt.str(rt.needed_arg(a, 1, "new"))), Value(rt.int_arg(a, 2, "count", -1))},
                 {}};
             return rt.method(Value(rt.str(in)), "replace", args);
         }},
        {"reverse", reverse},
        {"round", round},
        {"safe", [](Runtime& rt, const Value& in, const Args&) -> Value { return rt.str(in); }},
        {"select", pick<Keep::passing, Look::at_item>},
        {"selectattr", pick<Keep::passing, Look::at_attribute>},
        {"sort",
         [](Runtime& rt, const Value& in, const Args& a) -> Value {
             const bool down = rt.bool_arg(a, 0, "reverse", false);
             return sorted(rt, rt.items(in).as_list(), Key(rt, a, 1, 2), down);
         }},
        {"string", [](Runtime& rt, const Value& in, const Args&) -> Value { return rt.str(in); }},
        {"sum", sum},
        {"title", text_filter<title_filter>},
        {"tojson", tojson},
        {"trim",
         [](Runtime& rt, const Value& in, const Args& a) -> Value {
             Args args;
             if (const Value* chars = a.find(0, "chars")) args.positional = {*chars};
             return rt.method(Value(rt.str(in)), "strip", args);
         }},
        {"unique", unique},
        {"upper", text_filter<to_upper>},
        {"wordcount",
         [](Runtime& rt, const Value& in, const Args&) -> Value {
             return split_space(rt.str(in), -1, Direction::forward).size();
         }},
    };
    return table;
}

}  // namespace

Value Runtime::filter(std::string_view name, const Value& in, const Args& args) {
    charge(1);
    const auto it = filters().find(name);
    if (it == filters().end()) fail(fmt::format("no filter named '{}'", name));
    return it->second(*this, in, args);
}

}  // namespace terrace::jinja
