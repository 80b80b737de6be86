// Cuts a Jinja source into text and tokens, with white-space control as transformers sets it up:
// trim_blocks and lstrip_blocks on, one trailing newline dropped, line ends normalized to "\n".
// Internal to src/text.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/template_ast.h"

namespace terrace::jinja {

struct Token {
    enum class Kind : uint8_t {
        text,  // literal output
        block_begin,
        block_end,  // {% %}
        variable_begin,
        variable_end,  // {{ }}
        name,
        string,
        integer,
        real,
        op,  // punctuation and operators, spelled in `text`
        end,
    };
    Kind kind;
    std::string text;
    int line;
};

// Throws Failure for unterminated tags or strings and characters that begin no token.
std::vector<Token> tokenize(std::string_view source, std::string_view where);

[[noreturn]] void fail_at(std::string_view where, int line, std::string_view what);

}  // namespace terrace::jinja
