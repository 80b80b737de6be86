// The expression half of the template parser, with the token cursor that both halves share.
// Recursive descent with Jinja 3's precedence, loosest first: conditional, or, and, not,
// comparisons,
// + -, ~, * / // %, **, unary, then postfix, filters and tests. Every recursion is counted, so a
// hostile template cannot exhaust the stack. Internal to src/text.
// SPDX-License-Identifier: MIT
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "text/template_ast.h"
#include "text/template_lexer.h"

namespace terrace::jinja {

class ExpressionParser {
  protected:
    using Kind = Expr::Kind;

    ExpressionParser(std::vector<Token> tokens, std::string_view where)
        : tokens_(std::move(tokens)), where_(where) {}

    // ---- tokens ----
    const Token& now() const { return tokens_[pos_]; }
    const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
    bool at(Token::Kind kind) const { return now().kind == kind; }
    bool at_op(std::string_view op) const { return at(Token::Kind::op) && now().text == op; }
    bool at_name(std::string_view name) const {
        return at(Token::Kind::name) && now().text == name;
    }
    Token take() { return tokens_[at(Token::Kind::end) ? pos_ : pos_++]; }
    bool skip_op(std::string_view op) {
        if (!at_op(op)) return false;
        ++pos_;
        return true;
    }
    bool skip_name(std::string_view name) {
        if (!at_name(name)) return false;
        ++pos_;
        return true;
    }
    [[noreturn]] void fail(std::string_view what) const { fail_at(where_, now().line, what); }
    [[noreturn]] void expected(std::string_view what) const {
        static constexpr std::string_view kNames[] = {"text",
                                                      "{%",
                                                      "%}",
                                                      "{{",
                                                      "}}",
                                                      "a name",
                                                      "a string",
                                                      "a number",
                                                      "a number",
                                                      "",
                                                      "the end of the template"};
        const std::string have = at(Token::Kind::op) || at(Token::Kind::name)
                                     ? fmt::format("'{}'", now().text)
                                     : std::string(kNames[static_cast<size_t>(now().kind)]);
        fail(fmt::format("expected {}, have {}", what, have));
    }
    void expect_op(std::string_view op) {
        if (!skip_op(op)) expected(fmt::format("'{}'", op));
    }
    void expect(Token::Kind kind, std::string_view what) {
        if (!at(kind)) expected(what);
        ++pos_;
    }
    std::string expect_name() {
        if (!at(Token::Kind::name)) expected("a name");
        return take().text;
    }

    struct Nesting {
        explicit Nesting(ExpressionParser& p) : parser(p) {
            if (++parser.nesting_ > kMaxTreeDepth) parser.fail("nested too deeply");
        }
        ~Nesting() { --parser.nesting_; }
        ExpressionParser& parser;
    };

    // ---- expressions ----
    ExprPtr make(Kind kind) const {
        auto e = std::make_unique<Expr>();
        e->kind = kind;
        e->line = now().line;
        return e;
    }
    void adopt(Expr& parent, ExprPtr child) const {
        if (child) {
            parent.depth = std::max(parent.depth, child->depth + 1);
            if (parent.depth > kMaxTreeDepth) fail("nested too deeply");
        }
        parent.args.push_back(std::move(child));
    }
    ExprPtr make(Kind kind, ExprPtr a, ExprPtr b = {}) const {
        auto e = make(kind);
        adopt(*e, std::move(a));
        if (b) adopt(*e, std::move(b));
        return e;
    }
    ExprPtr constant(Value v) const {
        auto e = make(Kind::constant);
        e->value = std::move(v);
        return e;
    }

    ExprPtr expression() {
        const Nesting nesting(*this);
        ExprPtr value = logical_or();
        while (skip_name("if")) {
            ExprPtr condition = logical_or();
            ExprPtr other = skip_name("else") ? expression() : nullptr;
            auto e = make(Kind::conditional, std::move(value), std::move(condition));
            adopt(*e, std::move(other));
            value = std::move(e);
        }
        return value;
    }

    ExprPtr logical_or() {
        ExprPtr left = logical_and();
        while (skip_name("or")) {
            ExprPtr right = logical_and();
            left = make(Kind::logical_or, std::move(left), std::move(right));
        }
        return left;
    }

    ExprPtr logical_and() {
        ExprPtr left = logical_not();
        while (skip_name("and")) {
            ExprPtr right = logical_not();
            left = make(Kind::logical_and, std::move(left), std::move(right));
        }
        return left;
    }

    ExprPtr logical_not() {
        if (at_name("not")) {
            const Nesting nesting(*this);
            ++pos_;
            return make(Kind::logical_not, logical_not());
        }
        return comparison();
    }

    ExprPtr comparison() {
        ExprPtr left = additive();
        ExprPtr chain;
        while (true) {
            Op op = Op::eq;
            if (skip_op("=="))
                op = Op::eq;
            else if (skip_op("!="))
                op = Op::ne;
            else if (skip_op("<="))
                op = Op::le;
            else if (skip_op("<"))
                op = Op::lt;
            else if (skip_op(">="))
                op = Op::ge;
            else if (skip_op(">"))
                op = Op::gt;
            else if (skip_name("in"))
                op = Op::in;
            else if (at_name("not") && ahead().kind == Token::Kind::name && ahead().text == "in") {
                pos_ += 2;
                op = Op::not_in;
            } else
                break;
            if (!chain) chain = make(Kind::compare, std::move(left));
            chain->ops.push_back(op);
            adopt(*chain, additive());
        }
        return chain ? std::move(chain) : std::move(left);
    }

    ExprPtr binary(Op op, ExprPtr left, ExprPtr right) {
        auto e = make(Kind::binary, std::move(left), std::move(right));
        e->ops.push_back(op);
        return e;
    }

    ExprPtr additive() {
        ExprPtr left = concat();
        while (at_op("+") || at_op("-")) {
            const Op op = take().text == "+" ? Op::add : Op::sub;
            ExprPtr right = concat();
            left = binary(op, std::move(left), std::move(right));
        }
        return left;
    }

    ExprPtr concat() {
        ExprPtr first = multiplicative();
        if (!at_op("~")) return first;
        auto e = make(Kind::concat, std::move(first));
        while (skip_op("~"))
            adopt(*e, multiplicative());
        return e;
    }

    ExprPtr multiplicative() {
        ExprPtr left = power();
        while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
            const std::string op = take().text;
            ExprPtr right = power();
            left = binary(op == "*"    ? Op::mul
                          : op == "/"  ? Op::div
                          : op == "//" ? Op::floor_div
                                       : Op::mod,
                          std::move(left), std::move(right));
        }
        return left;
    }

    ExprPtr power() {
        ExprPtr left = unary(Filters::yes);
        while (skip_op("**")) {
            ExprPtr right = unary(Filters::yes);
            left = binary(Op::pow, std::move(left), std::move(right));
        }
        return left;
    }

    enum class Filters { yes, no };
    ExprPtr unary(Filters filters) {
        const Nesting nesting(*this);
        ExprPtr e;
        if (at_op("-") || at_op("+")) {
            const Op op = take().text == "-" ? Op::negate : Op::plus;
            ExprPtr operand = unary(Filters::no);
            e = make(Kind::unary, std::move(operand));
            e->ops.push_back(op);
        } else {
            e = primary();
        }
        e = postfix(std::move(e));
        return filters == Filters::yes ? filters_and_tests(std::move(e)) : std::move(e);
    }

    ExprPtr primary() {
        switch (now().kind) {
            case Token::Kind::name: {
                const Token t = take();
                if (t.text == "true" || t.text == "True") return constant(true);
                if (t.text == "false" || t.text == "False") return constant(false);
                if (t.text == "none" || t.text == "None") return constant(nullptr);
                auto e = make(Kind::name);
                e->text = t.text;
                return e;
            }
            case Token::Kind::string: {
                std::string text;
                while (at(Token::Kind::string))
                    text += take().text;
                return constant(std::move(text));
            }
            case Token::Kind::integer: {
                const Token t = take();
                int64_t v = 0;
                const char* end = t.text.data() + t.text.size();
                if (std::from_chars(t.text.data(), end, v).ec != std::errc{})
                    fail("integer does not fit into 64 bits");
                return constant(v);
            }
            case Token::Kind::real: {
                const Token t = take();
                double v = 0;
                std::from_chars(t.text.data(), t.text.data() + t.text.size(), v);
                return constant(v);
            }
            case Token::Kind::op:
                if (skip_op("(")) {
                    if (skip_op(")")) return make(Kind::tuple);
                    ExprPtr e = tuple();
                    expect_op(")");
                    return e;
                }
                if (skip_op("[")) {
                    auto e = make(Kind::list);
                    while (!at_op("]")) {
                        adopt(*e, expression());
                        if (!skip_op(",")) break;
                    }
                    expect_op("]");
                    return e;
                }
                if (skip_op("{")) {
                    auto e = make(Kind::dict);
                    while (!at_op("}")) {
                        adopt(*e, expression());
                        expect_op(":");
                        adopt(*e, expression());
                        if (!skip_op(",")) break;
                    }
                    expect_op("}");
                    return e;
                }
                [[fallthrough]];
            default:
                expected("an expression");
        }
    }

    // expression [, expression]*; without commas it is just the expression.
    ExprPtr tuple() {
        ExprPtr first = expression();
        if (!at_op(",")) return first;
        auto e = make(Kind::tuple, std::move(first));
        while (skip_op(",")) {
            if (at_op(")") || at_op("=") || at(Token::Kind::block_end) ||
                at(Token::Kind::variable_end))
                break;
            adopt(*e, expression());
        }
        return e;
    }

    ExprPtr postfix(ExprPtr e) {
        while (true) {
            if (skip_op(".")) {
                if (at(Token::Kind::integer)) {
                    e = make(Kind::item, std::move(e), primary());
                } else {
                    auto a = make(Kind::attribute, std::move(e));
                    a->text = expect_name();
                    e = std::move(a);
                }
            } else if (skip_op("[")) {
                e = subscript(std::move(e));
            } else if (at_op("(")) {
                e = call(std::move(e));
            } else {
                return e;
            }
        }
    }

    ExprPtr subscript(ExprPtr object) {
        ExprPtr start, stop, step;
        if (!at_op(":")) {
            start = expression();
            if (skip_op("]")) return make(Kind::item, std::move(object), std::move(start));
        }
        expect_op(":");
        if (!at_op(":") && !at_op("]")) stop = expression();
        if (skip_op(":") && !at_op("]")) step = expression();
        expect_op("]");
        auto e = make(Kind::slice, std::move(object));
        adopt(*e, std::move(start));
        adopt(*e, std::move(stop));
        adopt(*e, std::move(step));
        return e;
    }

    void arguments(Expr& e) {
        expect_op("(");
        while (!at_op(")")) {
            if (at(Token::Kind::name) && ahead().kind == Token::Kind::op && ahead().text == "=") {
                std::string name = take().text;
                ++pos_;
                ExprPtr value = expression();
                e.depth = std::max(e.depth, value->depth + 1);
                if (e.depth > kMaxTreeDepth) fail("nested too deeply");
                e.kwargs.emplace_back(std::move(name), std::move(value));
            } else {
                if (at_op("*") || at_op("**")) fail("* and ** arguments are not supported");
                if (!e.kwargs.empty()) fail("a positional argument after a named one");
                adopt(e, expression());
            }
            if (!skip_op(",")) break;
        }
        expect_op(")");
    }

    ExprPtr call(ExprPtr callee) {
        auto e = make(Kind::call, std::move(callee));
        arguments(*e);
        return e;
    }

    std::string dotted_name() {
        std::string name = expect_name();
        while (skip_op("."))
            name += "." + expect_name();
        return name;
    }

    ExprPtr filter(ExprPtr operand) {
        auto e = make(Kind::filter);
        adopt(*e, std::move(operand));
        e->text = dotted_name();
        if (at_op("(")) arguments(*e);
        return e;
    }

    ExprPtr filters_and_tests(ExprPtr e) {
        while (true) {
            if (skip_op("|")) {
                e = filter(std::move(e));
            } else if (at_name("is")) {
                ++pos_;
                const bool negated = skip_name("not");
                auto t = make(Kind::test, std::move(e));
                t->text = dotted_name();
                if (at_op("(")) {
                    arguments(*t);
                } else if (at(Token::Kind::string) || at(Token::Kind::integer) ||
                           at(Token::Kind::real) || at_op("[") || at_op("{") ||
                           (at(Token::Kind::name) && !at_keyword())) {
                    if (at_name("is")) fail("tests cannot be chained with is");
                    adopt(*t, postfix(primary()));
                }
                e = negated ? make(Kind::logical_not, std::move(t)) : std::move(t);
            } else if (at_op("(")) {
                e = call(std::move(e));
            } else {
                return e;
            }
        }
    }

    // Names that cannot begin the argument of a test written without parentheses.
    bool at_keyword() const {
        for (const std::string_view word : {"else", "or", "and", "if", "not", "in", "recursive"})
            if (at_name(word)) return true;
        return false;
    }

    std::vector<Token> tokens_;
    std::string_view where_;
    size_t pos_ = 0;
    int nesting_ = 0;
};

}  // namespace terrace::jinja
