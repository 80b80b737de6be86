// terrace logits: token ids in, the model's float32 logits out as a safetensors file. The way to
// compare this engine with another one, or two settings of this one.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "commands.h"
#include "common.h"
#include "feed.h"
#include "io/safetensors.h"
#include "stats.h"

namespace terrace {
namespace {

struct Options {
    CommonOptions common;
    std::string tokens, out;
    int32_t chunk = 0;
    int32_t decode_from = -1;
};

Result<int> run(const Options& o) {
    EngineOptions options = engine_options(o.common);
    TERRACE_ASSIGN(const ModelConfig config, load_model_config(o.common.model));
    TERRACE_ASSIGN(const std::vector<TokenId> tokens, read_token_file(o.tokens, config.vocab));
    const auto n = static_cast<int64_t>(tokens.size());
    const int32_t chunk = o.chunk > 0 ? o.chunk : options.prefill_chunk;
    if (chunk > options.prefill_chunk)
        return Error{Code::invalid_argument,
                     fmt::format("--chunk is {}: need 1..{}, or raise --prefill-chunk", chunk,
                                 options.prefill_chunk)};
    if (o.decode_from > n)
        return Error{Code::invalid_argument, fmt::format("--decode-from is {}: {} holds {} tokens",
                                                         o.decode_from, o.tokens, n)};
    if (options.max_seqs == 0) options.max_seqs = 1;
    if (options.ctx == 0) options.ctx = static_cast<int32_t>(std::min<int64_t>(n, INT32_MAX));
    options.logit_rows = chunk;

    const auto vocab = static_cast<size_t>(config.vocab);
    const uint64_t bytes = static_cast<uint64_t>(n) * vocab * 4;
    if (const uint64_t have = available_memory(); have > 0 && bytes > have)
        return Error{Code::out_of_memory,
                     fmt::format("logits of {} tokens take {}, {} are available: give fewer tokens",
                                 n, human_bytes(bytes), human_bytes(have))};
    TERRACE_ASSIGN(const std::unique_ptr<Runtime> runtime, open_runtime(options));
    std::vector<float> logits(static_cast<size_t>(n) * vocab);
    int64_t base = 0;
    const LogitSink keep = [&](int64_t row, std::span<const float> values) -> Status {
        std::memcpy(logits.data() + static_cast<size_t>(base + row) * vocab, values.data(),
                    values.size_bytes());
        return {};
    };
    Batch batch(*runtime);
    TERRACE_ASSIGN(Sequence sequence, batch.start());
    const std::span<const TokenId> all(tokens);
    const size_t split = o.decode_from < 0 ? all.size() : static_cast<size_t>(o.decode_from);
    const Stopwatch watch;
    TERRACE_TRY(feed(batch, sequence, all.first(split), chunk, LogitRows::all, keep));
    base = static_cast<int64_t>(split);
    TERRACE_TRY(feed(batch, sequence, all.subspan(split), 1, LogitRows::all, keep));
    const double seconds = watch.seconds();

    const TensorSource source{
        "logits", DType::f32, {n, config.vocab}, std::as_bytes(std::span<const float>(logits))};
    TERRACE_TRY(write_safetensors(o.out, std::span(&source, 1),
                                  {{"model", o.common.model},
                                   {"backend", runtime->ops().name()},
                                   {"format", "terrace logits"}}));
    out(fmt::format("{}: logits [{}, {}], {:.1f} t/s\n", o.out, n, config.vocab,
                    static_cast<double>(n) / seconds));
    report_stats(*runtime, o.common);
    return 0;
}

}  // namespace

Command logits_command() {
    auto o = std::make_shared<Options>();
    Command c{"logits",
              "Write the logits of given tokens to a safetensors file",
              "  terrace logits --model models/demo --tokens ids.txt --out logits.safetensors\n"
              "  terrace logits --model models/demo --tokens ids.json --out l.safetensors "
              "--decode-from 100\n",
              {},
              {}};
    c.flags.heading("Logits");
    c.flags
        .text("tokens", "FILE", o->tokens,
              "Token ids: text, a JSON array, or FILE.safetensors:TENSOR")
        .missing = "give a file of token ids";
    c.flags.text("out", "FILE", o->out, "Written: `logits` F32 [tokens, vocabulary]").missing =
        "give the file to write";
    c.flags.integer("chunk", o->chunk, 1, 65536, "Rows of one prompt step, at most --prefill-chunk")
        .preset = "--prefill-chunk";
    c.flags
        .integer("decode-from", o->decode_from, 0, INT32_MAX,
                 "The first N tokens as a prompt, the rest one by one")
        .preset = "all as a prompt";
    add_common_flags(c.flags, o->common, ModelFlag::required);
    adapt_presets(c.flags, o->common, "1", "number of tokens");
    c.run = [o] { return run(*o); };
    return c;
}

}  // namespace terrace
