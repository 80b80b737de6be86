// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common.h"
#include "eval.h"
#include "feed.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace terrace {

double TextResult::perplexity() const {
    return std::exp(nll);
}

double TextResult::bits_per_byte() const {
    if (bytes == 0) return std::numeric_limits<double>::quiet_NaN();
    return nll * static_cast<double>(tokens_scored) / (std::log(2.0) * static_cast<double>(bytes));
}

std::vector<std::string> split_documents(const std::string& text) {
    constexpr std::string_view kSeparator = "\n<|endoftext|>\n";
    std::string whole = text;
    drop_final_newline(whole);
    std::vector<std::string> documents;
    for (size_t at = 0; at <= whole.size();) {
        const size_t end = std::min(whole.find(kSeparator, at), whole.size());
        if (end > at) documents.push_back(whole.substr(at, end - at));
        at = end + kSeparator.size();
    }
    return documents;
}

Result<TextResult> eval_text(Runtime& runtime, const std::string& text, int32_t window,
                             int64_t limit) {
    const Tokenizer* tokenizer = runtime.tokenizer();
    if (!tokenizer)
        return Error{Code::not_found, "--text needs a tokenizer.json in the model folder"};
    TextResult r;
    bool all = true;
    double sum = 0;
    Batch batch(runtime);
    const Stopwatch watch;
    for (const std::string& document : split_documents(text)) {
        TERRACE_ASSIGN(const std::vector<TokenId> ids,
                       tokenizer->encode(document, Tokenizer::Specials::as_text));
        r.bytes += static_cast<int64_t>(document.size());
        for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(window)) {
            if (limit > 0 && r.windows == limit) {
                all = false;
                break;
            }
            const auto part = std::span<const TokenId>(ids).subspan(
                at, std::min(static_cast<size_t>(window), ids.size() - at));
            ++r.windows;
            if (part.size() < 2) continue;
            TERRACE_ASSIGN(Sequence sequence, batch.start());
            // The last token is only scored, never fed.
            TERRACE_TRY(
                feed(batch, sequence, part.first(part.size() - 1), runtime.options().prefill_chunk,
                     LogitRows::all, [&](int64_t row, std::span<const float> logits) -> Status {
                         sum += negative_log_likelihood(logits, part[static_cast<size_t>(row) + 1]);
                         return {};
                     }));
            r.tokens += static_cast<int64_t>(part.size()) - 1;
        }
    }
    r.tokens_scored = r.tokens;
    r.seconds = watch.seconds();
    if (!all) r.bytes = 0;
    if (r.tokens_scored == 0)
        return Error{Code::invalid_argument, "--text: no window has two tokens, nothing to score"};
    r.nll = sum / static_cast<double>(r.tokens_scored);
    return r;
}

Result<KlResult> eval_kl(Runtime& runtime, const std::string& saved,
                         const std::vector<TokenId>& tokens) {
    const TensorPath where = split_tensor_path(saved, "logits");
    TERRACE_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(where.file));
    TERRACE_ASSIGN(const TensorView t, file.require(where.tensor));
    const auto vocab = static_cast<size_t>(runtime.config().vocab);
    const auto n = static_cast<int64_t>(tokens.size());
    if (t.dtype != DType::f32 || t.shape.size() != 2 || t.shape[0] < 1 || t.shape[0] > n ||
        t.shape[1] != runtime.config().vocab)
        return Error{
            Code::invalid_argument,
            fmt::format("{}: {} is {}, need F32 [1..{}, {}] (rows: at most one per token)",
                        where.file.string(), t.name, describe(t.dtype, t.shape), n, vocab)};
    KlResult r;
    const int64_t first = n - t.shape[0];
    std::vector<float> theirs(vocab);
    int64_t same = 0;
    const LogitSink compare = [&](int64_t row, std::span<const float> ours) -> Status {
        if (row < first) return {};
        std::memcpy(theirs.data(), t.data + 4 * static_cast<size_t>(row - first) * vocab,
                    4 * vocab);
        const double log_p = -negative_log_likelihood(theirs, 0) - static_cast<double>(theirs[0]);
        const double log_q = -negative_log_likelihood(ours, 0) - static_cast<double>(ours[0]);
        double kl = 0;
        for (size_t i = 0; i < vocab; ++i) {
            const double p = static_cast<double>(theirs[i]) + log_p;
            kl += std::exp(p) * (p - static_cast<double>(ours[i]) - log_q);
            r.max_abs = std::max(r.max_abs, static_cast<double>(std::abs(theirs[i] - ours[i])));
        }
        if (kl > r.max || r.rows == 0) r.max_row = row;
        r.max = std::max(r.max, kl);
        r.mean += kl;
        same += arg_max(theirs) == arg_max(ours);
        ++r.rows;
        return {};
    };
    Batch batch(runtime);
    TERRACE_ASSIGN(Sequence sequence, batch.start());
    TERRACE_TRY(
        feed(batch, sequence, tokens, runtime.options().prefill_chunk, LogitRows::all, compare));
    r.mean /= static_cast<double>(r.rows);
    r.top1 = static_cast<double>(same) / static_cast<double>(r.rows);
    return r;
}

Result<std::vector<PasskeySet>> read_passkeys(const std::filesystem::path& file, int32_t vocab) {
    TERRACE_ASSIGN(const std::string text, read_text_file(file, size_t{256} << 20));
    TERRACE_ASSIGN(const Json root,
                   parse_json(text, file.string(), JsonLimits{.max_bytes = size_t{256} << 20}));
    TERRACE_ASSIGN(const std::vector<Json::Member> members, root.members());
    std::vector<PasskeySet> sets;
    for (const Json::Member& member : members) {
        PasskeySet set{member.key, {}};
        TERRACE_ASSIGN(const std::vector<Json> prompts, member.value.elements());
        for (const Json& json : prompts) {
            PasskeyPrompt prompt;
            TERRACE_ASSIGN(prompt.answer_at, json.get_int("answer_at"));
            TERRACE_ASSIGN(const Json list, json.get("tokens"));
            TERRACE_ASSIGN(const std::vector<Json> tokens, list.elements());
            for (const Json& token : tokens) {
                TERRACE_ASSIGN(const int64_t id, token.as_int());
                if (id < 0 || id >= vocab)
                    return token.error(
                        Code::invalid_argument,
                        fmt::format("is {}, outside the vocabulary 0..{}", id, vocab - 1));
                prompt.tokens.push_back(static_cast<TokenId>(id));
            }
            const auto n = static_cast<int64_t>(prompt.tokens.size());
            if (prompt.answer_at < 1 || prompt.answer_at > n - kPasskeyDigits)
                return json.error(Code::invalid_argument,
                                  fmt::format("has answer_at {} of {} tokens, need 1..{}",
                                              prompt.answer_at, n, n - kPasskeyDigits));
            set.prompts.push_back(std::move(prompt));
        }
        sets.push_back(std::move(set));
    }
    return sets;
}

Result<std::vector<PasskeyCell>> eval_passkey(Runtime& runtime, const std::vector<PasskeySet>& sets,
                                              AnswerRows rows, int64_t limit) {
    Batch batch(runtime);
    const int32_t chunk = runtime.options().prefill_chunk;
    std::vector<PasskeyCell> cells;
    for (const PasskeySet& set : sets) {
        PasskeyCell cell;
        cell.name = set.name;
        const Stopwatch watch;
        for (const PasskeyPrompt& prompt : set.prompts) {
            if (limit > 0 && cell.prompts == limit) break;
            const std::span<const TokenId> all(prompt.tokens);
            const auto answer = static_cast<size_t>(prompt.answer_at);
            // Row answer-1 tells the first digit. The piece that holds it begins at a multiple of
            // 64, so that its bits are those of one long prompt.
            const size_t base = rows == AnswerRows::prefill ? (answer - 1) / 64 * 64 : answer - 1;
            int32_t right = 0;
            const LogitSink judge = [&](int64_t row, std::span<const float> logits) -> Status {
                const size_t next = base + static_cast<size_t>(row) + 1;
                if (next >= answer) right += arg_max(logits) == all[next];
                return {};
            };
            TERRACE_ASSIGN(Sequence sequence, batch.start());
            TERRACE_TRY(feed(batch, sequence, all.first(base), chunk, LogitRows::none, {}));
            TERRACE_TRY(feed(batch, sequence, all.subspan(base, answer + kPasskeyDigits - 1 - base),
                             rows == AnswerRows::prefill ? chunk : 1, LogitRows::all, judge));
            ++cell.prompts;
            cell.digits += right;
            cell.exact += right == kPasskeyDigits;
        }
        cell.seconds = watch.seconds();
        cells.push_back(std::move(cell));
    }
    return cells;
}

}  // namespace terrace
