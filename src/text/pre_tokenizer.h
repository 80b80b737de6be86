// Cuts normalized text into the words that BPE never merges across: the `pre_tokenizer` of a
// tokenizer.json. Compiled once, then const and safe for any number of threads.
// Patterns are run by PCRE2 with its JIT, under limits: a pattern that runs away is an error, never
// a hang or a crash. `\s` is widened or narrowed to Unicode's White_Space, as the format means it.
// SPDX-License-Identifier: MIT
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace terrace {

enum class SplitBehavior : uint8_t {
    isolated,              // matches and the text between them are all words
    removed,               // matches are dropped
    merged_with_previous,  // a match ends the word before it
    merged_with_next,      // a match begins the word after it
    contiguous,            // as isolated, but touching matches are one word
};

class PreTokenizer {
  public:
    PreTokenizer();
    PreTokenizer(PreTokenizer&&) noexcept;
    PreTokenizer& operator=(PreTokenizer&&) noexcept;
    ~PreTokenizer();

    // Stages run in the order they were added. `where` names the JSON field in errors.
    Status add_regex(std::string_view pattern, SplitBehavior behavior, std::string_view where);
    // Every text that is matched stays a piece of its own according to `behavior`.
    Status add_literal(std::string_view text, SplitBehavior behavior, std::string_view where);
    // The pattern of GPT-2 (behaviour isolated).
    Status add_gpt2(std::string_view where);
    // Every word that does not begin with a space gets one.
    void add_prefix_space();

    // Words of `text` in order, none empty. They are views of `text` or, after a prefix space, of
    // strings in `storage`.
    Status split(std::string_view text, std::vector<std::string_view>& words,
                 std::deque<std::string>& storage) const;

  private:
    struct Stage;
    std::vector<Stage> stages_;
};

}  // namespace terrace
