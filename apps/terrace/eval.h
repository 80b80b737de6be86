// The three measurements of terrace eval, as functions from a runtime and inputs to plain results.
// Engine thread only; each uses its own Batch and leaves nothing behind.
// SPDX-License-Identifier: MIT
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "engine/batch.h"

namespace terrace {

// Perplexity: every document is cut into consecutive windows, each computed from an empty state;
// the first token of a window is not scored.
struct TextResult {
    int64_t windows = 0, tokens_scored = 0, bytes = 0;
    double nll = 0;  // mean, nats per scored token
    double seconds = 0;
    int64_t tokens = 0;  // computed
    double perplexity() const;
    // Over the bytes of all documents, the unscored first tokens' included: comparable between
    // tokenizers to within one token a window. NaN when --limit left documents unread.
    double bits_per_byte() const;
};
// Documents are separated by a line <|endoftext|>; a final newline is not part of the last.
std::vector<std::string> split_documents(const std::string& text);
Result<TextResult> eval_text(Runtime& runtime, const std::string& text, int32_t window,
                             int64_t limit);

// Saved logits against ours for the same tokens. When the file has fewer rows than there are
// tokens, they are the last ones.
struct KlResult {
    int64_t rows = 0;
    double mean = 0, max = 0;  // KL(saved || ours), nats
    int64_t max_row = 0;       // position of the largest
    double max_abs = 0;        // largest difference of a logit
    double top1 = 0;           // share of rows with the same arg max
};
Result<KlResult> eval_kl(Runtime& runtime, const std::string& saved,
                         const std::vector<TokenId>& tokens);

// Pass keys: five digits begin at answer_at; exact when each is the arg max given those before.
struct PasskeyCell {
    std::string name;  // "LENGTH.KIND"
    int64_t prompts = 0, exact = 0, digits = 0;
    double seconds = 0;
};
struct PasskeyPrompt {
    std::vector<TokenId> tokens;
    int64_t answer_at = 0;
};
struct PasskeySet {
    std::string name;
    std::vector<PasskeyPrompt> prompts;
};
constexpr int32_t kPasskeyDigits = 5;
// Rows of logits that eval_passkey asks for in one step: up to a 64-row piece and four digits.
constexpr int32_t kPasskeyLogitRows = 64 + kPasskeyDigits - 1;
enum class AnswerRows : uint8_t { prefill, decode };  // how the digits' rows are computed
Result<std::vector<PasskeySet>> read_passkeys(const std::filesystem::path& file, int32_t vocab);
Result<std::vector<PasskeyCell>> eval_passkey(Runtime& runtime, const std::vector<PasskeySet>& sets,
                                              AnswerRows rows, int64_t limit);

}  // namespace terrace
