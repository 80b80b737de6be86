// See template_parser.h: the statements. Expressions are in template_expression_parser.h.
// SPDX-License-Identifier: MIT
#include "text/template_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "text/template_expression_parser.h"

namespace terrace::jinja {
namespace {

class Parser : ExpressionParser {
  public:
    Parser(std::vector<Token> tokens, std::string_view where)
        : ExpressionParser(std::move(tokens), where) {}

    Body run() {
        Body body = statements({});
        if (!at(Token::Kind::end)) fail("unexpected end of block");
        return body;
    }

  private:
    bool at_tag(std::initializer_list<std::string_view> names) const {
        if (!at(Token::Kind::block_begin) || ahead().kind != Token::Kind::name) return false;
        return std::find(names.begin(), names.end(), ahead().text) != names.end();
    }

    Body statements(std::initializer_list<std::string_view> until) {
        const Nesting nesting(*this);
        Body body;
        while (!at(Token::Kind::end)) {
            if (at(Token::Kind::text)) {
                auto s = statement(Stmt::Kind::text);
                s->text = take().text;
                body.push_back(std::move(s));
            } else if (at(Token::Kind::variable_begin)) {
                ++pos_;
                auto s = statement(Stmt::Kind::output);
                s->expr = tuple();
                expect(Token::Kind::variable_end, "}}");
                body.push_back(std::move(s));
            } else {
                if (until.size() && at_tag(until)) return body;
                expect(Token::Kind::block_begin, "{%");
                body.push_back(tag());
            }
        }
        if (until.size())
            fail(fmt::format("the template ends before {{% {} %}}", *(until.end() - 1)));
        return body;
    }

    std::unique_ptr<Stmt> statement(Stmt::Kind kind) const {
        auto s = std::make_unique<Stmt>();
        s->kind = kind;
        s->line = now().line;
        return s;
    }

    void end_tag() { expect(Token::Kind::block_end, "%}"); }
    // Body up to {% name %}, the closing tag included.
    Body block(std::string_view name) {
        end_tag();
        Body body = statements({name});
        pos_ += 2;
        end_tag();
        return body;
    }

    std::unique_ptr<Stmt> tag() {
        const std::string name = expect_name();
        if (name == "if") return if_tag();
        if (name == "for") return for_tag();
        if (name == "set") return set_tag();
        if (name == "macro") return macro_tag();
        if (name == "call") return call_tag();
        if (name == "filter") {
            auto s = statement(Stmt::Kind::filter_block);
            s->expr = filter_chain();
            s->bodies.push_back(block("endfilter"));
            return s;
        }
        if (name == "with") {
            auto s = statement(Stmt::Kind::with);
            while (!at(Token::Kind::block_end)) {
                if (!s->targets.empty()) expect_op(",");
                s->targets.push_back(target());
                expect_op("=");
                s->conditions.push_back(expression());
            }
            s->bodies.push_back(block("endwith"));
            return s;
        }
        if (name == "generation") {
            auto s = statement(Stmt::Kind::scope_free);
            s->bodies.push_back(block("endgeneration"));
            return s;
        }
        if (name == "break" || name == "continue") {
            if (loops_ == 0) fail(fmt::format("{} outside of a loop", name));
            auto s =
                statement(name == "break" ? Stmt::Kind::break_loop : Stmt::Kind::continue_loop);
            end_tag();
            return s;
        }
        --pos_;
        fail(fmt::format("tag '{}' is not supported here", name));
    }

    std::unique_ptr<Stmt> if_tag() {
        auto s = statement(Stmt::Kind::branch);
        while (true) {
            s->conditions.push_back(tuple());
            end_tag();
            s->bodies.push_back(statements({"elif", "else", "endif"}));
            ++pos_;
            const std::string name = take().text;
            if (name == "elif") continue;
            if (name == "else")
                s->bodies.push_back(block("endif"));
            else
                end_tag();
            return s;
        }
    }

    std::unique_ptr<Stmt> for_tag() {
        auto s = statement(Stmt::Kind::loop);
        s->target = target();
        if (!skip_name("in")) expected("'in'");
        // No conditional expression here: "if" begins the loop's own filter.
        ExprPtr first = logical_or();
        if (at_op(",")) {
            auto t = make(Kind::tuple, std::move(first));
            while (skip_op(",")) {
                if (at(Token::Kind::block_end) || at_name("if") || at_name("recursive")) break;
                adopt(*t, logical_or());
            }
            first = std::move(t);
        }
        s->expr = std::move(first);
        if (skip_name("if")) s->condition = expression();
        s->recursive = skip_name("recursive");
        end_tag();
        ++loops_;
        s->bodies.push_back(statements({"else", "endfor"}));
        --loops_;
        ++pos_;
        if (take().text == "else")
            s->bodies.push_back(block("endfor"));
        else
            end_tag();
        return s;
    }

    Target one_target() {
        Target t;
        if (skip_op("(")) {
            t = target();
            expect_op(")");
            return t;
        }
        t.name = expect_name();
        for (const std::string_view word :
             {"true", "false", "none", "True", "False", "None", "loop"})
            if (t.name == word) fail(fmt::format("cannot assign to '{}'", t.name));
        if (skip_op(".")) t.attribute = expect_name();
        return t;
    }

    Target target() {
        const Nesting nesting(*this);
        Target first = one_target();
        if (!at_op(",")) return first;
        Target all;
        all.elements.push_back(std::move(first));
        while (skip_op(",")) {
            if (at_op("=") || at_op(")") || at_name("in")) break;
            all.elements.push_back(one_target());
        }
        return all;
    }

    ExprPtr filter_chain() {
        ExprPtr e = filter(nullptr);
        while (skip_op("|"))
            e = filter(std::move(e));
        return e;
    }

    std::unique_ptr<Stmt> set_tag() {
        auto s = statement(Stmt::Kind::assign);
        s->target = target();
        if (skip_op("=")) {
            s->expr = tuple();
            end_tag();
            return s;
        }
        s->kind = Stmt::Kind::assign_block;
        if (skip_op("|")) s->expr = filter_chain();
        s->bodies.push_back(block("endset"));
        return s;
    }

    void parameters(Stmt& s) {
        expect_op("(");
        while (!at_op(")")) {
            std::string name = expect_name();
            ExprPtr otherwise = skip_op("=") ? expression() : nullptr;
            if (!otherwise && !s.params.empty() && s.params.back().second)
                fail("a parameter without default after one with");
            s.params.emplace_back(std::move(name), std::move(otherwise));
            if (!skip_op(",")) break;
        }
        expect_op(")");
    }

    std::unique_ptr<Stmt> macro_tag() {
        auto s = statement(Stmt::Kind::macro);
        s->text = expect_name();
        parameters(*s);
        const int loops = std::exchange(loops_, 0);
        s->bodies.push_back(block("endmacro"));
        loops_ = loops;
        return s;
    }

    std::unique_ptr<Stmt> call_tag() {
        auto s = statement(Stmt::Kind::call_block);
        if (at_op("(")) parameters(*s);
        s->expr = expression();
        if (s->expr->kind != Kind::call) fail("expected a call");
        const int loops = std::exchange(loops_, 0);
        s->bodies.push_back(block("endcall"));
        loops_ = loops;
        return s;
    }

    int loops_ = 0;  // around the statement being parsed
};

}  // namespace

Body parse(std::string_view source, std::string_view where) {
    return Parser(tokenize(source, where), where).run();
}

}  // namespace terrace::jinja
