// The interpreter's state and its two halves: statements (template_interpreter.cpp) and expressions
// (template_eval.cpp). Internal to src/text. Lives for one rendering on one thread; a Failure
// thrown from anywhere ends it, so no state needs to be put back on that way out.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template_runtime.h"

namespace terrace::jinja {

struct Scope {
    Scope* parent = nullptr;
    std::vector<std::pair<std::string, Value>> variables = {};
    Value* find(std::string_view name);
    void set(std::string_view name, Value value);
};

// The `loop` variable.
struct LoopState final : TemplateObject {
    Value items;
    size_t index = 0;
    int depth = 1;
    const Stmt* stmt = nullptr;
    Scope* outer = nullptr;  // null once the loop has ended
    Value last_changed = Value::undefined();
};

struct Macro final : TemplateObject {
    const Stmt* stmt = nullptr;
};

// What `caller` is inside a macro: names a call block that may have ended meanwhile.
struct Caller final : TemplateObject {
    uint64_t serial = 0;
};

// How an error names an expression: "messages[0].role".
std::string describe(const Expr& e);

// A global function, such as range.
struct Function final : TemplateObject {
    std::string_view name;
};

class Interpreter {
  public:
    Interpreter(std::string_view where, const Value& context, const RenderLimits& limits);
    ~Interpreter();
    Interpreter(const Interpreter&) = delete;
    Interpreter& operator=(const Interpreter&) = delete;

    std::string run(const Body& body);

  private:
    enum class Flow : uint8_t { next, break_loop, continue_loop };
    // Deepest recursion of eval and execute together: trees are at most kMaxTreeDepth deep, but
    // macros and recursive loops stack them.
    static constexpr int kMaxNesting = 1000;

    struct Nesting {
        explicit Nesting(Interpreter& i) : in(i) {
            if (++in.nesting_ > kMaxNesting) in.rt_.fail("nested too deeply");
        }
        ~Nesting() { --in.nesting_; }
        Interpreter& in;
    };
    struct ScopeGuard {
        ScopeGuard(Interpreter& i, Scope* parent) : in(i), saved(i.scope_) {
            mine.parent = parent;
            in.scope_ = &mine;
        }
        ~ScopeGuard() { in.scope_ = saved; }
        Interpreter& in;
        Scope* saved;
        Scope mine;
    };
    struct OpenCall {
        uint64_t serial;
        const Stmt* stmt;
        Scope* scope;
    };

    // Statements.
    Flow execute(const Body& body);
    Flow execute(const Stmt& s);
    void emit(std::string_view s);
    std::string capture(const Body& body);
    Value captured(const Body& body, Flow& flow);
    void assign(const Target& target, Value value);
    void loop(const Stmt& s, const Value& over, int depth);
    Value call_macro(const Stmt& s, const Args& args, const Value& caller, Scope* parent);

    // Expressions.
    Value eval(const Expr& e);
    Value lookup(std::string_view name);
    Value apply_filters(const Expr& e, Value innermost);  // filter blocks: a chain without operand
    Args eval_args(const Expr& e);
    Value eval_binary(Op op, const Value& a, const Value& b);
    Value eval_unary(Op op, const Value& a);
    bool eval_compare(Op op, const Value& a, const Value& b);
    Value eval_slice(const Expr& e);
    Value eval_attribute(const Expr& e);
    Value call(const Expr& e, const Value& caller);
    Value call_object(const Value& object, const Args& args, const Value& caller);
    static Value global(std::string_view name);  // undefined when there is none of that name
    Value call_global(std::string_view name, const Args& args);
    Value loop_attribute(const LoopState& state, std::string_view name);
    Value loop_method(LoopState& state, std::string_view name, const Args& args);
    Value range(const Args& args);
    Value strftime_now(const Args& args);

    Runtime rt_;
    const Value& context_;
    Scope root_;
    Scope* scope_;
    std::string out_;
    std::vector<std::shared_ptr<Namespace>> namespaces_;
    std::vector<OpenCall> callers_;
    uint64_t serials_ = 0;
    int nesting_ = 0;
    int calls_ = 0;
};

}  // namespace terrace::jinja
