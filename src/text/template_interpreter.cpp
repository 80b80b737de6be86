// See template_interpreter.h. Statements and scopes; expressions are in template_eval.cpp.
//
// Scopes follow Jinja: for, macro, call, filter and with blocks open one, if and set do not. A
// macro sees its parameters and the template's top level, wherever it was defined.
// SPDX-License-Identifier: MIT
#include "text/template_interpreter.h"

#include <fmt/format.h>

#include "text/template_eval.h"

namespace terrace::jinja {

Interpreter::Interpreter(std::string_view where, const Value& context, const RenderLimits& limits)
    : rt_(where, limits), context_(context), scope_(&root_) {}

Interpreter::~Interpreter() {
    // A namespace may hold itself; emptying them breaks every cycle.
    for (const auto& ns : namespaces_)
        ns->members = {};
}

std::string Interpreter::run(const Body& body) {
    execute(body);
    return std::move(out_);
}

void Interpreter::emit(std::string_view s) {
    out_ += s;
    if (out_.size() > rt_.max_output())
        rt_.fail(fmt::format("the output exceeds {} bytes", rt_.max_output()));
}

std::string Interpreter::capture(const Body& body) {
    std::string saved = std::exchange(out_, {});
    execute(body);
    return std::exchange(out_, std::move(saved));
}

Value* Scope::find(std::string_view name) {
    for (auto& [key, value] : variables)
        if (key == name) return &value;
    return nullptr;
}

void Scope::set(std::string_view name, Value value) {
    if (Value* old = find(name))
        *old = std::move(value);
    else
        variables.emplace_back(name, std::move(value));
}

void Interpreter::assign(const Target& target, Value value) {
    if (!target.elements.empty()) {
        const Value items = rt_.items(value);
        const auto& list = items.as_list();
        if (list.size() != target.elements.size())
            rt_.fail(fmt::format("cannot unpack {} values into {} names", list.size(),
                                 target.elements.size()));
        for (size_t i = 0; i < list.size(); ++i)
            assign(target.elements[i], list[i]);
        return;
    }
    if (target.attribute.empty()) return scope_->set(target.name, std::move(value));
    const Value object = lookup(target.name);
    auto* ns = object.is(Value::Kind::object) ? dynamic_cast<Namespace*>(object.as_object().get())
                                              : nullptr;
    if (!ns)
        rt_.fail(fmt::format("'{}' is not a namespace: its attributes cannot be set", target.name));
    if (value.depth() >= Value::kMaxDepth) rt_.fail("values nested too deeply");
    ns->members.set(target.attribute, std::move(value));
}

Interpreter::Flow Interpreter::execute(const Body& body) {
    const Nesting nesting(*this);
    for (const auto& stmt : body) {
        const Flow flow = execute(*stmt);
        if (flow != Flow::next) return flow;
    }
    return Flow::next;
}

Interpreter::Flow Interpreter::execute(const Stmt& s) {
    rt_.at_line(s.line);
    rt_.charge(1);
    switch (s.kind) {
        case Stmt::Kind::text:
            emit(s.text);
            return Flow::next;
        case Stmt::Kind::output: {
            const Value v = eval(*s.expr);
            emit(v.is_string() ? v.as_string() : rt_.str(v));
            return Flow::next;
        }
        case Stmt::Kind::branch:
            for (size_t i = 0; i < s.conditions.size(); ++i)
                if (eval(*s.conditions[i]).truthy()) return execute(s.bodies[i]);
            return s.bodies.size() > s.conditions.size() ? execute(s.bodies.back()) : Flow::next;
        case Stmt::Kind::loop:
            loop(s, eval(*s.expr), 1);
            return Flow::next;
        case Stmt::Kind::assign:
            assign(s.target, eval(*s.expr));
            return Flow::next;
        case Stmt::Kind::assign_block: {
            Flow flow = Flow::next;
            Value v = captured(s.bodies[0], flow);
            if (flow != Flow::next) return flow;
            assign(s.target, s.expr ? apply_filters(*s.expr, std::move(v)) : std::move(v));
            return Flow::next;
        }
        case Stmt::Kind::macro: {
            auto macro = std::make_shared<Macro>();
            macro->stmt = &s;
            scope_->set(s.text, Value(std::shared_ptr<TemplateObject>(std::move(macro))));
            return Flow::next;
        }
        case Stmt::Kind::call_block: {
            const uint64_t serial = ++serials_;
            callers_.push_back({serial, &s, scope_});
            auto caller = std::make_shared<Caller>();
            caller->serial = serial;
            const Value v =
                call(*s.expr, Value(std::shared_ptr<TemplateObject>(std::move(caller))));
            callers_.pop_back();
            emit(rt_.str(v));
            return Flow::next;
        }
        case Stmt::Kind::filter_block: {
            Flow flow = Flow::next;
            Value v;
            {
                const ScopeGuard guard(*this, scope_);
                v = captured(s.bodies[0], flow);
            }
            emit(rt_.str(apply_filters(*s.expr, std::move(v))));
            return flow;
        }
        case Stmt::Kind::with: {
            std::vector<Value> values;
            for (const auto& e : s.conditions)
                values.push_back(eval(*e));
            const ScopeGuard guard(*this, scope_);
            for (size_t i = 0; i < values.size(); ++i)
                assign(s.targets[i], std::move(values[i]));
            return execute(s.bodies[0]);
        }
        case Stmt::Kind::scope_free:
            return execute(s.bodies[0]);
        case Stmt::Kind::break_loop:
            return Flow::break_loop;
        case Stmt::Kind::continue_loop:
            return Flow::continue_loop;
    }
    return Flow::next;
}

Value Interpreter::captured(const Body& body, Flow& flow) {
    std::string saved = std::exchange(out_, {});
    flow = execute(body);
    return rt_.text(std::exchange(out_, std::move(saved)));
}

void Interpreter::loop(const Stmt& s, const Value& over, int depth) {
    Value items = rt_.items(over);
    if (s.condition) {  // the loop's own filter sees the target, and loop.index counts what it
                        // keeps
        std::vector<Value> kept;
        for (const Value& v : items.as_list()) {
            rt_.charge(1);
            const ScopeGuard guard(*this, scope_);
            assign(s.target, v);
            if (eval(*s.condition).truthy()) kept.push_back(v);
        }
        items = rt_.list(std::move(kept));
    }
    const auto& list = items.as_list();
    if (list.empty()) {
        if (s.bodies.size() > 1) execute(s.bodies[1]);
        return;
    }
    const auto state = std::make_shared<LoopState>();
    state->items = items;
    state->depth = depth;
    state->stmt = &s;
    state->outer = scope_;
    const Value self{std::shared_ptr<TemplateObject>(state)};
    for (size_t i = 0; i < list.size(); ++i) {
        rt_.charge(1);
        state->index = i;
        const ScopeGuard guard(*this, state->outer);
        scope_->set("loop", self);
        assign(s.target, list[i]);
        if (execute(s.bodies[0]) == Flow::break_loop) break;
    }
    state->outer = nullptr;  // loop(...) is no longer callable
}

Value Interpreter::call_macro(const Stmt& s, const Args& args, const Value& caller, Scope* parent) {
    if (++calls_ > rt_.limits().max_call_depth) rt_.fail("macros call each other too deeply");
    if (args.positional.size() > s.params.size())
        rt_.fail(fmt::format("'{}' takes {} arguments, have {}", s.text, s.params.size(),
                             args.positional.size()));
    std::string rendered;
    {
        const ScopeGuard guard(*this, parent);
        for (const auto& [name, value] : args.named) {
            bool known = false;
            for (const auto& param : s.params)
                known |= param.first == name;
            if (!known) rt_.fail(fmt::format("'{}' has no parameter '{}'", s.text, name));
        }
        for (size_t i = 0; i < s.params.size(); ++i) {
            const auto& [name, otherwise] = s.params[i];
            const Value* given = args.find(i, name);
            scope_->set(name, given ? *given : otherwise ? eval(*otherwise) : Value::undefined());
        }
        if (!caller.is_undefined()) scope_->set("caller", caller);
        rendered = capture(s.bodies[0]);
    }
    --calls_;
    return rt_.text(std::move(rendered));
}

std::string interpret(const Body& body, std::string_view where, const Value& context,
                      const RenderLimits& limits) {
    return Interpreter(where, context, limits).run(body);
}

}  // namespace terrace::jinja
