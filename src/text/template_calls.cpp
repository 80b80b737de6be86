// Calls in chat templates: macros, call blocks, recursive loops, the loop variable and the global
// functions. See template_eval.h.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "text/template_eval.h"

namespace terrace::jinja {
namespace {

using Kind = Expr::Kind;

constexpr std::array<std::string_view, 5> kGlobals = {"range", "namespace", "raise_exception",
                                                      "strftime_now", "dict"};

}  // namespace

Value Interpreter::loop_attribute(const LoopState& state, std::string_view name) {
    const auto& items = state.items.as_list();
    if (name == "index") return state.index + 1;
    if (name == "index0") return state.index;
    if (name == "revindex") return items.size() - state.index;
    if (name == "revindex0") return items.size() - state.index - 1;
    if (name == "first") return state.index == 0;
    if (name == "last") return state.index + 1 == items.size();
    if (name == "length") return items.size();
    if (name == "depth") return state.depth;
    if (name == "depth0") return state.depth - 1;
    if (name == "previtem") return state.index > 0 ? items[state.index - 1] : Value::undefined();
    if (name == "nextitem")
        return state.index + 1 < items.size() ? items[state.index + 1] : Value::undefined();
    return Value::undefined();
}

Value Interpreter::loop_method(LoopState& state, std::string_view name, const Args& args) {
    if (name == "cycle") {
        if (args.positional.empty()) rt_.fail("loop.cycle needs values");
        return args.positional[state.index % args.positional.size()];
    }
    if (name == "changed") {
        Value now = rt_.list(args.positional, Value::Sequence::tuple);
        const bool same = !state.last_changed.is_undefined() && rt_.equals(now, state.last_changed);
        state.last_changed = std::move(now);
        return !same;
    }
    rt_.fail(fmt::format("loop has no method '{}'", name));
}

Value Interpreter::call(const Expr& e, const Value& caller) {
    const Expr& callee = *e.args[0];
    if (callee.kind == Kind::name) {
        const Value object = lookup(callee.text);
        const Args args = eval_args(e);
        rt_.at_line(e.line);
        if (object.is_undefined()) rt_.fail(fmt::format("no function named '{}'", callee.text));
        return call_object(object, args, caller);
    }
    if (callee.kind == Kind::attribute) {
        const Value object = eval(*callee.args[0]);
        const Args args = eval_args(e);
        rt_.at_line(e.line);
        if (object.is_undefined())
            rt_.fail(fmt::format("'{}' is undefined, so it has no method '{}'",
                                 describe(*callee.args[0]), callee.text));
        if (object.is(Value::Kind::object)) {
            if (auto* state = dynamic_cast<LoopState*>(object.as_object().get()))
                return loop_method(*state, callee.text, args);
            return call_object(rt_.attribute(object, callee.text), args, caller);
        }
        return rt_.method(object, callee.text, args);
    }
    const Value object = eval(callee);
    const Args args = eval_args(e);
    rt_.at_line(e.line);
    return call_object(object, args, caller);
}

Value Interpreter::call_object(const Value& object, const Args& args, const Value& caller) {
    if (object.is(Value::Kind::object)) {
        // Keeps the object while it runs: the variable that holds it may be assigned meanwhile.
        const std::shared_ptr<TemplateObject> alive = object.as_object();
        if (const auto* function = dynamic_cast<const Function*>(alive.get()))
            return call_global(function->name, args);
        if (const auto* macro = dynamic_cast<const Macro*>(alive.get()))
            return call_macro(*macro->stmt, args, caller, &root_);
        if (const auto* block = dynamic_cast<const Caller*>(alive.get())) {
            const auto open =
                std::find_if(callers_.begin(), callers_.end(),
                             [&](const OpenCall& c) { return c.serial == block->serial; });
            if (open == callers_.end()) rt_.fail("caller() outside of its call block");
            const OpenCall found = *open;
            return call_macro(*found.stmt, args, Value::undefined(), found.scope);
        }
        if (const auto* state = dynamic_cast<const LoopState*>(alive.get())) {
            if (!state->outer || !state->stmt->recursive || args.positional.size() != 1)
                rt_.fail("loop(items) needs a 'recursive' loop that is running");
            if (++calls_ > rt_.limits().max_call_depth) rt_.fail("loops recurse too deeply");
            std::string saved = std::exchange(out_, {});
            {
                const ScopeGuard guard(*this, state->outer);
                loop(*state->stmt, args.positional[0], state->depth + 1);
            }
            --calls_;
            return rt_.text(std::exchange(out_, std::move(saved)));
        }
    }
    rt_.fail(fmt::format("'{}' cannot be called", type_name(object)));
}

Value Interpreter::global(std::string_view name) {
    const auto it = std::find(kGlobals.begin(), kGlobals.end(), name);
    if (it == kGlobals.end()) return Value::undefined();
    auto function = std::make_shared<Function>();
    function->name = *it;
    return Value(std::shared_ptr<TemplateObject>(std::move(function)));
}

Value Interpreter::call_global(std::string_view name, const Args& args) {
    if (name == "range") return range(args);
    if (name == "strftime_now") return strftime_now(args);
    if (name == "raise_exception") {
        const Value* message = args.find(0, "message");
        rt_.fail("the chat template refuses: " + (message ? rt_.str(*message) : std::string()));
    }
    // namespace(...) and dict(...): members of a dictionary, then the named arguments.
    Dict members;
    if (const Value* from = args.find(0, "")) {
        if (!from->is_dict()) rt_.fail(fmt::format("{} of '{}'", name, type_name(*from)));
        rt_.charge(from->weight());
        members = from->as_dict();
    }
    for (const auto& [key, value] : args.named)
        members.set(key, value);
    if (name == "dict") return rt_.dict(std::move(members));
    auto ns = std::make_shared<Namespace>();
    ns->members = std::move(members);
    namespaces_.push_back(ns);
    return Value(std::shared_ptr<TemplateObject>(std::move(ns)));
}

Value Interpreter::range(const Args& args) {
    const size_t n = args.positional.size();
    if (n < 1 || n > 3) rt_.fail("range takes one to three integers");
    const int64_t start = n > 1 ? rt_.int_arg(args, 0, "start", 0) : 0;
    const int64_t stop = n > 1 ? rt_.int_arg(args, 1, "stop", 0) : rt_.int_arg(args, 0, "stop", 0);
    const int64_t step = n > 2 ? rt_.int_arg(args, 2, "step", 1) : 1;
    constexpr int64_t kBound = int64_t{1} << 60;
    if (step == 0) rt_.fail("range: step is zero");
    if (std::min({start, stop, step}) < -kBound || std::max({start, stop, step}) > kBound)
        rt_.fail("range: out of bounds");
    const int64_t count = step > 0 ? (stop > start ? (stop - start + step - 1) / step : 0)
                                   : (stop < start ? (start - stop - step - 1) / -step : 0);
    rt_.charge(static_cast<uint64_t>(count));
    std::vector<Value> items;
    items.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
        items.emplace_back(start + i * step);
    return rt_.list(std::move(items));
}

Value Interpreter::strftime_now(const Args& args) {
    const std::string format = rt_.text_arg(args, 0, "format", "%Y-%m-%d");
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    std::array<char, 1024> out{};
    if (format.empty()) return Value("");
    const size_t n = std::strftime(out.data(), out.size(), format.c_str(), &local);
    if (n == 0) rt_.fail("strftime_now: the result is empty or too long");
    return Value(std::string(out.data(), n));
}

}  // namespace terrace::jinja
