// Expressions of chat templates. See template_eval.h; the rules are Python's and Jinja 3's.
// SPDX-License-Identifier: MIT
#include "text/template_eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "text/template_text.h"
#include "text/utf8.h"

namespace terrace::jinja {
namespace {

using Kind = Expr::Kind;

std::string_view symbol(Op op) {
    switch (op) {
        case Op::add:
            return "+";
        case Op::sub:
            return "-";
        case Op::mul:
            return "*";
        case Op::div:
            return "/";
        case Op::floor_div:
            return "//";
        case Op::mod:
            return "%";
        case Op::pow:
            return "**";
        default:
            return "?";
    }
}

}  // namespace

std::string describe(const Expr& e) {
    switch (e.kind) {
        case Kind::name:
            return e.text;
        case Kind::attribute:
            return describe(*e.args[0]) + "." + e.text;
        case Kind::item:
            return describe(*e.args[0]) + (e.args[1]->kind == Kind::constant
                                               ? "[" + e.args[1]->value.repr() + "]"
                                               : "[...]");
        case Kind::call:
            return describe(*e.args[0]) + "(...)";
        default:
            return "the value";
    }
}

Value Interpreter::lookup(std::string_view name) {
    for (Scope* s = scope_; s; s = s->parent)
        if (const Value* v = s->find(name)) return *v;
    if (const Value* v = context_.find(name)) return *v;
    return global(name);
}

Args Interpreter::eval_args(const Expr& e) {
    Args args;
    for (size_t i = 1; i < e.args.size(); ++i)
        args.positional.push_back(eval(*e.args[i]));
    for (const auto& [name, value] : e.kwargs)
        args.named.emplace_back(name, eval(*value));
    return args;
}

Value Interpreter::apply_filters(const Expr& e, Value innermost) {
    Value in = e.args[0] ? apply_filters(*e.args[0], std::move(innermost)) : std::move(innermost);
    const Args args = eval_args(e);
    rt_.at_line(e.line);
    return rt_.filter(e.text, in, args);
}

Value Interpreter::eval(const Expr& e) {
    const Nesting nesting(*this);
    rt_.charge(1);
    switch (e.kind) {
        case Kind::constant:
            return e.value;
        case Kind::name:
            return lookup(e.text);
        case Kind::list:
        case Kind::tuple: {
            std::vector<Value> items;
            for (const auto& a : e.args)
                items.push_back(eval(*a));
            return rt_.list(std::move(items),
                            e.kind == Kind::tuple ? Value::Sequence::tuple : Value::Sequence::list);
        }
        case Kind::dict: {
            Dict entries;
            for (size_t i = 0; i < e.args.size(); i += 2) {
                const Value key = eval(*e.args[i]);
                if (!key.is_string())
                    rt_.fail(fmt::format("dictionary keys are strings, not {}", type_name(key)));
                entries.set(key.as_string(), eval(*e.args[i + 1]));
            }
            return rt_.dict(std::move(entries));
        }
        case Kind::attribute:
            return eval_attribute(e);
        case Kind::item: {
            const Value object = eval(*e.args[0]);
            const Value key = eval(*e.args[1]);
            rt_.at_line(e.line);
            if (object.is_undefined())
                rt_.fail(fmt::format("'{}' is undefined", describe(*e.args[0])));
            return rt_.item(object, key);
        }
        case Kind::slice:
            return eval_slice(e);
        case Kind::call:
            return call(e, Value::undefined());
        case Kind::filter: {
            const Value in = eval(*e.args[0]);
            const Args args = eval_args(e);
            rt_.at_line(e.line);
            return rt_.filter(e.text, in, args);
        }
        case Kind::test: {
            // Testing for being defined must not fail on a path through an undefined value.
            const Value in = eval(*e.args[0]);
            const Args args = eval_args(e);
            rt_.at_line(e.line);
            return rt_.test(e.text, in, args);
        }
        case Kind::unary:
            return eval_unary(e.ops[0], eval(*e.args[0]));
        case Kind::binary: {
            const Value a = eval(*e.args[0]);
            const Value b = eval(*e.args[1]);
            rt_.at_line(e.line);
            if (a.is_undefined() || b.is_undefined())
                rt_.fail(
                    fmt::format("'{}' is undefined", describe(*e.args[a.is_undefined() ? 0 : 1])));
            return eval_binary(e.ops[0], a, b);
        }
        case Kind::compare: {
            Value left = eval(*e.args[0]);
            for (size_t i = 0; i < e.ops.size(); ++i) {
                Value right = eval(*e.args[i + 1]);
                if (!eval_compare(e.ops[i], left, right)) return false;
                left = std::move(right);
            }
            return true;
        }
        case Kind::concat: {
            std::string out;
            for (const auto& a : e.args)
                out += rt_.str(eval(*a));
            return rt_.text(std::move(out));
        }
        case Kind::logical_and: {
            Value a = eval(*e.args[0]);
            return a.truthy() ? eval(*e.args[1]) : a;
        }
        case Kind::logical_or: {
            Value a = eval(*e.args[0]);
            return a.truthy() ? a : eval(*e.args[1]);
        }
        case Kind::logical_not:
            return !eval(*e.args[0]).truthy();
        case Kind::conditional:
            if (eval(*e.args[1]).truthy()) return eval(*e.args[0]);
            return e.args[2] ? eval(*e.args[2]) : Value::undefined();
    }
    return Value();
}

Value Interpreter::eval_attribute(const Expr& e) {
    const Value object = eval(*e.args[0]);
    rt_.at_line(e.line);
    if (object.is_undefined())
        rt_.fail(fmt::format("'{}' is undefined, so it has no '{}'", describe(*e.args[0]), e.text));
    if (object.is(Value::Kind::object))
        if (const auto* state = dynamic_cast<const LoopState*>(object.as_object().get()))
            return loop_attribute(*state, e.text);
    return rt_.attribute(object, e.text);
}

Value Interpreter::eval_unary(Op op, const Value& a) {
    if (!a.is_number()) rt_.fail(fmt::format("sign before '{}'", type_name(a)));
    if (a.is(Value::Kind::real)) return op == Op::negate ? -a.as_real() : a.as_real();
    const int64_t v = a.as_integer();
    if (op == Op::plus) return v;
    if (v == INT64_MIN) rt_.fail("integer does not fit into 64 bits");
    return -v;
}

Value Interpreter::eval_binary(Op op, const Value& a, const Value& b) {
    using VK = Value::Kind;
    const auto mismatch = [&]() -> Value {
        rt_.fail(
            fmt::format("'{}' {} '{}' has no meaning", type_name(a), symbol(op), type_name(b)));
    };
    if (a.is_number() && b.is_number()) {
        const bool real = a.is(VK::real) || b.is(VK::real) || op == Op::div;
        if (real) {
            const double x = a.as_real(), y = b.as_real();
            if (y == 0 && (op == Op::div || op == Op::floor_div || op == Op::mod))
                rt_.fail("division by zero");
            switch (op) {
                case Op::add:
                    return x + y;
                case Op::sub:
                    return x - y;
                case Op::mul:
                    return x * y;
                case Op::div:
                    return x / y;
                case Op::floor_div:
                    return std::floor(x / y);
                case Op::mod: {
                    const double m = std::fmod(x, y);
                    return m != 0 && (m < 0) != (y < 0) ? m + y : m;
                }
                default:
                    return std::pow(x, y);
            }
        }
        const int64_t x = a.as_integer(), y = b.as_integer();
        int64_t r = 0;
        bool overflow = false;
        switch (op) {
            case Op::add:
                overflow = __builtin_add_overflow(x, y, &r);
                break;
            case Op::sub:
                overflow = __builtin_sub_overflow(x, y, &r);
                break;
            case Op::mul:
                overflow = __builtin_mul_overflow(x, y, &r);
                break;
            case Op::pow: {
                if (y < 0) return std::pow(static_cast<double>(x), static_cast<double>(y));
                r = 1;
                for (int64_t i = 0; i < y && !overflow && r != 0 && !(x == 1); ++i) {
                    rt_.charge(1);
                    overflow = __builtin_mul_overflow(r, x, &r);
                }
                break;
            }
            default:
                if (y == 0) rt_.fail("division by zero");
                if (x == INT64_MIN && y == -1) {
                    overflow = true;
                    break;
                }
                r = op == Op::floor_div ? x / y - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0)
                                        : x % y + ((x % y != 0 && (x < 0) != (y < 0)) ? y : 0);
        }
        if (overflow) rt_.fail("integer does not fit into 64 bits");
        return r;
    }
    if (op == Op::add && a.is_string() && b.is_string()) {
        rt_.charge_bytes(a.as_string().size() + b.as_string().size());
        return Value(a.as_string() + b.as_string());
    }
    if (op == Op::add && a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple()) {
        rt_.charge(a.as_list().size() + b.as_list().size());
        std::vector<Value> items = a.as_list();
        items.insert(items.end(), b.as_list().begin(), b.as_list().end());
        return rt_.list(std::move(items),
                        a.is_tuple() ? Value::Sequence::tuple : Value::Sequence::list);
    }
    if (op == Op::mod && a.is_string()) return rt_.method(a, "%", {{b}, {}});
    if (op == Op::mul) {
        const Value& many = a.is_number() ? b : a;
        const Value& times = a.is_number() ? a : b;
        if (!times.is_number() || times.is(VK::real)) return mismatch();
        const auto n = static_cast<uint64_t>(std::max<int64_t>(0, times.as_integer()));
        if (many.is_string()) {
            const std::string& s = many.as_string();
            if (!s.empty() && n > rt_.max_output() / s.size()) rt_.fail("the string is too long");
            rt_.charge_bytes(n * s.size());
            std::string out;
            if (!s.empty())
                for (uint64_t i = 0; i < n; ++i)
                    out += s;
            return Value(std::move(out));
        }
        if (many.is_list()) {
            const auto& items = many.as_list();
            if (!items.empty()) rt_.charge(n > (1ull << 40) ? n : n * items.size());
            std::vector<Value> out;
            if (!items.empty())
                for (uint64_t i = 0; i < n; ++i)
                    out.insert(out.end(), items.begin(), items.end());
            return rt_.list(std::move(out),
                            many.is_tuple() ? Value::Sequence::tuple : Value::Sequence::list);
        }
    }
    return mismatch();
}

bool Interpreter::eval_compare(Op op, const Value& a, const Value& b) {
    switch (op) {
        case Op::eq:
            return rt_.equals(a, b);
        case Op::ne:
            return !rt_.equals(a, b);
        case Op::lt:
            return rt_.less(a, b);
        case Op::gt:
            return rt_.less(b, a);
        case Op::le:
            return rt_.less(a, b) || rt_.equals(a, b);
        case Op::ge:
            return rt_.less(b, a) || rt_.equals(a, b);
        case Op::in:
            return rt_.contains(b, a);
        default:
            return !rt_.contains(b, a);
    }
}

// Python's slices: [start:stop:step] with negative indexes from the end, clamped.
Value Interpreter::eval_slice(const Expr& e) {
    const Value object = eval(*e.args[0]);
    std::array<Value, 3> bounds;
    for (size_t i = 0; i < 3; ++i)
        if (e.args[i + 1]) bounds[i] = eval(*e.args[i + 1]);
    rt_.at_line(e.line);
    if (object.is_undefined()) rt_.fail(fmt::format("'{}' is undefined", describe(*e.args[0])));
    if (!object.is_list() && !object.is_string())
        rt_.fail(fmt::format("'{}' cannot be sliced", type_name(object)));
    for (const Value& b : bounds)
        if (!b.is_none() && !b.is(Value::Kind::integer) && !b.is(Value::Kind::boolean))
            rt_.fail(fmt::format("slice bounds are integers, not {}", type_name(b)));

    const Value items = rt_.items(object);
    const auto& list = items.as_list();
    const int64_t n = std::ssize(list);
    const int64_t step =
        bounds[2].is_none() ? 1 : std::clamp(bounds[2].as_integer(), -n - 1, n + 1);
    if (step == 0) rt_.fail("slice step is zero");
    const auto bound = [&](const Value& b, int64_t otherwise) {
        if (b.is_none()) return otherwise;
        int64_t i = b.as_integer();
        if (i < 0) i = i < -n ? -1 : i + n;
        return std::clamp<int64_t>(i, step > 0 ? 0 : -1, step > 0 ? n : n - 1);
    };
    const int64_t start = bound(bounds[0], step > 0 ? 0 : n - 1);
    const int64_t stop = bound(bounds[1], step > 0 ? n : -1);
    std::vector<Value> out;
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step)
        out.push_back(list[static_cast<size_t>(i)]);
    if (object.is_list())
        return rt_.list(std::move(out),
                        object.is_tuple() ? Value::Sequence::tuple : Value::Sequence::list);
    std::string text;
    for (const Value& c : out)
        text += c.as_string();
    return rt_.text(std::move(text));
}

}  // namespace terrace::jinja
