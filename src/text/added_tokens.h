// Finds added tokens ("<|im_start|>", ...) in text: leftmost, then longest, as the tokenizer.json
// format defines it, with its flags for surrounding white space and whole words. Built once, then
// const and safe for any number of threads. Cost: one table look-up per byte that cannot begin a
// token, a walk of at most the longest token otherwise.
// SPDX-License-Identifier: MIT
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace terrace {

struct AddedToken {
    TokenId id = -1;
    std::string content;
    bool special = false;
    bool normalized = false;   // is looked for in normalized text, after the others
    bool lstrip = false;       // takes the white space before it along
    bool rstrip = false;       // takes the white space after it along
    bool single_word = false;  // not inside a word: no \w on either side
};

class AddedTokenFinder {
  public:
    AddedTokenFinder() { nodes_.emplace_back(); }
    void add(const AddedToken& token, std::string_view spelled);

    struct Section {
        std::string_view text;
        TokenId id = -1;  // -1: ordinary text
    };
    // Cuts `text` into sections, in order, none of them empty text. Appends to `out`.
    void split(std::string_view text, std::vector<Section>& out) const;

    bool empty() const { return tokens_.empty(); }

  private:
    struct Node {
        int32_t first_child = -1;
        int32_t next_sibling = -1;
        int32_t token = -1;  // index into tokens_, when a token ends here
        uint8_t byte = 0;
    };
    int32_t child(int32_t node, uint8_t byte) const;

    std::vector<Node> nodes_;  // [0] is the root
    std::vector<AddedToken> tokens_;
    std::array<bool, 256> can_start_{};
};

}  // namespace terrace
