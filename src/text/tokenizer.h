// Text to token ids and back: byte-level BPE as described by a `tokenizer.json` (Hugging Face
// tokenizers, format version 1.0). Read once, then immutable: every const method may be called by
// any number of threads at once. Words are remembered in a per-thread cache of fixed size, so there
// are no locks and no growth.
//
// The pipeline is: added tokens cut out of the text -> normalizer (NFC, NFD, NFKC, NFKD or none) ->
// pre-tokenizer (Split, ByteLevel, Digits, or a Sequence of them) -> BPE by merge rank. The
// post-processor is not run: encode never adds a leading or trailing token, chat templates do.
// Whatever else a file asks for is an error that names the field; nothing is silently ignored.
// SPDX-License-Identifier: MIT
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/types.h"

namespace terrace {

class Tokenizer {
  public:
    // What encode makes of the text of a special token, such as "<|im_end|>".
    enum class Specials {
        parse,    // it becomes the special token: rendered chat prompts
        as_text,  // it is ordinary text: untrusted input. Added tokens that the file does not mark
                  // "special" are still recognised, as the format says.
    };
    // What decode does with special tokens.
    enum class SpecialText { keep, skip };

    // A model folder, or the path of the tokenizer.json itself.
    static Result<Tokenizer> load(const std::filesystem::path& dir_or_tokenizer_json);
    // `where` names the source in errors.
    static Result<Tokenizer> from_json(std::string_view tokenizer_json, std::string_view where);

    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    // Errors: text that is not UTF-8 (names the byte offset), more than 1 GiB of it, a pattern that
    // gives up on it, or a byte for which the vocabulary has no token.
    // Time is O(n log n) in the worst case (one endless word), linear for text.
    Result<std::vector<TokenId>> encode(std::string_view utf8, Specials specials) const;

    // Always valid UTF-8: ill-formed bytes become U+FFFD. Unknown ids decode to nothing.
    std::string decode(std::span<const TokenId> ids, SpecialText special = SpecialText::keep) const;

    // The raw bytes that a token stands for: possibly a part of a character. Empty for ids that the
    // file leaves unused or that are out of range. Lives as long as the tokenizer.
    std::string_view piece(TokenId id) const;

    // Largest id + 1; ids in between may be unused. A model's logits may be wider.
    int vocab_size() const;

    // By raw bytes, as piece() gives them: "<|im_end|>", " the".
    std::optional<TokenId> token_to_id(std::string_view bytes) const;

    // Marked "special" in added_tokens: skipped by decode(..., SpecialText::skip).
    bool is_special(TokenId id) const;
    // Any entry of added_tokens, special or not.
    bool is_added(TokenId id) const;

  private:
    struct Impl;
    explicit Tokenizer(std::unique_ptr<const Impl> impl);
    std::unique_ptr<const Impl> impl_;
};

}  // namespace terrace
