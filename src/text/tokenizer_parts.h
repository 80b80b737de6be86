// What a tokenizer.json says, checked and turned into working parts. Internal to src/text: the
// reader makes it, Tokenizer runs it. Immutable once read.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace terrace {

struct TokenizerParts {
    // Raw bytes of every id, in one block: bytes.substr(offsets[id], offsets[id+1] - offsets[id]).
    std::string bytes;
    std::vector<uint32_t> offsets;  // [vocab_size + 1]
    enum Flag : uint8_t { used = 1, added = 2, special = 4 };
    std::vector<uint8_t> flags;  // [vocab_size]
    BytesIndex ids;              // bytes -> id, added tokens first; keys point into `bytes`
    BytesIndex words;            // bytes -> id of the BPE vocabulary; filled only for ignore_merges
    bool ignore_merges = false;

    Bpe bpe;
    Normalization normalization = Normalization::none;
    PreTokenizer pre_tokenizer;
    // Indexed by Tokenizer::Specials: parse finds all added tokens, as_text only those not special.
    AddedTokenFinder raw_tokens[2];         // looked for in the text as given
    AddedTokenFinder normalized_tokens[2];  // looked for after normalization

    std::string_view piece(size_t id) const {
        return std::string_view(bytes).substr(offsets[id], offsets[id + 1] - offsets[id]);
    }
};

Result<TokenizerParts> read_tokenizer_json(std::string_view json, std::string_view where);

}  // namespace terrace
