// See template_text.h.
// SPDX-License-Identifier: MIT
#include "text/template_text.h"

#include <string.h>  // memmem
#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace terrace::jinja {
namespace {

// Calls f(point, bytes of the character); point is U+FFFD for ill-formed groups.
template <class F>
void each_character(std::string_view s, F&& f) {
    while (!s.empty()) {
        const Utf8Step step = utf8_step(s);
        f(step.kind == Utf8Kind::valid ? step.point : char32_t{0xFFFD}, s.substr(0, step.bytes));
        s.remove_prefix(step.bytes);
    }
}

std::string_view last_character(std::string_view s) {
    size_t i = s.size() - 1;
    while (i > 0 && s.size() - i < 4 && (static_cast<uint8_t>(s[i]) & 0xC0) == 0x80)
        --i;
    const Utf8Step step = utf8_step(s.substr(i));
    return step.kind == Utf8Kind::valid && i + step.bytes == s.size() ? s.substr(i)
                                                                      : s.substr(s.size() - 1);
}

char32_t point_of(std::string_view character) {
    const Utf8Step step = utf8_step(character);
    return step.kind == Utf8Kind::valid ? step.point : char32_t{0xFFFD};
}

char32_t upper_of(char32_t p) {
    return static_cast<char32_t>(utf8proc_toupper(static_cast<int32_t>(p)));
}
char32_t lower_of(char32_t p) {
    return static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(p)));
}

utf8proc_category_t category(char32_t p) {
    return utf8proc_category(static_cast<int32_t>(p));
}
bool is_letter(char32_t p) {
    const auto c = category(p);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_LO;
}
bool is_cased(char32_t p) {
    return upper_of(p) != p || lower_of(p) != p;
}

template <class F>
std::string map_characters(std::string_view s, F&& f) {
    std::string out;
    out.reserve(s.size());
    each_character(s, [&](char32_t p, std::string_view) { append_utf8(out, f(p)); });
    return out;
}

bool is_line_end(char32_t p) {
    return (p >= 0x0A && p <= 0x0D) || (p >= 0x1C && p <= 0x1E) || p == 0x85 || p == 0x2028 ||
           p == 0x2029;
}

}  // namespace

size_t count_characters(std::string_view s) {
    size_t n = 0;
    each_character(s, [&](char32_t, std::string_view) { ++n; });
    return n;
}

size_t character_offset(std::string_view s, size_t n) {
    size_t at = 0;
    while (n > 0 && at < s.size()) {
        at += utf8_step(s.substr(at)).bytes;
        --n;
    }
    return at;
}

bool is_python_space(char32_t p) {
    return is_unicode_space(p) || (p >= 0x1C && p <= 0x1F);
}

std::string_view strip(std::string_view s, Side side, const std::string_view* chars) {
    const auto goes = [&](std::string_view c) {
        return chars ? find_text(*chars, c) != std::string_view::npos
                     : is_python_space(point_of(c));
    };
    if (side != Side::right)
        while (!s.empty()) {
            const std::string_view c = s.substr(0, utf8_step(s).bytes);
            if (!goes(c)) break;
            s.remove_prefix(c.size());
        }
    if (side != Side::left)
        while (!s.empty()) {
            const std::string_view c = last_character(s);
            if (!goes(c)) break;
            s.remove_suffix(c.size());
        }
    return s;
}

size_t find_text(std::string_view s, std::string_view needle, size_t from) {
    if (from > s.size()) return std::string_view::npos;
    if (needle.empty()) return from;
    const void* at = memmem(s.data() + from, s.size() - from, needle.data(), needle.size());
    return at ? static_cast<size_t>(static_cast<const char*>(at) - s.data())
              : std::string_view::npos;
}

size_t rfind_text(std::string_view s, std::string_view needle) {
    if (needle.empty()) return s.size();
    // Backwards through reversed copies, so that the linear search serves both directions.
    const std::string reversed(s.rbegin(), s.rend());
    const std::string reversed_needle(needle.rbegin(), needle.rend());
    const size_t at = find_text(reversed, reversed_needle);
    return at == std::string_view::npos ? at : s.size() - at - needle.size();
}

std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t limit,
                                    Direction direction) {
    std::vector<size_t> cuts;
    if (direction == Direction::forward) {
        for (size_t at = find_text(s, separator);
             at != std::string_view::npos && (limit < 0 || std::ssize(cuts) < limit);
             at = find_text(s, separator, at + separator.size()))
            cuts.push_back(at);
    } else {
        const std::string reversed(s.rbegin(), s.rend());
        const std::string reversed_separator(separator.rbegin(), separator.rend());
        for (size_t at = find_text(reversed, reversed_separator);
             at != std::string_view::npos && (limit < 0 || std::ssize(cuts) < limit);
             at = find_text(reversed, reversed_separator, at + separator.size()))
            cuts.push_back(s.size() - at - separator.size());
        std::reverse(cuts.begin(), cuts.end());
    }
    std::vector<std::string_view> out;
    size_t begin = 0;
    for (const size_t cut : cuts) {
        out.push_back(s.substr(begin, cut - begin));
        begin = cut + separator.size();
    }
    out.push_back(s.substr(begin));
    return out;
}

std::vector<std::string_view> split_space(std::string_view s, int64_t limit, Direction direction) {
    std::vector<std::string_view> out;
    const bool forward = direction == Direction::forward;
    s = strip(s, Side::both);
    while (!s.empty()) {
        if (limit >= 0 && std::ssize(out) >= limit) {
            out.push_back(s);
            break;
        }
        size_t n = 0;
        while (n < s.size()) {
            const std::string_view c = forward ? s.substr(n, utf8_step(s.substr(n)).bytes)
                                               : last_character(s.substr(0, s.size() - n));
            if (is_python_space(point_of(c))) break;
            n += c.size();
        }
        out.push_back(forward ? s.substr(0, n) : s.substr(s.size() - n));
        if (forward)
            s.remove_prefix(n);
        else
            s.remove_suffix(n);
        s = strip(s, forward ? Side::left : Side::right);
    }
    if (!forward) std::reverse(out.begin(), out.end());
    return out;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
    std::vector<std::string_view> out;
    size_t begin = 0;
    for (size_t at = 0; at < s.size();) {
        const Utf8Step step = utf8_step(s.substr(at));
        if (step.kind != Utf8Kind::valid || !is_line_end(step.point)) {
            at += step.bytes;
            continue;
        }
        size_t end = at + step.bytes;
        if (s[at] == '\r' && end < s.size() && s[end] == '\n') ++end;
        out.push_back(s.substr(begin, (keep_ends ? end : at) - begin));
        begin = at = end;
    }
    if (begin < s.size()) out.push_back(s.substr(begin));
    return out;
}

std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t limit,
                    size_t max_bytes, bool& too_long) {
    too_long = false;
    std::string out;
    size_t at = 0;
    const auto full = [&] { return too_long = out.size() > max_bytes; };
    if (from.empty()) {  // Python: before every character and at the end
        while (limit != 0) {
            out += to;
            if (full()) return {};
            if (limit > 0) --limit;
            if (at >= s.size()) return out;
            const size_t n = utf8_step(s.substr(at)).bytes;
            out += s.substr(at, n);
            at += n;
        }
        out += s.substr(at);
        return out;
    }
    while (limit != 0) {
        const size_t found = find_text(s, from, at);
        if (found == std::string_view::npos) break;
        out.append(s.substr(at, found - at)).append(to);
        if (full()) return {};
        at = found + from.size();
        if (limit > 0) --limit;
    }
    out += s.substr(at);
    full();
    return out;
}

std::string to_upper(std::string_view s) {
    std::string out;
    out.reserve(s.size());
    each_character(s, [&](char32_t p, std::string_view) {
        if (p == 0xDF)
            out += "SS";  // the one common letter whose upper case is two
        else
            append_utf8(out, upper_of(p));
    });
    return out;
}
std::string to_lower(std::string_view s) {
    return map_characters(s, lower_of);
}

std::string capitalize(std::string_view s) {
    bool first = true;
    return map_characters(
        s, [&](char32_t p) { return std::exchange(first, false) ? upper_of(p) : lower_of(p); });
}

std::string title_method(std::string_view s) {
    bool inside = false;
    return map_characters(s, [&](char32_t p) {
        const bool cased = is_cased(p);
        const char32_t out = !cased ? p : inside ? lower_of(p) : upper_of(p);
        inside = cased;
        return out;
    });
}

std::string title_filter(std::string_view s) {
    bool inside = false;
    return map_characters(s, [&](char32_t p) {
        if (is_python_space(p) || p == '-' || p == '(' || p == '{' || p == '[' || p == '<') {
            inside = false;
            return p;
        }
        return std::exchange(inside, true) ? lower_of(p) : upper_of(p);
    });
}

std::string swap_case(std::string_view s) {
    return map_characters(s,
                          [](char32_t p) { return lower_of(p) != p ? lower_of(p) : upper_of(p); });
}

bool all_of_class(std::string_view s, CharClass c) {
    bool all = !s.empty();
    each_character(s, [&](char32_t p, std::string_view) {
        const bool digit = category(p) == UTF8PROC_CATEGORY_ND;
        switch (c) {
            case CharClass::digit:
                all &= digit;
                break;
            case CharClass::alpha:
                all &= is_letter(p);
                break;
            case CharClass::alnum:
                all &= digit || is_letter(p);
                break;
            case CharClass::space:
                all &= is_python_space(p);
                break;
        }
    });
    return all;
}

bool is_upper(std::string_view s) {
    bool some = false, other = false;
    each_character(s, [&](char32_t p, std::string_view) {
        some |= lower_of(p) != p;
        other |= upper_of(p) != p;
    });
    return some && !other;
}

bool is_lower(std::string_view s) {
    bool some = false, other = false;
    each_character(s, [&](char32_t p, std::string_view) {
        some |= upper_of(p) != p;
        other |= lower_of(p) != p;
    });
    return some && !other;
}

std::string escape_html(std::string_view s) {
    std::string out;
    for (const char c : s) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&#34;";
                break;
            case '\'':
                out += "&#39;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

}  // namespace terrace::jinja
