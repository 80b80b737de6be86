// See normalizer.h. Character data come from utf8proc; its composition pass is linear and is used
// as it is.
// SPDX-License-Identifier: MIT
#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "text/utf8.h"

namespace terrace {
namespace {

constexpr bool is_hangul_jamo(char32_t p) {
    return p >= 0x1100 && p <= 0x11FF;
}

// Sufficient, not necessary: a character for which normal forms change neither itself nor a
// neighbour. Below U+0300 nothing composes or reorders, and NFC keeps what is composed.
bool inert(char32_t p, Normalization form) {
    if (p < 0x80) return true;
    if (p < 0x300) return form == Normalization::nfc;
    if (p >= 0x4E00 && p <= 0x9FFF) return true;
    if (p >= 0xAC00 && p <= 0xD7A3)
        return form == Normalization::nfc || form == Normalization::nfkc;
    if (is_hangul_jamo(p)) return false;
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<int32_t>(p));
    return property->combining_class == 0 && property->decomp_seqindex == UINT16_MAX &&
           property->comb_index == UINT16_MAX;
}

int combining_class(int32_t p) {
    return utf8proc_get_property(p)->combining_class;
}

}  // namespace

std::string_view normalize(std::string_view utf8, Normalization form, std::string& storage) {
    if (form == Normalization::none) return utf8;
    bool unchanged = true;
    for (size_t i = 0; i < utf8.size();) {
        if (static_cast<uint8_t>(utf8[i]) < 0x80) {
            ++i;
            continue;
        }
        const Utf8Step step = utf8_step(utf8.substr(i));
        if (!inert(step.point, form)) {
            unchanged = false;
            break;
        }
        i += step.bytes;
    }
    if (unchanged) return utf8;

    const bool compat = form == Normalization::nfkc || form == Normalization::nfkd;
    const bool compose = form == Normalization::nfc || form == Normalization::nfkc;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                        (compat ? UTF8PROC_COMPAT : 0));
    std::vector<int32_t> points;
    points.reserve(utf8.size() + utf8.size() / 4 + 8);
    for (size_t i = 0; i < utf8.size();) {
        const Utf8Step step = utf8_step(utf8.substr(i));
        i += step.bytes;
        if (step.point < 0x80) {
            points.push_back(static_cast<int32_t>(step.point));
            continue;
        }
        int32_t parts[32];  // the longest decomposition in Unicode has 18 code points
        int boundary = 0;
        const auto n = utf8proc_decompose_char(static_cast<int32_t>(step.point), parts, 32, options,
                                               &boundary);
        if (n < 0 || n > 32)
            points.push_back(static_cast<int32_t>(step.point));
        else
            points.insert(points.end(), parts, parts + n);
    }
    for (size_t i = 0; i < points.size();) {
        if (points[i] < 0x300 || combining_class(points[i]) == 0) {
            ++i;
            continue;
        }
        size_t end = i + 1;
        while (end < points.size() && combining_class(points[end]) != 0)
            ++end;
        if (end - i > 1)
            std::stable_sort(
                points.begin() + static_cast<std::ptrdiff_t>(i),
                points.begin() + static_cast<std::ptrdiff_t>(end),
                [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
        i = end;
    }
    auto count = static_cast<utf8proc_ssize_t>(points.size());
    if (compose) {
        const auto composed = utf8proc_normalize_utf32(
            points.data(), count,
            static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        if (composed >= 0) count = composed;
    }
    storage.clear();
    storage.reserve(utf8.size() + 16);
    for (utf8proc_ssize_t i = 0; i < count; ++i)
        append_utf8(storage, static_cast<char32_t>(points[static_cast<size_t>(i)]));
    return storage;
}

}  // namespace terrace
