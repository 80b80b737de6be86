// See added_tokens.h.
// SPDX-License-Identifier: MIT
#include "text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace terrace {
namespace {

// \w of Unicode regular expressions: letters, marks, digits and letter numbers, connectors.
bool is_word(char32_t p) {
    switch (utf8proc_category(static_cast<int32_t>(p))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_PC:
            return true;
        default:
            return p == 0x200C || p == 0x200D;
    }
}

size_t start_of_last_char(std::string_view text) {
    size_t i = text.size() - 1;
    while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80)
        --i;
    return i;
}

}  // namespace

int32_t AddedTokenFinder::child(int32_t node, uint8_t byte) const {
    int32_t c = nodes_[static_cast<size_t>(node)].first_child;
    while (c >= 0 && nodes_[static_cast<size_t>(c)].byte != byte)
        c = nodes_[static_cast<size_t>(c)].next_sibling;
    return c;
}

void AddedTokenFinder::add(const AddedToken& token, std::string_view spelled) {
    if (spelled.empty()) return;
    int32_t node = 0;
    for (const char ch : spelled) {
        const auto byte = static_cast<uint8_t>(ch);
        int32_t next = child(node, byte);
        if (next < 0) {
            next = static_cast<int32_t>(nodes_.size());
            nodes_.push_back({-1, nodes_[static_cast<size_t>(node)].first_child, -1, byte});
            nodes_[static_cast<size_t>(node)].first_child = next;
        }
        node = next;
    }
    can_start_[static_cast<uint8_t>(spelled[0])] = true;
    nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(tokens_.size());
    tokens_.push_back(token);
}

void AddedTokenFinder::split(std::string_view text, std::vector<Section>& out) const {
    size_t done = 0;  // everything before is in `out`
    size_t pos = 0;
    while (pos < text.size()) {
        if (!can_start_[static_cast<uint8_t>(text[pos])]) {
            ++pos;
            continue;
        }
        int32_t found = -1;
        size_t found_end = 0;
        int32_t node = 0;
        for (size_t i = pos; i < text.size(); ++i) {
            node = child(node, static_cast<uint8_t>(text[i]));
            if (node < 0) break;
            if (nodes_[static_cast<size_t>(node)].token >= 0) {
                found = nodes_[static_cast<size_t>(node)].token;
                found_end = i + 1;
            }
        }
        if (found < 0) {
            ++pos;
            continue;
        }
        const AddedToken& token = tokens_[static_cast<size_t>(found)];
        size_t begin = pos, end = found_end;
        pos = found_end;
        if (token.single_word) {
            const bool word_before =
                begin > 0 &&
                is_word(utf8_step(text.substr(start_of_last_char(text.substr(0, begin)))).point);
            const bool word_after = end < text.size() && is_word(utf8_step(text.substr(end)).point);
            if (word_before || word_after) continue;
        }
        if (token.lstrip) {
            while (begin > done) {
                const size_t last = start_of_last_char(text.substr(0, begin));
                if (!is_unicode_space(utf8_step(text.substr(last)).point)) break;
                begin = std::max(last, done);
            }
        }
        if (token.rstrip) {
            while (end < text.size()) {
                const Utf8Step step = utf8_step(text.substr(end));
                if (!is_unicode_space(step.point)) break;
                end += step.bytes;
            }
        }
        begin = std::max(begin, done);
        if (begin > done) out.push_back({text.substr(done, begin - done), -1});
        out.push_back({text.substr(begin, end - begin), token.id});
        done = end;
        pos = std::max(pos, end);
    }
    if (done < text.size()) out.push_back({text.substr(done), -1});
}

}  // namespace terrace
