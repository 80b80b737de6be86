// See pre_tokenizer.h.
// SPDX-License-Identifier: MIT
#include "text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <utility>

namespace terrace {
namespace {

// Backtracking steps and memory for the interpreter, which only runs when the JIT's stack is too
// small. Shipped patterns need none of it: their loops are over single character classes.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;

constexpr std::string_view kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// PCRE2's \s with UCP is White_Space plus U+180E, which Unicode moved to the format characters. A
// class without it says the same as tokenizer.json means. \S inside a class has no such spelling
// and is left alone.
std::string unicode_space_pattern(std::string_view pattern) {
    constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
    std::string out;
    out.reserve(pattern.size() + 64);
    int class_depth = 0;
    for (size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '\\' && i + 1 < pattern.size()) {
            const char next = pattern[++i];
            if (next == 's' && class_depth > 0) {
                out += kSpaces;
            } else if ((next == 's' || next == 'S') && class_depth == 0) {
                out += next == 's' ? "[" : "[^";
                out += kSpaces;
                out += ']';
            } else {
                out += c;
                out += next;
            }
            continue;
        }
        if (c == '[' && class_depth == 0) {
            class_depth = 1;
            out += c;
            if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
            if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
            continue;
        }
        if (c == ']' && class_depth > 0) class_depth = 0;
        out += c;
    }
    return out;
}

struct MatchDataDeleter {
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct MatchContextDeleter {
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
struct CodeDeleter {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};

std::string pcre2_message(int code) {
    char text[160] = {};
    pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
    return text;
}

struct Span {
    size_t begin;
    size_t end;
    bool match;
};

}  // namespace

struct PreTokenizer::Stage {
    std::unique_ptr<pcre2_code, CodeDeleter> code;  // null: this stage adds a prefix space
    bool jit = false;
    SplitBehavior behavior = SplitBehavior::isolated;
    std::string where;

    // Calls out(begin, end) for each match that is not empty.
    template <class F>
    Status each_match(std::string_view text, pcre2_match_data* data, F&& out) const {
        const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
        size_t pos = 0;
        while (pos < text.size()) {
            int rc = PCRE2_ERROR_JIT_STACKLIMIT;
            if (jit)
                rc = pcre2_jit_match(code.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK,
                                     data, nullptr);
            if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
                std::unique_ptr<pcre2_match_context, MatchContextDeleter> context(
                    pcre2_match_context_create(nullptr));
                pcre2_set_match_limit(context.get(), kMatchLimit);
                pcre2_set_heap_limit(context.get(), kHeapLimitKib);
                rc = pcre2_match(code.get(), subject, text.size(), pos,
                                 PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context.get());
            }
            if (rc == PCRE2_ERROR_NOMATCH) break;
            if (rc < 0)
                return Error{Code::unsupported,
                             fmt::format("{}: the pattern gives up at byte {} of a piece of {} "
                                         "bytes: {}",
                                         where, pos, text.size(), pcre2_message(rc))};
            const size_t* ovector = pcre2_get_ovector_pointer(data);
            const size_t begin = ovector[0], end = ovector[1];
            if (end > begin) {
                out(begin, end);
                pos = end;
                continue;
            }
            // An empty match (or \K past the end) makes no word; go on one character later.
            pos = std::max(pos, begin) + 1;
            while (pos < text.size() && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80)
                ++pos;
        }
        return {};
    }
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

namespace {

Result<std::unique_ptr<pcre2_code, CodeDeleter>> compile(std::string_view pattern, uint32_t options,
                                                         std::string_view where) {
    int code = 0;
    size_t offset = 0;
    std::unique_ptr<pcre2_code, CodeDeleter> compiled(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &code,
                      &offset, nullptr));
    if (!compiled)
        return Error{Code::unsupported, fmt::format("{}: pattern refused at byte {}: {}", where,
                                                    offset, pcre2_message(code))};
    return compiled;
}

}  // namespace

Status PreTokenizer::add_regex(std::string_view pattern, SplitBehavior behavior,
                               std::string_view where) {
    Stage stage;
    TERRACE_ASSIGN(stage.code, compile(unicode_space_pattern(pattern),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, where));
    stage.jit = pcre2_jit_compile(stage.code.get(), PCRE2_JIT_COMPLETE) == 0;
    stage.behavior = behavior;
    stage.where = where;
    stages_.push_back(std::move(stage));
    return {};
}

Status PreTokenizer::add_literal(std::string_view text, SplitBehavior behavior,
                                 std::string_view where) {
    Stage stage;
    TERRACE_ASSIGN(stage.code, compile(text, PCRE2_UTF | PCRE2_LITERAL, where));
    stage.jit = pcre2_jit_compile(stage.code.get(), PCRE2_JIT_COMPLETE) == 0;
    stage.behavior = behavior;
    stage.where = where;
    stages_.push_back(std::move(stage));
    return {};
}

Status PreTokenizer::add_gpt2(std::string_view where) {
    return add_regex(kGpt2Pattern, SplitBehavior::isolated, where);
}

void PreTokenizer::add_prefix_space() {
    stages_.emplace_back();
}

Status PreTokenizer::split(std::string_view text, std::vector<std::string_view>& words,
                           std::deque<std::string>& storage) const {
    words.clear();
    if (text.empty()) return {};
    words.push_back(text);
    std::vector<std::string_view> input;
    std::vector<Span> spans;
    for (const Stage& stage : stages_) {
        input.swap(words);
        words.clear();
        if (!stage.code) {
            for (const std::string_view word : input) {
                if (word.front() == ' ')
                    words.push_back(word);
                else
                    words.push_back(storage.emplace_back(" " + std::string(word)));
            }
            continue;
        }
        const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
            pcre2_match_data_create(1, nullptr));
        if (!data) return Error{Code::out_of_memory, "PCRE2 match data"};
        for (const std::string_view word : input) {
            size_t last = 0;
            if (stage.behavior == SplitBehavior::isolated) {
                TERRACE_TRY(stage.each_match(word, data.get(), [&](size_t begin, size_t end) {
                    if (begin > last) words.push_back(word.substr(last, begin - last));
                    words.push_back(word.substr(begin, end - begin));
                    last = end;
                }));
                if (last < word.size()) words.push_back(word.substr(last));
                continue;
            }
            spans.clear();
            TERRACE_TRY(stage.each_match(word, data.get(), [&](size_t begin, size_t end) {
                if (begin > last) spans.push_back({last, begin, false});
                spans.push_back({begin, end, true});
                last = end;
            }));
            if (last < word.size()) spans.push_back({last, word.size(), false});

            size_t open = 0;  // where the word being built begins, for the merging behaviours
            for (size_t i = 0; i < spans.size(); ++i) {
                const Span& span = spans[i];
                const bool more = i + 1 < spans.size();
                switch (stage.behavior) {
                    case SplitBehavior::isolated:
                        break;
                    case SplitBehavior::removed:
                        if (!span.match)
                            words.push_back(word.substr(span.begin, span.end - span.begin));
                        break;
                    case SplitBehavior::merged_with_previous:
                        // A match closes; text closes unless a match follows to join it.
                        if (span.match || !more) {
                            words.push_back(word.substr(open, span.end - open));
                            open = span.end;
                        }
                        break;
                    case SplitBehavior::merged_with_next:
                        // Text closes; a match waits for text unless another match follows.
                        if (!span.match || !more || spans[i + 1].match) {
                            words.push_back(word.substr(open, span.end - open));
                            open = span.end;
                        }
                        break;
                    case SplitBehavior::contiguous:
                        if (!more || spans[i + 1].match != span.match) {
                            words.push_back(word.substr(open, span.end - open));
                            open = span.end;
                        }
                        break;
                }
            }
        }
    }
    return {};
}

}  // namespace terrace
