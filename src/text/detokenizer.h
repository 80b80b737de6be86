// Streaming decode: one token in, the text that is certain by now out. Holds back at most three
// bytes, the beginning of a character; never emits half of one. The concatenation of all push()
// results and the final flush() equals Tokenizer::decode of all ids, ill-formed bytes included.
// One stream, one thread; the tokenizer must outlive it.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>

#include "text/tokenizer.h"

namespace terrace {

class Detokenizer {
  public:
    explicit Detokenizer(const Tokenizer& tokenizer,
                         Tokenizer::SpecialText special = Tokenizer::SpecialText::skip)
        : tokenizer_(&tokenizer), special_(special) {}

    std::string push(TokenId id);

    // End of stream: a character that never completed becomes U+FFFD. Ready for a new stream after.
    std::string flush();

  private:
    const Tokenizer* tokenizer_;
    Tokenizer::SpecialText special_;
    std::string pending_;  // a valid but incomplete prefix of one character, 0..3 bytes
};

}  // namespace terrace
