// terrace eval: perplexity of a text, divergence from saved logits, recall of pass keys.
// SPDX-License-Identifier: MIT
#include "eval.h"

#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "common.h"
#include "json_out.h"
#include "stats.h"

namespace terrace {
namespace {

struct Options {
    CommonOptions common;
    std::optional<std::string> text, kl, tokens, passkey;
    int32_t window = 2048;
    int32_t limit = 0;
    bool decode_answer = false, json = false;
};

void print(const TextResult& r, JsonOut* json, int32_t window) {
    const double speed = static_cast<double>(r.tokens) / r.seconds;
    if (!json) {
        out(
            fmt::format("text     nll {:.5f}  perplexity {:.4f}  bits/byte {}  tokens scored {}  "
                        "windows {} of {}  {:.1f} t/s\n",
                        r.nll, r.perplexity(),
                        r.bytes ? fmt::format("{:.5f}", r.bits_per_byte()) : "- (--limit)",
                        r.tokens_scored, r.windows, window, speed));
        return;
    }
    json->begin_object("text").real("nll", r.nll).real("perplexity", r.perplexity());
    json->real("bits_per_byte", r.bits_per_byte()).integer("tokens_scored", r.tokens_scored);
    json->integer("window", window).integer("windows", r.windows).integer("bytes", r.bytes);
    json->real("tokens_per_second", speed).end_object();
}

void print(const KlResult& r, JsonOut* json) {
    if (!json) {
        out(fmt::format(
            "kl       mean {:.3e}  max {:.3e} (row {})  largest logit difference {:.3e}  "
            "top-1 agreement {:.4f}  rows {}\n",
            r.mean, r.max, r.max_row, r.max_abs, r.top1, r.rows));
        return;
    }
    json->begin_object("kl").real("mean", r.mean).real("max", r.max).integer("max_row", r.max_row);
    json->real("max_logit_difference", r.max_abs).real("top1_agreement", r.top1);
    json->integer("rows", r.rows).end_object();
}

void print(const std::vector<PasskeyCell>& cells, JsonOut* json) {
    const auto share = [](int64_t part, int64_t whole) {
        return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
    };
    if (!json)
        out(fmt::format("{:<20} {:>7} {:>7} {:>7} {:>9}\n", "passkey", "prompts", "exact", "digits",
                        "seconds"));
    else
        json->begin_object("passkey");
    for (const PasskeyCell& c : cells) {
        const double exact = share(c.exact, c.prompts);
        const double digits = share(c.digits, c.prompts * kPasskeyDigits);
        if (!json) {
            out(fmt::format("{:<20} {:>7} {:>7.4f} {:>7.4f} {:>9.2f}\n", c.name, c.prompts, exact,
                            digits, c.seconds));
            continue;
        }
        json->begin_object(c.name).integer("prompts", c.prompts).real("exact", exact);
        json->real("digits", digits).real("seconds", c.seconds).end_object();
    }
    if (json) json->end_object();
}

Result<int> run(const Options& o) {
    EngineOptions options = engine_options(o.common);
    TERRACE_ASSIGN(const ModelConfig config, load_model_config(o.common.model));
    std::string text;
    std::vector<TokenId> tokens;
    std::vector<PasskeySet> passkeys;
    int64_t longest = o.text ? o.window : 1;
    if (o.text) {
        TERRACE_ASSIGN(text, read_text_file(*o.text, kMaxTextBytes));
    }
    if (o.kl) {
        TERRACE_ASSIGN(tokens, read_token_file(*o.tokens, config.vocab));
        longest = std::max(longest, static_cast<int64_t>(tokens.size()));
    }
    if (o.passkey) {
        TERRACE_ASSIGN(passkeys, read_passkeys(*o.passkey, config.vocab));
        for (const PasskeySet& set : passkeys)
            for (const PasskeyPrompt& prompt : set.prompts)
                longest = std::max(longest, static_cast<int64_t>(prompt.tokens.size()));
    }
    if (options.max_seqs == 0) options.max_seqs = 1;
    if (options.ctx == 0) options.ctx = static_cast<int32_t>(std::min<int64_t>(longest, INT32_MAX));
    options.logit_rows =
        o.text || o.kl ? options.prefill_chunk : std::min(options.prefill_chunk, kPasskeyLogitRows);
    TERRACE_ASSIGN(const std::unique_ptr<Runtime> runtime, open_runtime(options));

    JsonOut json;
    JsonOut* to = o.json ? &json : nullptr;
    if (to) {
        json.begin_object().text("model", o.common.model);
        json.text("backend", runtime->ops().name());
    }
    if (o.text) {
        TERRACE_ASSIGN(const TextResult r, eval_text(*runtime, text, o.window, o.limit));
        print(r, to, o.window);
    }
    if (o.kl) {
        TERRACE_ASSIGN(const KlResult r, eval_kl(*runtime, *o.kl, tokens));
        print(r, to);
    }
    if (o.passkey) {
        TERRACE_ASSIGN(
            const std::vector<PasskeyCell> cells,
            eval_passkey(*runtime, passkeys,
                         o.decode_answer ? AnswerRows::decode : AnswerRows::prefill, o.limit));
        print(cells, to);
    }
    if (to) out(json.end_object().take());
    report_stats(*runtime, o.common);
    return 0;
}

}  // namespace

Command eval_command() {
    auto o = std::make_shared<Options>();
    Command c{
        "eval",
        "Perplexity, divergence from saved logits, pass keys",
        "  terrace eval --model models/demo --text tests/data/demo/heldout.txt\n"
        "  terrace eval --model models/demo --kl saved.safetensors --tokens ids.txt\n"
        "  terrace eval --model models/demo --passkey tests/data/demo/passkey.json --limit 1\n",
        {},
        {}};
    c.flags.heading("Measurements (at least one)");
    c.flags.text("text", "FILE", o->text,
                 "Perplexity of a text; documents end at a line <|endoftext|>");
    c.flags.text("kl", "FILE", o->kl,
                 "KL(saved || ours) against `logits` of a file, or FILE.safetensors:TENSOR");
    c.flags.text("passkey", "FILE", o->passkey,
                 "Recall of five-digit keys from a JSON file of prompts");
    c.flags.heading("Details");
    c.flags.text("tokens", "FILE", o->tokens, "Token ids of --kl (as for terrace logits)");
    c.flags.integer("window", o->window, 2, 1 << 24, "Tokens of one window of --text");
    c.flags.integer("limit", o->limit, 0, INT32_MAX,
                    "Windows of --text, prompts per row of --passkey; 0: all");
    c.flags.toggle("decode-answer", o->decode_answer,
                   "Compute the answer of --passkey token by token instead of as a prompt");
    c.flags.toggle("json", o->json, "Print a JSON document");
    add_common_flags(c.flags, o->common, ModelFlag::required);
    adapt_presets(c.flags, o->common, "1", "as long as needed");
    c.flags.rule([o = o.get()]() -> Status {
        if (!o->text && !o->kl && !o->passkey)
            return Error{Code::invalid_argument,
                         "nothing to measure: give --text, --kl or --passkey"};
        if (o->kl.has_value() != o->tokens.has_value())
            return Error{Code::invalid_argument, "--kl and --tokens belong together: give both"};
        return {};
    });
    c.run = [o] { return run(*o); };
    return c;
}

}  // namespace terrace
