// Methods of strings, dictionaries and lists in chat templates, with Python's semantics. Methods
// that would change a list or a dictionary are refused, as in transformers' sandbox.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "text/template_runtime.h"
#include "text/template_text.h"
#include "text/utf8.h"

namespace terrace::jinja {
namespace {

using Method = Value (*)(Runtime&, const Value&, const Args&);
using Tuple = std::vector<Value>;

// str % values: flags, width and precision of %s %r %d %i %x %o %f %e %g %c %%.
Value percent(Runtime& rt, const Value& self, const Args& args) {
    const std::string& format = self.as_string();
    const Value& given = rt.needed_arg(args, 0, "values");
    const Tuple values = given.is_tuple() ? given.as_list() : Tuple{given};
    std::string out;
    size_t next = 0;
    for (size_t i = 0; i < format.size(); ++i) {
        if (format[i] != '%') {
            out += format[i];
            continue;
        }
        std::string spec;
        while (++i < format.size() &&
               std::string_view("#0- +.123456789").find(format[i]) != std::string_view::npos)
            spec += format[i];
        if (i >= format.size() || spec.size() > 12) rt.fail("incomplete format");
        const char type = format[i];
        if (type == '%') {
            out += '%';
            continue;
        }
        if (next >= values.size()) rt.fail("not enough arguments for format string");
        const Value& v = values[next++];
        // Flags, then width.precision, each at most three digits.
        size_t at = 0;
        bool left = false, zero = false, plus = false, space = false;
        for (; at < spec.size() && std::string_view("#0- +").find(spec[at]) != spec.npos; ++at) {
            left |= spec[at] == '-';
            zero |= spec[at] == '0';
            plus |= spec[at] == '+';
            space |= spec[at] == ' ';
        }
        int width = 0, precision = -1;
        for (; at < spec.size() && spec[at] >= '0' && spec[at] <= '9' && width < 1000; ++at)
            width = width * 10 + (spec[at] - '0');
        if (at < spec.size() && spec[at] == '.') {
            precision = 0;
            for (++at; at < spec.size() && spec[at] >= '0' && spec[at] <= '9' && precision < 100;
                 ++at)
                precision = precision * 10 + (spec[at] - '0');
        }
        if (at != spec.size() || width > 1000 || precision > 100) rt.fail("unsupported format");
        std::string text;
        bool numeric = true;
        switch (type) {
            case 's':
            case 'r':
                numeric = false;
                rt.charge(v.weight());
                text = type == 's' ? rt.str(v) : v.repr();
                if (precision >= 0)
                    text.resize(character_offset(text, static_cast<size_t>(precision)));
                break;
            case 'd':
            case 'i':
            case 'x':
            case 'X':
            case 'o': {
                if (!v.is_number()) rt.fail(fmt::format("%{} needs a number", type));
                const double real = v.as_real();
                if (!(std::abs(real) < 9.2e18)) rt.fail("number out of range");
                const int64_t n =
                    v.is(Value::Kind::real) ? static_cast<int64_t>(real) : v.as_integer();
                text = type == 'x'   ? fmt::format("{:x}", n)
                       : type == 'X' ? fmt::format("{:X}", n)
                       : type == 'o' ? fmt::format("{:o}", n)
                                     : fmt::format("{}", n);
                break;
            }
            case 'f':
            case 'F':
            case 'e':
            case 'g':
                if (!v.is_number()) rt.fail(fmt::format("%{} needs a number", type));
                text = type == 'e'
                           ? fmt::format("{:.{}e}", v.as_real(), precision < 0 ? 6 : precision)
                       : type == 'g'
                           ? fmt::format("{:.{}g}", v.as_real(), precision < 0 ? 6 : precision)
                           : fmt::format("{:.{}f}", v.as_real(), precision < 0 ? 6 : precision);
                break;
            default:
                rt.fail(fmt::format("unsupported format '%{}'", type));
        }
        if (numeric && !text.starts_with('-')) {
            if (plus)
                text.insert(0, "+");
            else if (space)
                text.insert(0, " ");
        }
        const auto size = static_cast<int>(std::min<size_t>(count_characters(text), 1000));
        const auto missing = static_cast<size_t>(std::max(0, width - size));
        if (left)
            text.append(missing, ' ');
        else if (zero && numeric)
            text.insert(text.starts_with('-') || text.starts_with('+') ? 1 : 0, missing, '0');
        else
            text.insert(0, missing, ' ');
        out += text;
        rt.charge_bytes(text.size());
    }
    if (given.is_tuple() && next < values.size()) rt.fail("not all arguments converted");
    return rt.text(std::move(out));
}

template <Side side>
Value strip_method(Runtime& rt, const Value& self, const Args& a) {
    const std::string& s = self.as_string();
    rt.charge(s.size() / 64);
    const Value* chars = a.find(0, "chars");
    if (!chars || chars->is_none()) return rt.text(std::string(strip(s, side)));
    const std::string set = rt.text_arg(a, 0, "chars", "");
    const std::string_view view = set;
    rt.charge(s.size() / 16 * (set.size() / 64));
    return rt.text(std::string(strip(s, side, &view)));
}

Value strings(Runtime& rt, const std::vector<std::string_view>& parts) {
    std::vector<Value> out;
    out.reserve(parts.size());
    for (const auto part : parts)
        out.push_back(rt.text(std::string(part)));
    return rt.list(std::move(out));
}

template <Direction direction>
Value split_method(Runtime& rt, const Value& self, const Args& a) {
    const std::string& s = self.as_string();
    rt.charge(s.size() / 16);
    const int64_t limit = rt.int_arg(a, 1, "maxsplit", -1);
    const Value* separator = a.find(0, "sep");
    if (!separator || separator->is_none()) return strings(rt, split_space(s, limit, direction));
    const std::string text = rt.text_arg(a, 0, "sep", "");
    if (text.empty()) rt.fail("split: empty separator");
    return strings(rt, split(s, text, limit, direction));
}

enum class End : uint8_t { start, finish };
template <End end>
Value with_method(Runtime& rt, const Value& self, const Args& a) {
    const Value& given = rt.needed_arg(a, 0, "prefix");
    std::string_view s = self.as_string();
    if (a.positional.size() > 1) {
        rt.charge(s.size() / 64);
        s.remove_prefix(character_offset(
            s, static_cast<size_t>(std::max<int64_t>(0, rt.int_arg(a, 1, "start", 0)))));
    }
    const auto one = [&](const Value& v) {
        if (!v.is_string())
            rt.fail(fmt::format("startswith and endswith need a string, not {}", type_name(v)));
        return end == End::start ? s.starts_with(v.as_string()) : s.ends_with(v.as_string());
    };
    if (!given.is_tuple()) return one(given);
    return std::any_of(given.as_list().begin(), given.as_list().end(), one);
}

enum class Absent : uint8_t { minus_one, error };
template <Direction direction, Absent absent>
Value find_method(Runtime& rt, const Value& self, const Args& a) {
    const std::string_view s = self.as_string();
    rt.charge(s.size() / 16);
    const std::string needle = rt.needed_arg(a, 0, "sub").is_string()
                                   ? rt.text_arg(a, 0, "sub", "")
                                   : (rt.fail("find needs a string"), std::string());
    const auto start = static_cast<size_t>(std::max<int64_t>(0, rt.int_arg(a, 1, "start", 0)));
    const size_t at = direction == Direction::forward
                          ? find_text(s, needle, character_offset(s, start))
                          : rfind_text(s, needle);
    if (at != std::string_view::npos) return count_characters(s.substr(0, at));
    if (absent == Absent::error) rt.fail("substring not found");
    return -1;
}

template <std::string (*f)(std::string_view)>
Value text_method(Runtime& rt, const Value& self, const Args&) {
    return rt.text(f(self.as_string()));
}

template <CharClass c>
Value class_method(Runtime& rt, const Value& self, const Args&) {
    rt.charge(self.as_string().size() / 16);
    return all_of_class(self.as_string(), c);
}

enum class Align : uint8_t { left, right, center };
template <Align align>
Value justify(Runtime& rt, const Value& self, const Args& a) {
    const std::string& s = self.as_string();
    const int64_t width = rt.int_arg(a, 0, "width", 0);
    const std::string fill = rt.text_arg(a, 1, "fillchar", " ");
    const auto size = static_cast<int64_t>(count_characters(s));
    if (width <= size) return self;
    const auto missing = static_cast<uint64_t>(width - size);
    if (fill.empty() || fill.size() > 4) rt.fail("the fill is one character");
    if (missing > (1u << 30)) rt.fail("width out of range");
    rt.charge_bytes(missing * fill.size() + s.size());
    // Python's str.center puts the odd blank on the left when the width is odd too.
    const uint64_t before = align == Align::left ? 0
                            : align == Align::right
                                ? missing
                                : missing / 2 + (missing & static_cast<uint64_t>(width) & 1);
    std::string out;
    for (uint64_t i = 0; i < before; ++i)
        out += fill;
    out += s;
    for (uint64_t i = before; i < missing; ++i)
        out += fill;
    return rt.text(std::move(out));
}

template <Direction direction>
Value partition(Runtime& rt, const Value& self, const Args& a) {
    const std::string_view s = self.as_string();
    rt.charge(s.size() / 16);
    const std::string separator = rt.text_arg(a, 0, "sep", "");
    if (separator.empty()) rt.fail("partition: empty separator");
    const size_t at =
        direction == Direction::forward ? find_text(s, separator) : rfind_text(s, separator);
    Tuple parts{Value(""), Value(""), Value("")};
    if (at == std::string_view::npos) {
        parts[direction == Direction::forward ? 0 : 2] = self;
    } else {
        parts = {rt.text(std::string(s.substr(0, at))), Value(separator),
                 rt.text(std::string(s.substr(at + separator.size())))};
    }
    return rt.list(std::move(parts), Value::Sequence::tuple);
}

Value replace_method(Runtime& rt, const Value& self, const Args& a) {
    const std::string from = rt.text_arg(a, 0, "old", ""), to = rt.text_arg(a, 1, "new", "");
    rt.charge(self.as_string().size() / 16);
    bool too_long = false;
    std::string out = replace(self.as_string(), from, to, rt.int_arg(a, 2, "count", -1),
                              rt.max_output(), too_long);
    if (too_long) rt.fail("replace makes too long a string");
    return rt.text(std::move(out));
}

const std::unordered_map<std::string_view, Method>& string_methods() {
    static const std::unordered_map<std::string_view, Method> table = {
        {"%", percent},
        {"capitalize", text_method<capitalize>},
        {"center", justify<Align::center>},
        {"count",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             const std::string needle = rt.text_arg(a, 0, "sub", "");
             rt.charge(self.as_string().size() / 16);
             if (needle.empty()) return count_characters(self.as_string()) + 1;
             return split(self.as_string(), needle, -1, Direction::forward).size() - 1;
         }},
        {"endswith", with_method<End::finish>},
        {"find", find_method<Direction::forward, Absent::minus_one>},
        {"index", find_method<Direction::forward, Absent::error>},
        {"isalnum", class_method<CharClass::alnum>},
        {"isalpha", class_method<CharClass::alpha>},
        {"isdecimal", class_method<CharClass::digit>},
        {"isdigit", class_method<CharClass::digit>},
        {"islower",
         [](Runtime&, const Value& s, const Args&) -> Value { return is_lower(s.as_string()); }},
        {"isnumeric", class_method<CharClass::digit>},
        {"isspace", class_method<CharClass::space>},
        {"isupper",
         [](Runtime&, const Value& s, const Args&) -> Value { return is_upper(s.as_string()); }},
        {"join",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             const Value items = rt.items(rt.needed_arg(a, 0, "iterable"));
             for (const Value& v : items.as_list())
                 if (!v.is_string())
                     rt.fail(fmt::format("join needs strings, not {}", type_name(v)));
             return rt.filter("join", items, {{self}, {}});
         }},
        {"ljust", justify<Align::left>},
        {"lower", text_method<to_lower>},
        {"lstrip", strip_method<Side::left>},
        {"partition", partition<Direction::forward>},
        {"removeprefix",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             const std::string p = rt.text_arg(a, 0, "prefix", "");
             const std::string& s = self.as_string();
             return s.starts_with(p) ? rt.text(s.substr(p.size())) : self;
         }},
        {"removesuffix",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             const std::string p = rt.text_arg(a, 0, "suffix", "");
             const std::string& s = self.as_string();
             return s.ends_with(p) ? rt.text(s.substr(0, s.size() - p.size())) : self;
         }},
        {"replace", replace_method},
        {"rfind", find_method<Direction::backward, Absent::minus_one>},
        {"rindex", find_method<Direction::backward, Absent::error>},
        {"rjust", justify<Align::right>},
        {"rpartition", partition<Direction::backward>},
        {"rsplit", split_method<Direction::backward>},
        {"rstrip", strip_method<Side::right>},
        {"split", split_method<Direction::forward>},
        {"splitlines",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             return strings(rt,
                            split_lines(self.as_string(), rt.bool_arg(a, 0, "keepends", false)));
         }},
        {"startswith", with_method<End::start>},
        {"strip", strip_method<Side::both>},
        {"swapcase", text_method<swap_case>},
        {"title", text_method<title_method>},
        {"upper", text_method<to_upper>},
        {"zfill",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             const std::string& s = self.as_string();
             const bool sign = s.starts_with('-') || s.starts_with('+');
             const Value padded = rt.method(
                 Value(s.substr(sign ? 1 : 0)), "rjust",
                 {{Value(rt.int_arg(a, 0, "width", 0) - (sign ? 1 : 0)), Value("0")}, {}});
             return sign ? rt.text(s.substr(0, 1) + padded.as_string()) : padded;
         }},
    };
    return table;
}

const std::unordered_map<std::string_view, Method>& dict_methods() {
    static const std::unordered_map<std::string_view, Method> table = {
        {"copy", [](Runtime&, const Value& self, const Args&) -> Value { return self; }},
        {"get",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             const Value& key = rt.needed_arg(a, 0, "key");
             const Value* found = key.is_string() ? self.find(key.as_string()) : nullptr;
             if (found) return *found;
             const Value* otherwise = a.find(1, "default");
             return otherwise ? *otherwise : Value();
         }},
        {"items",
         [](Runtime& rt, const Value& self, const Args&) -> Value {
             std::vector<Value> out;
             for (const auto& [k, v] : self.as_dict().entries())
                 out.push_back(rt.list({rt.text(k), v}, Value::Sequence::tuple));
             return rt.list(std::move(out));
         }},
        {"keys",
         [](Runtime& rt, const Value& self, const Args&) -> Value { return rt.items(self); }},
        {"values",
         [](Runtime& rt, const Value& self, const Args&) -> Value {
             std::vector<Value> out;
             for (const auto& entry : self.as_dict().entries())
                 out.push_back(entry.second);
             return rt.list(std::move(out));
         }},
    };
    return table;
}

const std::unordered_map<std::string_view, Method>& list_methods() {
    static const std::unordered_map<std::string_view, Method> table = {
        {"copy", [](Runtime&, const Value& self, const Args&) -> Value { return self; }},
        {"count",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             const Value& wanted = rt.needed_arg(a, 0, "value");
             return std::count_if(self.as_list().begin(), self.as_list().end(),
                                  [&](const Value& v) { return rt.equals(v, wanted); });
         }},
        {"index",
         [](Runtime& rt, const Value& self, const Args& a) -> Value {
             const Value& wanted = rt.needed_arg(a, 0, "value");
             const auto& items = self.as_list();
             for (size_t i = 0; i < items.size(); ++i)
                 if (rt.equals(items[i], wanted)) return i;
             rt.fail("value is not in the list");
         }},
    };
    return table;
}

constexpr std::string_view kChanging[] = {"append",     "clear",   "extend", "insert",
                                          "pop",        "popitem", "remove", "sort",
                                          "setdefault", "update",  "reverse"};

}  // namespace

Value Runtime::method(const Value& object, std::string_view name, const Args& args) {
    charge(1);
    const std::unordered_map<std::string_view, Method>* table = nullptr;
    if (object.is_string()) table = &string_methods();
    if (object.is_dict()) table = &dict_methods();
    if (object.is_list()) table = &list_methods();
    if (table) {
        const auto it = table->find(name);
        if (it != table->end()) return it->second(*this, object, args);
        if (std::find(std::begin(kChanging), std::end(kChanging), name) != std::end(kChanging))
            fail(fmt::format(
                "'{}' would change a {}; templates may not, use namespace() and new values", name,
                type_name(object)));
    }
    if (object.is_undefined()) fail(fmt::format("method '{}' of an undefined value", name));
    fail(fmt::format("'{}' has no method '{}'", type_name(object), name));
}

}  // namespace terrace::jinja
