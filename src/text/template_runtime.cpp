// See template_runtime.h.
// SPDX-License-Identifier: MIT
#include "text/template_runtime.h"

#include <fmt/format.h>

#include <charconv>

#include "text/template_lexer.h"
#include "text/template_text.h"
#include "text/utf8.h"

namespace terrace::jinja {

const Value* Args::find(size_t i, std::string_view name) const {
    for (const auto& [key, value] : named)
        if (key == name) return &value;
    return i < positional.size() ? &positional[i] : nullptr;
}

std::string_view type_name(const Value& v) {
    switch (v.kind()) {
        case Value::Kind::undefined:
            return "undefined";
        case Value::Kind::none:
            return "none";
        case Value::Kind::boolean:
            return "bool";
        case Value::Kind::integer:
            return "int";
        case Value::Kind::real:
            return "float";
        case Value::Kind::string:
            return "str";
        case Value::Kind::list:
            return v.is_tuple() ? "tuple" : "list";
        case Value::Kind::dict:
            return "dict";
        case Value::Kind::object:
            return "object";
    }
    return "object";
}

void Runtime::fail(std::string_view what) const {
    fail_at(where_, line_, what);
}

void Runtime::charge(uint64_t steps) {
    // Guarded against wrap: weights saturate at 2^63.
    steps_ += std::min(steps, limits_.max_steps + 1);
    if (steps_ > limits_.max_steps)
        fail(fmt::format("the template does more than {} steps", limits_.max_steps));
}

void Runtime::charge_bytes(uint64_t bytes) {
    if (bytes > limits_.max_output)
        fail(fmt::format("a string of {} bytes, at most {}", bytes, limits_.max_output));
    bytes_ += bytes;
    if (bytes_ > limits_.max_bytes)
        fail(fmt::format("the template makes more than {} bytes of strings", limits_.max_bytes));
    charge(bytes / 64);
}

Value Runtime::text(std::string s) {
    charge_bytes(s.size());
    return Value(std::move(s));
}

Value Runtime::list(std::vector<Value> items, Value::Sequence kind) {
    charge(items.size() + 1);
    Value v = Value::list(std::move(items), kind);
    if (v.depth() > Value::kMaxDepth) fail("values nested too deeply");
    return v;
}

Value Runtime::dict(Dict entries) {
    charge(entries.size() + 1);
    Value v = Value::dict(std::move(entries));
    if (v.depth() > Value::kMaxDepth) fail("values nested too deeply");
    return v;
}

std::string Runtime::str(const Value& v) {
    charge(v.weight());
    std::string s = v.str();
    charge_bytes(s.size());
    return s;
}

bool Runtime::equals(const Value& a, const Value& b) {
    charge(std::min(a.weight(), b.weight()));
    return equal(a, b);
}

bool Runtime::less(const Value& a, const Value& b) {
    charge(std::min(a.weight(), b.weight()));
    if (a.is_number() && b.is_number()) {
        if (a.is(Value::Kind::real) || b.is(Value::Kind::real)) return a.as_real() < b.as_real();
        return a.as_integer() < b.as_integer();
    }
    if (a.is_string() && b.is_string()) return a.as_string() < b.as_string();
    if (a.is_list() && b.is_list()) {
        const auto &x = a.as_list(), &y = b.as_list();
        for (size_t i = 0; i < x.size() && i < y.size(); ++i)
            if (!equals(x[i], y[i])) return less(x[i], y[i]);
        return x.size() < y.size();
    }
    fail(fmt::format("'{}' and '{}' have no order", type_name(a), type_name(b)));
}

bool Runtime::contains(const Value& container, const Value& item) {
    switch (container.kind()) {
        case Value::Kind::undefined:
            return false;
        case Value::Kind::string:
            if (!item.is_string())
                fail(fmt::format("'in' a string needs a string, not {}", type_name(item)));
            charge((container.as_string().size() + item.as_string().size()) / 64);
            return find_text(container.as_string(), item.as_string()) != std::string::npos;
        case Value::Kind::list:
            for (const Value& v : container.as_list()) {
                charge(1);
                if (equals(v, item)) return true;
            }
            return false;
        case Value::Kind::dict:
            return item.is_string() && container.find(item.as_string());
        default:
            fail(fmt::format("'in' needs a container, not {}", type_name(container)));
    }
}

Value Runtime::attribute(const Value& object, std::string_view name) {
    if (object.is_undefined()) fail(fmt::format("attribute '{}' of an undefined value", name));
    if (const Value* v = object.find(name)) return *v;
    if (object.is(Value::Kind::object))
        if (const auto* ns = dynamic_cast<const Namespace*>(object.as_object().get()))
            if (const Value* v = ns->members.find(name)) return *v;
    return Value::undefined();
}

Value Runtime::item(const Value& object, const Value& key) {
    if (object.is_undefined()) fail("item of an undefined value");
    if (object.is_dict() && key.is_string()) return attribute(object, key.as_string());
    const bool integer = key.is(Value::Kind::integer) || key.is(Value::Kind::boolean);
    if (object.is_list() && integer) {
        const auto& items = object.as_list();
        int64_t i = key.as_integer();
        if (i < 0) i += std::ssize(items);
        return i >= 0 && i < std::ssize(items) ? items[static_cast<size_t>(i)] : Value::undefined();
    }
    if (object.is_string() && integer) {
        const std::string& s = object.as_string();
        charge(s.size() / 64);
        int64_t i = key.as_integer();
        if (i < 0) i += static_cast<int64_t>(count_characters(s));
        if (i < 0) return Value::undefined();
        const size_t at = character_offset(s, static_cast<size_t>(i));
        if (at >= s.size()) return Value::undefined();
        return Value(s.substr(at, utf8_step(std::string_view(s).substr(at)).bytes));
    }
    return key.is_string() ? attribute(object, key.as_string()) : Value::undefined();
}

Value Runtime::path(const Value& object, std::string_view dotted, const Value* otherwise) {
    Value v = object;
    while (true) {
        const size_t dot = dotted.find('.');
        const std::string_view part = dotted.substr(0, dot);
        int64_t index = 0;
        const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
        const bool number =
            !part.empty() && parsed.ec == std::errc{} && parsed.ptr == part.data() + part.size();
        v = number ? item(v, Value(index)) : attribute(v, part);
        if (otherwise && v.is_undefined()) v = *otherwise;
        if (dot == std::string_view::npos) return v;
        dotted.remove_prefix(dot + 1);
    }
}

Value Runtime::items(const Value& v) {
    switch (v.kind()) {
        case Value::Kind::list:
            return v;
        case Value::Kind::undefined:
            return Value::list({});
        case Value::Kind::dict: {
            std::vector<Value> keys;
            charge(v.weight());
            for (const auto& entry : v.as_dict().entries())
                keys.emplace_back(entry.first);
            return list(std::move(keys));
        }
        case Value::Kind::string: {
            std::vector<Value> characters;
            std::string_view rest = v.as_string();
            charge(rest.size());
            while (!rest.empty()) {
                const size_t n = utf8_step(rest).bytes;
                characters.emplace_back(rest.substr(0, n));
                rest.remove_prefix(n);
            }
            return list(std::move(characters));
        }
        default:
            fail(fmt::format("'{}' cannot be iterated", type_name(v)));
    }
}

std::string Runtime::text_arg(const Args& args, size_t i, std::string_view name,
                              std::string_view otherwise) {
    const Value* v = args.find(i, name);
    if (!v || v->is_none() || v->is_undefined()) return std::string(otherwise);
    if (!v->is_string()) fail(fmt::format("'{}' needs a string, not {}", name, type_name(*v)));
    return v->as_string();
}

int64_t Runtime::int_arg(const Args& args, size_t i, std::string_view name, int64_t otherwise) {
    const Value* v = args.find(i, name);
    if (!v || v->is_none()) return otherwise;
    if (!v->is(Value::Kind::integer) && !v->is(Value::Kind::boolean))
        fail(fmt::format("'{}' needs an integer, not {}", name, type_name(*v)));
    return v->as_integer();
}

bool Runtime::bool_arg(const Args& args, size_t i, std::string_view name, bool otherwise) {
    const Value* v = args.find(i, name);
    return v ? v->truthy() : otherwise;
}

const Value& Runtime::needed_arg(const Args& args, size_t i, std::string_view name) {
    const Value* v = args.find(i, name);
    if (!v) fail(fmt::format("argument '{}' is missing", name));
    return *v;
}

}  // namespace terrace::jinja
