// Python's str operations on UTF-8 text, for filters and methods of chat templates. Positions count
// characters; ill-formed bytes count as one character per group. Any thread, no state.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::jinja {

size_t count_characters(std::string_view s);
// Byte offset of character `n`, at most s.size().
size_t character_offset(std::string_view s, size_t n);

// Python's white space: Unicode's, and the four ASCII separators.
bool is_python_space(char32_t p);

enum class Side : uint8_t { left, right, both };
// Removes characters of `chars`, or white space when it is null.
std::string_view strip(std::string_view s, Side side, const std::string_view* chars = nullptr);

// Linear time for any input. npos when absent.
size_t find_text(std::string_view s, std::string_view needle, size_t from = 0);
size_t rfind_text(std::string_view s, std::string_view needle);

enum class Direction : uint8_t { forward, backward };
// limit < 0: no limit. The separator must not be empty.
std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t limit,
                                    Direction direction);
std::vector<std::string_view> split_space(std::string_view s, int64_t limit, Direction direction);
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends);

// At most `limit` replacements, all when negative. Gives up (empty result, too_long) above
// max_bytes.
std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t limit,
                    size_t max_bytes, bool& too_long);

// Case mapping one character to one, except for sharp s in to_upper.
std::string to_upper(std::string_view s);
std::string to_lower(std::string_view s);
std::string capitalize(std::string_view s);
std::string title_method(std::string_view s);  // str.title()
std::string title_filter(std::string_view s);  // Jinja's title filter: words end at space - ( { [ <
std::string swap_case(std::string_view s);

enum class CharClass : uint8_t { digit, alpha, alnum, space };
bool all_of_class(std::string_view s, CharClass c);  // false for empty text
bool is_upper(std::string_view s);                   // some cased character, none of the other case
bool is_lower(std::string_view s);

std::string escape_html(std::string_view s);

}  // namespace terrace::jinja
