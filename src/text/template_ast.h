// The parsed form of a chat template: what the parser makes and the interpreter walks. Internal to
// src/text. Immutable once parsed, so one template may render in many threads at once.
// Depth is bounded by the parser (kMaxTreeDepth), which bounds every recursion over the tree.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/template_value.h"

namespace terrace::jinja {

inline constexpr int kMaxTreeDepth = 200;

// How parser and interpreter report failure inside src/text; never leaves ChatTemplate.
struct Failure {
    Error error;
};

enum class Op : uint8_t {
    add,
    sub,
    mul,
    div,
    floor_div,
    mod,
    pow,
    negate,
    plus,
    eq,
    ne,
    lt,
    le,
    gt,
    ge,
    in,
    not_in
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
    enum class Kind : uint8_t {
        constant,  // value
        name,      // text
        list,
        tuple,      // args
        dict,       // args: key, value, key, value ...
        attribute,  // args[0] . text
        item,       // args[0] [ args[1] ]
        slice,      // args[0] [ args[1] : args[2] : args[3] ], null where left out
        call,       // args[0] ( args[1..], kwargs )
        filter,     // args[0] | text ( args[1..], kwargs ); args[0] null in filter blocks
        test,       // args[0] is text ( args[1..] )
        unary,      // ops[0] args[0]
        binary,     // args[0] ops[0] args[1]
        compare,    // args[0] ops[0] args[1] ops[1] args[2] ...
        concat,     // args joined by ~
        logical_and,
        logical_or,
        logical_not,
        conditional,  // args[0] if args[1] else args[2], the last one null when left out
    };
    Kind kind;
    int line = 0;
    int depth = 1;
    std::string text = {};
    Value value = {};
    std::vector<Op> ops = {};
    std::vector<ExprPtr> args = {};
    std::vector<std::pair<std::string, ExprPtr>> kwargs = {};
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

// What a for or set statement assigns to: a name, a.b of a namespace, or a list of targets.
struct Target {
    std::string name;
    std::string attribute;         // not empty: namespace attribute
    std::vector<Target> elements;  // not empty: unpacking
};

struct Stmt {
    enum class Kind : uint8_t {
        text,          // text
        output,        // expr
        branch,        // if: conditions[i] -> bodies[i]; one more body is the else
        loop,          // for target in expr if condition: bodies[0], else bodies[1]
        assign,        // set target = expr
        assign_block,  // set target | filters: bodies[0]; expr is the filter chain or null
        macro,         // text(params): bodies[0]
        call_block,    // call(params) expr: bodies[0] is what caller() renders
        filter_block,  // expr is the filter chain, bodies[0]
        with,          // targets[i] = conditions[i]: bodies[0]
        scope_free,    // bodies[0] as if the tag were not there (generation)
        break_loop,
        continue_loop,
    };
    Kind kind;
    int line = 0;
    std::string text = {};
    Target target = {};
    ExprPtr expr = {};
    ExprPtr condition = {};
    std::vector<ExprPtr> conditions = {};
    std::vector<Target> targets = {};
    std::vector<std::pair<std::string, ExprPtr>> params = {};  // name, default or null
    std::vector<Body> bodies = {};
    bool recursive = false;
};

}  // namespace terrace::jinja
