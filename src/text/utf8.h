// UTF-8 steps shared by the tokenizer, the detokenizer and the template engine. Any thread, no
// state. Ill-formed bytes are grouped the way the Unicode standard recommends (chapter 3, "maximal
// subparts"): one U+FFFD for the longest prefix of a character that could still have become valid.
// Whole-text and streaming decoding share utf8_step, so they cannot disagree.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : uint8_t {
    valid,       // `bytes` bytes are one character
    invalid,     // `bytes` bytes are one ill-formed group
    incomplete,  // the text ends inside a character that is valid so far
};

struct Utf8Step {
    Utf8Kind kind;
    uint8_t bytes;   // 1..4
    char32_t point;  // only when valid
};

// Looks at the first character of `text`, which must not be empty.
Utf8Step utf8_step(std::string_view text);

// Byte offset of the first ill-formed or truncated character; nothing when all is well.
std::optional<size_t> first_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t point);

// Replaces each ill-formed group by U+FFFD, a truncated tail included.
std::string utf8_lossy(std::string_view bytes);

// Property White_Space of Unicode: what `\s` means in tokenizer.json patterns.
bool is_unicode_space(char32_t point);

}  // namespace terrace
