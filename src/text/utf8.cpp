// See utf8.h. Table-free: the four length classes and the three narrowed second-byte ranges
// (overlong forms, surrogates, above U+10FFFF) are spelled out.
// SPDX-License-Identifier: MIT
#include "text/utf8.h"

#include <simdjson.h>

namespace terrace {

Utf8Step utf8_step(std::string_view text) {
    const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t lead = at(0);
    if (lead < 0x80) return {Utf8Kind::valid, 1, lead};
    size_t length = 0;
    uint8_t low = 0x80, high = 0xBF;  // allowed range of the second byte
    char32_t point = 0;
    if (lead >= 0xC2 && lead <= 0xDF) {
        length = 2;
        point = lead & 0x1Fu;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        length = 3;
        point = lead & 0x0Fu;
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        length = 4;
        point = lead & 0x07u;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
    } else {
        return {Utf8Kind::invalid, 1, 0};
    }
    for (size_t i = 1; i < length; ++i) {
        if (i == text.size()) return {Utf8Kind::incomplete, static_cast<uint8_t>(i), 0};
        const uint8_t byte = at(i);
        if (byte < low || byte > high) return {Utf8Kind::invalid, static_cast<uint8_t>(i), 0};
        low = 0x80;
        high = 0xBF;
        point = (point << 6) | (byte & 0x3Fu);
    }
    return {Utf8Kind::valid, static_cast<uint8_t>(length), point};
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
    if (simdjson::validate_utf8(text.data(), text.size())) return std::nullopt;
    size_t pos = 0;
    while (pos < text.size()) {
        const Utf8Step step = utf8_step(text.substr(pos));
        if (step.kind != Utf8Kind::valid) return pos;
        pos += step.bytes;
    }
    return std::nullopt;
}

void append_utf8(std::string& out, char32_t point) {
    const auto put = [&](char32_t v) { out.push_back(static_cast<char>(v)); };
    if (point < 0x80) {
        put(point);
    } else if (point < 0x800) {
        put(0xC0 | (point >> 6));
        put(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        put(0xE0 | (point >> 12));
        put(0x80 | ((point >> 6) & 0x3F));
        put(0x80 | (point & 0x3F));
    } else {
        put(0xF0 | (point >> 18));
        put(0x80 | ((point >> 12) & 0x3F));
        put(0x80 | ((point >> 6) & 0x3F));
        put(0x80 | (point & 0x3F));
    }
}

std::string utf8_lossy(std::string_view bytes) {
    if (simdjson::validate_utf8(bytes.data(), bytes.size())) return std::string(bytes);
    std::string out;
    out.reserve(bytes.size() + 16);
    while (!bytes.empty()) {
        const Utf8Step step = utf8_step(bytes);
        if (step.kind == Utf8Kind::valid)
            out.append(bytes.substr(0, step.bytes));
        else
            out.append(kReplacementCharacter);
        bytes.remove_prefix(step.bytes);
    }
    return out;
}

bool is_unicode_space(char32_t p) {
    return (p >= 0x09 && p <= 0x0D) || p == 0x20 || p == 0x85 || p == 0xA0 || p == 0x1680 ||
           (p >= 0x2000 && p <= 0x200A) || p == 0x2028 || p == 0x2029 || p == 0x202F ||
           p == 0x205F || p == 0x3000;
}

}  // namespace terrace
