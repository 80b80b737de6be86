// See template_lexer.h. White-space rules are those of Jinja 3 (template designer documentation,
// "Whitespace Control").
// SPDX-License-Identifier: MIT
#include "text/template_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/template_text.h"
#include "text/utf8.h"

namespace terrace::jinja {
namespace {

constexpr size_t kMaxTokens = 200'000;

bool is_ascii_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           static_cast<uint8_t>(c) >= 0x80;
}
int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

std::string normalize_lines(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r') {
            out += '\n';
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        } else {
            out += source[i];
        }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

class Lexer {
  public:
    Lexer(std::string_view source, std::string_view where)
        : source_(normalize_lines(source)), where_(where) {}

    std::vector<Token> run() {
        while (pos_ < source_.size())
            template_text();
        push(Token::Kind::end, "");
        return std::move(tokens_);
    }

  private:
    [[noreturn]] void fail(std::string_view what) const { fail_at(where_, line_, what); }
    std::string_view rest() const { return std::string_view(source_).substr(pos_); }
    char peek(size_t ahead = 0) const {
        return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0';
    }
    void advance(size_t n) {
        n = std::min(n, source_.size() - pos_);
        line_ +=
            static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                        source_.begin() + static_cast<ptrdiff_t>(pos_ + n), '\n'));
        pos_ += n;
    }
    void push(Token::Kind kind, std::string text) {
        if (tokens_.size() >= kMaxTokens) fail("the template is too long");
        tokens_.push_back({kind, std::move(text), line_});
    }
    void skip_space() {
        const size_t n = rest().size() - strip(rest(), Side::left).size();
        line_start_ = n > 0 && source_[pos_ + n - 1] == '\n';
        advance(n);
    }
    static void strip_end(std::string& text) { text.resize(strip(text, Side::right).size()); }
    // lstrip_blocks: a block or comment that is first on its line loses its indentation.
    void strip_indentation(std::string& text) const {
        const size_t newline = text.rfind('\n');
        if (newline == std::string::npos && !line_start_) return;
        const size_t from = newline == std::string::npos ? 0 : newline + 1;
        if (strip(std::string_view(text).substr(from), Side::left).empty()) text.resize(from);
    }

    // After a closing tag: "-" eats all white space, "+" nothing, otherwise one newline goes
    // (trim_blocks), for blocks and comments only.
    void after_tag(char sign, bool trim) {
        line_start_ = false;
        if (sign == '-') {
            skip_space();
        } else if (trim && sign != '+' && peek() == '\n') {
            advance(1);
            line_start_ = true;
        }
    }

    // Text up to the next opening tag, then the tag with all its tokens.
    void template_text() {
        size_t open = pos_;
        while (true) {
            open = source_.find('{', open);
            if (open == std::string::npos || open + 1 >= source_.size()) {
                open = source_.size();
                break;
            }
            const char c = source_[open + 1];
            if (c == '{' || c == '%' || c == '#') break;
            ++open;
        }
        std::string text = source_.substr(pos_, open - pos_);
        if (open == source_.size()) {
            if (!text.empty()) push(Token::Kind::text, std::move(text));
            pos_ = open;
            return;
        }
        const char type = source_[open + 1];
        const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
        const bool signed_tag = sign == '-' || (sign == '+' && type != '{');
        if (sign == '-')
            strip_end(text);
        else if (type != '{' && sign != '+')
            strip_indentation(text);
        const size_t skipped = open - pos_;
        if (!text.empty()) push(Token::Kind::text, std::move(text));
        advance(skipped + 2 + (signed_tag ? 1 : 0));
        line_start_ = false;
        if (type == '#') return comment();
        if (type == '{') {
            push(Token::Kind::variable_begin, "");
            return tag_tokens("}}", Token::Kind::variable_end);
        }
        if (raw()) return;
        push(Token::Kind::block_begin, "");
        tag_tokens("%}", Token::Kind::block_end);
    }

    void comment() {
        const size_t close = source_.find("#}", pos_);
        if (close == std::string::npos) fail("comment without #}");
        const char sign = close > pos_ ? source_[close - 1] : '\0';
        advance(close + 2 - pos_);
        after_tag(sign, true);
    }

    // {% raw %} ... {% endraw %}: everything in between is text.
    bool raw() {
        const auto tag_at = [&](size_t at, std::string_view word) -> size_t {  // end, or 0
            while (at < source_.size() && is_ascii_space(source_[at]))
                ++at;
            if (std::string_view(source_).substr(at, word.size()) != word) return 0;
            at += word.size();
            while (at < source_.size() && is_ascii_space(source_[at]))
                ++at;
            if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
            return std::string_view(source_).substr(at, 2) == "%}" ? at + 2 : 0;
        };
        const size_t begin = tag_at(pos_, "raw");
        if (!begin) return false;
        const char sign = source_[begin - 3];
        advance(begin - pos_);
        after_tag(sign, false);
        for (size_t open = source_.find("{%", pos_); open != std::string::npos;
             open = source_.find("{%", open + 2)) {
            const char left = open + 2 < source_.size() ? source_[open + 2] : '\0';
            const size_t end = tag_at(open + 2 + (left == '-' || left == '+' ? 1 : 0), "endraw");
            if (!end) continue;
            std::string text = source_.substr(pos_, open - pos_);
            if (left == '-')
                strip_end(text);
            else if (left != '+')
                strip_indentation(text);
            if (!text.empty()) push(Token::Kind::text, std::move(text));
            const char right = source_[end - 3];
            advance(end - pos_);
            after_tag(right, true);
            return true;
        }
        fail("raw without endraw");
    }

    void tag_tokens(std::string_view close, Token::Kind close_kind) {
        int open_brackets = 0;  // inside brackets "}}" closes dictionaries, not the tag
        while (true) {
            while (pos_ < source_.size() && is_ascii_space(source_[pos_]))
                advance(1);
            if (pos_ >= source_.size()) fail(fmt::format("tag without {}", close));
            const char c = peek();
            if (open_brackets == 0) {
                const bool sign = c == '-' || (c == '+' && close == "%}");
                if (rest().substr(sign ? 1 : 0).starts_with(close)) {
                    advance(close.size() + (sign ? 1 : 0));
                    push(close_kind, "");
                    return after_tag(sign ? c : '\0', close == "%}");
                }
            }
            if (is_name_start(c)) {
                size_t n = 1;
                while (is_name_start(peek(n)) || is_digit(peek(n)))
                    ++n;
                push(Token::Kind::name, std::string(rest().substr(0, n)));
                advance(n);
            } else if (is_digit(c)) {
                number();
            } else if (c == '"' || c == '\'') {
                string_literal(c);
            } else {
                static constexpr std::array<std::string_view, 26> kOperators = {
                    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
                const auto op = std::find_if(kOperators.begin(), kOperators.end(),
                                             [&](auto o) { return rest().starts_with(o); });
                if (op == kOperators.end()) fail(fmt::format("unexpected character '{}'", c));
                if (*op == "(" || *op == "[" || *op == "{") ++open_brackets;
                if (*op == ")" || *op == "]" || *op == "}")
                    if (--open_brackets < 0) fail(fmt::format("unexpected '{}'", *op));
                push(Token::Kind::op, std::string(*op));
                advance(op->size());
            }
        }
    }

    void number() {
        std::string digits;
        size_t n = 0;
        const auto take_digits = [&] {
            while (is_digit(peek(n)) || (peek(n) == '_' && is_digit(peek(n + 1)))) {
                if (peek(n) != '_') digits += peek(n);
                ++n;
            }
        };
        take_digits();
        bool real = false;
        if (peek(n) == '.' && is_digit(peek(n + 1))) {
            real = true;
            digits += '.';
            ++n;
            take_digits();
        }
        if (peek(n) == 'e' || peek(n) == 'E') {
            const size_t sign = peek(n + 1) == '+' || peek(n + 1) == '-' ? 1 : 0;
            if (is_digit(peek(n + 1 + sign))) {
                real = true;
                digits += 'e';
                if (sign) digits += peek(n + 1);
                n += 1 + sign;
                take_digits();
            }
        }
        push(real ? Token::Kind::real : Token::Kind::integer, std::move(digits));
        advance(n);
    }

    void string_literal(char quote) {
        std::string out;
        size_t at = pos_ + 1;
        while (true) {
            if (at >= source_.size()) fail("string without closing quote");
            const char c = source_[at++];
            if (c == quote) break;
            if (c != '\\') {
                out += c;
                continue;
            }
            if (at >= source_.size()) fail("string without closing quote");
            const char e = source_[at++];
            const auto hex = [&](int n) {
                char32_t point = 0;
                for (int i = 0; i < n; ++i) {
                    const int d = at < source_.size() ? hex_digit(source_[at]) : -1;
                    if (d < 0) fail("string escape needs more hex digits");
                    point = point * 16 + static_cast<char32_t>(d);
                    ++at;
                }
                // Surrogates have no UTF-8.
                if ((point >= 0xD800 && point <= 0xDFFF) || point > 0x10FFFF) point = 0xFFFD;
                append_utf8(out, point);
            };
            switch (e) {
                case 'n':
                    out += '\n';
                    break;
                case 't':
                    out += '\t';
                    break;
                case 'r':
                    out += '\r';
                    break;
                case 'b':
                    out += '\b';
                    break;
                case 'f':
                    out += '\f';
                    break;
                case 'v':
                    out += '\v';
                    break;
                case 'a':
                    out += '\a';
                    break;
                case '0':
                    out += '\0';
                    break;
                case 'x':
                    hex(2);
                    break;
                case 'u':
                    hex(4);
                    break;
                case 'U':
                    hex(8);
                    break;
                case '\\':
                case '\'':
                case '"':
                    out += e;
                    break;
                case '\n':
                    break;
                default:
                    out += '\\';
                    out += e;
            }
        }
        push(Token::Kind::string, std::move(out));
        advance(at - pos_);
    }

    std::string source_;
    std::string_view where_;
    size_t pos_ = 0;
    int line_ = 1;
    bool line_start_ = true;  // what comes next is at the beginning of a line
    std::vector<Token> tokens_;
};

}  // namespace

void fail_at(std::string_view where, int line, std::string_view what) {
    throw Failure{{Code::invalid_argument, fmt::format("{}: line {}: {}", where, line, what)}};
}

std::vector<Token> tokenize(std::string_view source, std::string_view where) {
    return Lexer(source, where).run();
}

}  // namespace terrace::jinja
