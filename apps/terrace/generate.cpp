// terrace generate: a prompt in, text out as it comes. The first sequence streams; with --n the
// others run beside it and are printed after it.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "commands.h"
#include "common.h"
#include "sampling.h"
#include "stats.h"

namespace terrace {
namespace {

struct Options {
    CommonOptions common;
    SamplingOptions sampling;
    std::optional<std::string> prompt, prompt_file;
    int32_t n = 1;
    bool memory = false;
};

struct Output {
    SeqId id{};
    uint64_t seed = 0;
    std::string text;
    FinishReason finish = FinishReason::none;
    std::string error;
};

Result<std::string> prompt_text(const Options& o) {
    if (o.prompt) return *o.prompt;
    std::string text;
    if (o.prompt_file) {
        TERRACE_ASSIGN(text, read_text_file(*o.prompt_file, kMaxTextBytes));
    } else {
        if (isatty(STDIN_FILENO))
            std::fputs("prompt (end with Ctrl-D on a line of its own):\n", stderr);
        TERRACE_ASSIGN(text, read_standard_input());
    }
    drop_final_newline(text);
    return text;
}

void print_stats(const Engine& engine, const std::vector<Output>& outputs) {
    const EngineStats& s = engine.stats();
    // The first token of each sequence comes out of its prompt's last step.
    const auto decoded = s.generated_tokens - static_cast<int64_t>(outputs.size());
    const auto rate = [](int64_t n, double seconds) {
        return seconds > 0 ? static_cast<double>(n) / seconds : 0.0;
    };
    fmt::print(stderr, "prompt: {} tokens, {:.1f} t/s; generated: {} tokens, {:.1f} t/s\n",
               s.prompt_tokens, rate(s.prompt_tokens, s.prompt_seconds), s.generated_tokens,
               rate(decoded, s.decode_seconds));
    for (const Output& o : outputs)
        fmt::print(stderr, "seed {}: ended by {}\n", o.seed, to_string(o.finish));
}

std::string header(size_t i, const Output& o, size_t n) {
    return n > 1 ? fmt::format("=== {} of {}, seed {}\n", i + 1, n, o.seed) : std::string();
}

// Texts end where the model ended them; a terminal wants a whole line.
void end_line(const std::string& text) {
    if (!text.ends_with('\n')) out("\n");
}

Result<int> run(const Options& o) {
    TERRACE_ASSIGN(const std::string text, prompt_text(o));
    EngineOptions options = engine_options(o.common);
    if (options.max_seqs == 0) options.max_seqs = o.n;
    TERRACE_ASSIGN(std::unique_ptr<Runtime> runtime, open_runtime(options));
    const Tokenizer* tokenizer = runtime->tokenizer();
    if (!tokenizer)
        return Error{Code::not_found,
                     fmt::format("{}: has no tokenizer.json, so text cannot be read or written; "
                                 "terrace logits works on token ids",
                                 o.common.model)};
    const auto ids = tokenizer->encode(text, Tokenizer::Specials::parse);
    if (!ids) return ids.error().in("prompt");
    if (o.memory) fmt::print(stderr, "planned:\n{}", runtime->plan().table());

    Request request = request_of(o.sampling, runtime->generation());
    request.prompt = *ids;
    const uint64_t seed = request.sampling.seed;
    Engine engine(std::move(runtime));
    std::vector<Output> outputs;
    for (int32_t i = 0; i < o.n; ++i) {
        request.sampling.seed = seed + static_cast<uint64_t>(i);
        TERRACE_ASSIGN(const SeqId id, engine.submit(request));
        outputs.push_back({id, request.sampling.seed, {}, FinishReason::none, {}});
    }
    out(header(0, outputs[0], outputs.size()));
    bool cancelled = false;
    Status ran;
    while (!engine.idle() && ran) {
        if (interrupted() && !cancelled) {
            cancelled = true;
            for (const Output& output : outputs)
                engine.cancel(output.id);
        }
        ran = engine.step();
        for (TokenEvent& event : engine.take_events()) {
            const auto at = std::find_if(outputs.begin(), outputs.end(),
                                         [&](const Output& x) { return x.id == event.seq; });
            if (at == outputs.begin()) out(event.text);
            at->text += event.text;
            if (event.finish == FinishReason::none) continue;
            at->finish = event.finish;
            at->error = event.error;
        }
        if (out_failed()) return 1;
    }
    end_line(outputs[0].text);
    for (size_t i = 1; i < outputs.size(); ++i) {
        out(header(i, outputs[i], outputs.size()) + outputs[i].text);
        end_line(outputs[i].text);
    }
    if (o.memory) fmt::print(stderr, "used:\n{}", engine.runtime().report().table());
    if (o.common.stats) print_stats(engine, outputs);
    report_stats(engine.runtime(), o.common);
    for (const Output& output : outputs) {
        if (output.finish == FinishReason::failed) return Error{Code::internal, output.error};
        if (output.finish == FinishReason::context_full)
            log_warn(fmt::format("seed {}: stopped because the context is full: --ctx is {}",
                                 output.seed, engine.runtime().options().ctx));
    }
    TERRACE_TRY(ran);
    return 0;
}

}  // namespace

Command generate_command() {
    auto o = std::make_shared<Options>();
    Command c{
        "generate",
        "Continue a prompt",
        "  terrace generate --model models/demo --prompt \"In the beginning\" --max-tokens 64\n"
        "  echo \"HOPE, n.\" | terrace generate --model models/demo --greedy --stats\n"
        "  terrace generate --model models/demo --prompt-file p.txt --seed 7 --n 3\n",
        {},
        {}};
    c.flags.heading("Prompt");
    c.flags.text("prompt", "TEXT", o->prompt,
                 "The prompt; without it or --prompt-file, standard input");
    c.flags.text("prompt-file", "FILE", o->prompt_file,
                 "The prompt as a file (a final newline is dropped)");
    c.flags.integer("n", o->n, 1, 1024, "Sequences to generate at once, with seeds S, S+1, ...");
    c.flags.toggle("memory", o->memory, "Print the memory plan, and what was used in the end");
    c.flags.clash("prompt", "prompt-file");
    add_sampling_flags(c.flags, o->sampling);
    add_common_flags(c.flags, o->common, ModelFlag::required);
    adapt_presets(c.flags, o->common, "as many as --n", "");
    c.run = [o] { return run(*o); };
    return c;
}

}  // namespace terrace
