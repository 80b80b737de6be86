// See template_value.h.
// SPDX-License-Identifier: MIT
#include "text/template_value.h"

#include <fmt/format.h>
#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/utf8.h"

namespace terrace {
namespace {

constexpr size_t kIndexAbove = 12;  // entries; a linear search is faster below

constexpr uint64_t kBytesPerStep = 64;

uint64_t add_weight(uint64_t a, uint64_t b) {
    return a > UINT64_MAX / 2 - b ? UINT64_MAX / 2 : a + b;
}

Result<Value> convert(simdjson::dom::element e, std::string_view where, int depth) {
    using simdjson::dom::element_type;
    if (depth > Value::kMaxDepth)
        return Error{Code::invalid_argument,
                     fmt::format("{}: nested deeper than {} levels", where, Value::kMaxDepth)};
    switch (e.type()) {
        case element_type::NULL_VALUE:
            return Value();
        case element_type::BOOL:
            return Value(bool(e));
        case element_type::INT64:
            return Value(int64_t(e));
        case element_type::UINT64:
            return Value(static_cast<double>(uint64_t(e)));
        case element_type::DOUBLE:
            return Value(double(e));
        case element_type::STRING:
            return Value(std::string_view(e));
        case element_type::ARRAY: {
            std::vector<Value> items;
            for (const auto item : simdjson::dom::array(e)) {
                TERRACE_ASSIGN(Value v, convert(item, where, depth + 1));
                items.push_back(std::move(v));
            }
            return Value::list(std::move(items));
        }
        case element_type::OBJECT: {
            Dict entries;
            for (const auto& [key, item] : simdjson::dom::object(e)) {
                TERRACE_ASSIGN(Value v, convert(item, where, depth + 1));
                entries.set(std::string(key), std::move(v));
            }
            return Value::dict(std::move(entries));
        }
    }
    return Value();
}

void quote_python(std::string& out, std::string_view s) {
    const bool use_double = s.find('\'') != s.npos && s.find('"') == s.npos;
    const char quote = use_double ? '"' : '\'';
    out += quote;
    while (!s.empty()) {
        const Utf8Step step = utf8_step(s);
        const char32_t p = step.kind == Utf8Kind::valid ? step.point : 0xFFFD;
        if (p == static_cast<char32_t>(quote) || p == '\\') {
            out += '\\';
            out += static_cast<char>(p);
        } else if (p == '\n') {
            out += "\\n";
        } else if (p == '\r') {
            out += "\\r";
        } else if (p == '\t') {
            out += "\\t";
        } else if (p >= 0x20 && p < 0x7F) {
            out += static_cast<char>(p);
        } else {
            bool printable = p >= 0xA0;
            if (printable) switch (utf8proc_category(static_cast<int32_t>(p))) {
                    case UTF8PROC_CATEGORY_CN:
                    case UTF8PROC_CATEGORY_CC:
                    case UTF8PROC_CATEGORY_CF:
                    case UTF8PROC_CATEGORY_CS:
                    case UTF8PROC_CATEGORY_CO:
                    case UTF8PROC_CATEGORY_ZL:
                    case UTF8PROC_CATEGORY_ZP:
                    case UTF8PROC_CATEGORY_ZS:
                        printable = false;
                        break;
                    default:
                        break;
                }
            if (printable)
                append_utf8(out, p);
            else if (p < 0x100)
                out += fmt::format("\\x{:02x}", static_cast<uint32_t>(p));
            else if (p < 0x10000)
                out += fmt::format("\\u{:04x}", static_cast<uint32_t>(p));
            else
                out += fmt::format("\\U{:08x}", static_cast<uint32_t>(p));
        }
        s.remove_prefix(step.bytes);
    }
    out += quote;
}

void append_repr(std::string& out, const Value& v) {
    switch (v.kind()) {
        case Value::Kind::undefined:
            out += "Undefined";
            return;
        case Value::Kind::none:
            out += "None";
            return;
        case Value::Kind::boolean:
            out += v.as_bool() ? "True" : "False";
            return;
        case Value::Kind::integer:
            out += std::to_string(v.as_integer());
            return;
        case Value::Kind::real:
            out += python_float(v.as_real());
            return;
        case Value::Kind::string:
            quote_python(out, v.as_string());
            return;
        case Value::Kind::object:
            out += "<object>";
            return;
        case Value::Kind::list: {
            const bool tuple = v.is_tuple();
            const auto& items = v.as_list();
            out += tuple ? '(' : '[';
            for (size_t i = 0; i < items.size(); ++i) {
                if (i) out += ", ";
                append_repr(out, items[i]);
            }
            if (tuple && items.size() == 1) out += ',';
            out += tuple ? ')' : ']';
            return;
        }
        case Value::Kind::dict: {
            out += '{';
            bool first = true;
            for (const auto& [key, item] : v.as_dict().entries()) {
                if (!first) out += ", ";
                first = false;
                quote_python(out, key);
                out += ": ";
                append_repr(out, item);
            }
            out += '}';
            return;
        }
    }
}

void quote_json(std::string& out, std::string_view s, bool ensure_ascii) {
    out += '"';
    while (!s.empty()) {
        const auto c = static_cast<uint8_t>(s[0]);
        if (c < 0x80) {
            switch (c) {
                case '"':
                    out += "\\\"";
                    break;
                case '\\':
                    out += "\\\\";
                    break;
                case '\n':
                    out += "\\n";
                    break;
                case '\r':
                    out += "\\r";
                    break;
                case '\t':
                    out += "\\t";
                    break;
                case '\b':
                    out += "\\b";
                    break;
                case '\f':
                    out += "\\f";
                    break;
                default:
                    if (c < 0x20)
                        out += fmt::format("\\u{:04x}", unsigned{c});
                    else
                        out += static_cast<char>(c);
            }
            s.remove_prefix(1);
            continue;
        }
        const Utf8Step step = utf8_step(s);
        const char32_t p = step.kind == Utf8Kind::valid ? step.point : 0xFFFD;
        if (!ensure_ascii) {
            append_utf8(out, p);
        } else if (p < 0x10000) {
            out += fmt::format("\\u{:04x}", static_cast<uint32_t>(p));
        } else {
            const uint32_t rest = static_cast<uint32_t>(p) - 0x10000;
            out +=
                fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
        }
        s.remove_prefix(step.bytes);
    }
    out += '"';
}

Status append_json(std::string& out, const Value& v, const JsonStyle& style, int level) {
    const auto new_line = [&](int at) {
        if (!style.pretty) return;
        out += '\n';
        for (int i = 0; i < at; ++i)
            out += style.indent;
    };
    switch (v.kind()) {
        case Value::Kind::undefined:
            return Error{Code::invalid_argument, "an undefined value cannot be written as JSON"};
        case Value::Kind::object:
            return Error{Code::invalid_argument, "an object cannot be written as JSON"};
        case Value::Kind::none:
            out += "null";
            return {};
        case Value::Kind::boolean:
            out += v.as_bool() ? "true" : "false";
            return {};
        case Value::Kind::integer:
            out += std::to_string(v.as_integer());
            return {};
        case Value::Kind::real: {
            const double d = v.as_real();
            out += std::isnan(d)   ? "NaN"
                   : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity")
                                   : python_float(d);
            return {};
        }
        case Value::Kind::string:
            quote_json(out, v.as_string(), style.ensure_ascii);
            return {};
        case Value::Kind::list: {
            const auto& items = v.as_list();
            out += '[';
            for (size_t i = 0; i < items.size(); ++i) {
                if (i) out += style.item_separator;
                new_line(level + 1);
                TERRACE_TRY(append_json(out, items[i], style, level + 1));
            }
            if (!items.empty()) new_line(level);
            out += ']';
            return {};
        }
        case Value::Kind::dict: {
            std::vector<const Dict::Entry*> entries;
            for (const auto& entry : v.as_dict().entries())
                entries.push_back(&entry);
            if (style.sort_keys)
                std::sort(entries.begin(), entries.end(),
                          [](const auto* a, const auto* b) { return a->first < b->first; });
            out += '{';
            for (size_t i = 0; i < entries.size(); ++i) {
                if (i) out += style.item_separator;
                new_line(level + 1);
                quote_json(out, entries[i]->first, style.ensure_ascii);
                out += style.key_separator;
                TERRACE_TRY(append_json(out, entries[i]->second, style, level + 1));
            }
            if (!entries.empty()) new_line(level);
            out += '}';
            return {};
        }
    }
    return {};
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
    if (entries_.size() > kIndexAbove) {
        const auto it = index_.find(std::string(key));
        return it == index_.end() ? nullptr : &entries_[it->second].second;
    }
    for (const auto& [name, value] : entries_)
        if (name == key) return &value;
    return nullptr;
}

void Dict::set(std::string key, Value value) {
    if (const Value* old = find(key)) {
        *const_cast<Value*>(old) = std::move(value);
        return;
    }
    entries_.emplace_back(std::move(key), std::move(value));
    if (entries_.size() == kIndexAbove + 1)
        for (size_t i = 0; i < entries_.size(); ++i)
            index_.emplace(entries_[i].first, i);
    else if (entries_.size() > kIndexAbove)
        index_.emplace(entries_.back().first, entries_.size() - 1);
}

Value Value::undefined() {
    Value v;
    v.data_ = Undefined{};
    return v;
}

Value Value::list(std::vector<Value> items, Sequence kind) {
    int below = 0;
    uint64_t weight = 1;
    for (const Value& item : items) {
        below = std::max(below, item.depth());
        weight = add_weight(weight, item.weight());
    }
    Value v;
    v.data_ = std::make_shared<ListData>(ListData{std::move(items), kind, below + 1, weight});
    return v;
}

Value Value::dict() {
    return dict(Dict{});
}

Value Value::dict(Dict entries) {
    int below = 0;
    uint64_t weight = 1;
    for (const auto& [key, item] : entries.entries()) {
        below = std::max(below, item.depth());
        weight = add_weight(weight, add_weight(item.weight(), key.size() / kBytesPerStep));
    }
    Value v;
    v.data_ = std::make_shared<DictData>(DictData{std::move(entries), below + 1, weight});
    return v;
}

Result<Value> Value::from_json(std::string_view json, std::string_view where) {
    simdjson::dom::parser parser;
    const simdjson::padded_string padded(json);
    simdjson::dom::element document;
    if (const auto error = parser.parse(padded).get(document))
        return Error{Code::invalid_argument,
                     fmt::format("{}: not JSON: {}", where, simdjson::error_message(error))};
    return convert(document, where, 1);
}

bool Value::is_tuple() const {
    return is_list() && std::get<std::shared_ptr<ListData>>(data_)->kind == Sequence::tuple;
}

int64_t Value::as_integer() const {
    if (is(Kind::boolean)) return as_bool() ? 1 : 0;
    return std::get<int64_t>(data_);
}

double Value::as_real() const {
    return is(Kind::real) ? std::get<double>(data_) : static_cast<double>(as_integer());
}

const std::string& Value::as_string() const {
    return *std::get<std::shared_ptr<const std::string>>(data_);
}

const std::vector<Value>& Value::as_list() const {
    return std::get<std::shared_ptr<ListData>>(data_)->items;
}

const Dict& Value::as_dict() const {
    return std::get<std::shared_ptr<DictData>>(data_)->entries;
}

const std::shared_ptr<TemplateObject>& Value::as_object() const {
    return std::get<std::shared_ptr<TemplateObject>>(data_);
}

const Value* Value::find(std::string_view key) const {
    return is_dict() ? as_dict().find(key) : nullptr;
}

Value& Value::set(std::string key, Value value) {
    if (!is_dict()) *this = dict();
    auto& shared = std::get<std::shared_ptr<DictData>>(data_);
    if (shared.use_count() > 1) shared = std::make_shared<DictData>(*shared);
    shared->depth = std::max(shared->depth, value.depth() + 1);
    shared->weight = add_weight(shared->weight, value.weight());
    shared->entries.set(std::move(key), std::move(value));
    return *this;
}

bool Value::truthy() const {
    switch (kind()) {
        case Kind::undefined:
        case Kind::none:
            return false;
        case Kind::boolean:
            return as_bool();
        case Kind::integer:
            return as_integer() != 0;
        case Kind::real:
            return as_real() != 0;
        case Kind::string:
            return !as_string().empty();
        case Kind::list:
            return !as_list().empty();
        case Kind::dict:
            return as_dict().size() != 0;
        case Kind::object:
            return true;
    }
    return false;
}

int Value::depth() const {
    if (is_list()) return std::get<std::shared_ptr<ListData>>(data_)->depth;
    if (is_dict()) return std::get<std::shared_ptr<DictData>>(data_)->depth;
    return 0;
}

uint64_t Value::weight() const {
    if (is_list()) return std::get<std::shared_ptr<ListData>>(data_)->weight;
    if (is_dict()) return std::get<std::shared_ptr<DictData>>(data_)->weight;
    return is_string() ? 1 + as_string().size() / kBytesPerStep : 1;
}

std::string Value::str() const {
    if (is_string()) return as_string();
    if (is_undefined()) return {};
    return repr();
}

std::string Value::repr() const {
    std::string out;
    append_repr(out, *this);
    return out;
}

bool equal(const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) {
        if (a.is(Value::Kind::real) || b.is(Value::Kind::real)) return a.as_real() == b.as_real();
        return a.as_integer() == b.as_integer();
    }
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
        case Value::Kind::string:
            return a.as_string() == b.as_string();
        case Value::Kind::object:
            return a.as_object() == b.as_object();
        case Value::Kind::list:
            return a.is_tuple() == b.is_tuple() &&
                   std::equal(a.as_list().begin(), a.as_list().end(), b.as_list().begin(),
                              b.as_list().end(), equal);
        case Value::Kind::dict: {
            if (a.as_dict().size() != b.as_dict().size()) return false;
            for (const auto& [key, value] : a.as_dict().entries()) {
                const Value* other = b.as_dict().find(key);
                if (!other || !equal(value, *other)) return false;
            }
            return true;
        }
        default:
            return true;
    }
}

Result<std::string> to_json(const Value& value, const JsonStyle& style) {
    std::string out;
    TERRACE_TRY(append_json(out, value, style, 0));
    return out;
}

std::string python_float(double v) {
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
    std::array<char, 64> digits{};
    const auto r = std::to_chars(digits.data(), digits.data() + digits.size(), v,
                                 std::chars_format::scientific);
    std::string s(digits.data(), r.ptr);
    const size_t e = s.find('e');
    const int exponent = std::stoi(s.substr(e + 1));
    std::string mantissa = s.substr(0, e);
    if (exponent < -4 || exponent >= 16)
        return fmt::format("{}e{}{:02d}", mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
    const auto fixed =
        std::to_chars(digits.data(), digits.data() + digits.size(), v, std::chars_format::fixed);
    s.assign(digits.data(), fixed.ptr);
    if (s.find('.') == s.npos) s += ".0";
    return s;
}

}  // namespace terrace
