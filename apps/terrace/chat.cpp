// terrace chat: a conversation on the terminal (or through pipes, one message a line), with the
// model's own chat template. The whole conversation is computed again for every answer.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "base/log.h"
#include "commands.h"
#include "common.h"
#include "sampling.h"
#include "stats.h"
#include "text/chat_template.h"

namespace terrace {
namespace {

struct Options {
    CommonOptions common;
    SamplingOptions sampling;
    std::optional<std::string> system;
};

struct Conversation {
    std::vector<ChatMessage> messages;
    void reset(const Options& o) {
        messages.clear();
        if (o.system) messages.push_back({"system", *o.system});
    }
};

Result<std::vector<TokenId>> prompt_of(const Conversation& talk, const ChatTemplate& chat,
                                       const ChatTemplateFiles& files, const Tokenizer& tokenizer) {
    Value context = Value::dict();
    context.set("messages", messages_value(talk.messages));
    context.set("add_generation_prompt", true);
    files.add_tokens_to(context);
    TERRACE_ASSIGN(const std::string text, chat.render(context));
    return tokenizer.encode(text, Tokenizer::Specials::parse);
}

// Streams the answer; returns its text. After Ctrl-C the answer ends where it is.
Result<std::string> answer(Engine& engine, Request request) {
    TERRACE_ASSIGN(const SeqId id, engine.submit(std::move(request)));
    std::string text;
    while (!engine.idle()) {
        if (interrupted()) engine.cancel(id);
        const Status ran = engine.step();
        for (const TokenEvent& event : engine.take_events()) {
            out(event.text);
            text += event.text;
            if (event.finish == FinishReason::context_full)
                log_warn(fmt::format("the context is full: --ctx is {}",
                                     engine.runtime().options().ctx));
        }
        TERRACE_TRY(ran);
        if (out_failed()) return Error{Code::io, "standard output could not be written"};
    }
    out("\n");
    return text;
}

Result<int> run(const Options& o) {
    EngineOptions options = engine_options(o.common);
    if (options.max_seqs == 0) options.max_seqs = 1;
    TERRACE_ASSIGN(std::unique_ptr<Runtime> runtime, open_runtime(options));
    if (!runtime->tokenizer())
        return Error{Code::not_found, fmt::format("{}: has no tokenizer.json, so there is nothing "
                                                  "to chat with",
                                                  o.common.model)};
    TERRACE_ASSIGN(const ChatTemplateFiles files, read_chat_template_files(o.common.model));
    TERRACE_ASSIGN(const std::string source, load_chat_template(o.common.model));
    TERRACE_ASSIGN(const ChatTemplate chat, ChatTemplate::parse(source, "chat template"));
    Engine engine(std::move(runtime));
    const Runtime& opened = engine.runtime();
    Request base = request_of(o.sampling, opened.generation());

    Conversation talk;
    talk.reset(o);
    const bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (terminal)
        fmt::print(stderr,
                   "seed {}; /reset starts anew, /exit or Ctrl-D ends, Ctrl-C stops an answer\n",
                   base.sampling.seed);
    int status = 0;
    std::string line;
    while (!out_failed()) {
        if (terminal) out("> ");
        if (!std::getline(std::cin, line)) break;
        drop_final_newline(line);
        if (line.empty()) continue;
        if (line == "/exit") break;
        if (line == "/reset") {
            talk.reset(o);
            continue;
        }
        if (line.starts_with("/")) {
            complain(Error{Code::invalid_argument,
                           fmt::format("unknown command \"{}\" (legal: /exit /reset)", line)});
            status = 1;
            continue;
        }
        talk.messages.push_back({"user", line});
        auto ids = prompt_of(talk, chat, files, *opened.tokenizer());
        Result<std::string> text = ids ? Result<std::string>(std::string())
                                       : Result<std::string>(ids.error().in("message"));
        if (ids) {
            Request request = base;
            request.prompt = std::move(*ids);
            const int64_t before = engine.stats().generated_tokens;
            const Stopwatch watch;
            text = answer(engine, std::move(request));
            if (o.common.stats)
                fmt::print(stderr, "{} tokens in {:.2f} s\n",
                           engine.stats().generated_tokens - before, watch.seconds());
        }
        if (!text) {
            // The turn is taken back, so that a shorter message or /reset can go on.
            complain(text.error());
            talk.messages.pop_back();
            status = 1;
            continue;
        }
        talk.messages.push_back({"assistant", std::move(*text)});
        ++base.sampling.seed;  // another turn, other numbers; still repeatable
        if (interrupted()) {
            if (!terminal) break;
            forget_interrupt();
        }
    }
    report_stats(opened, o.common);
    return status;
}

}  // namespace

Command chat_command() {
    auto o = std::make_shared<Options>();
    o->sampling.max_tokens = 1024;
    Command c{
        "chat",
        "Talk with a model on the terminal",
        "  terrace chat --model models/demo\n"
        "  printf 'Define: HOPE\\n/reset\\nDefine: BRAIN\\n' | terrace chat --model models/demo "
        "--greedy\n",
        {},
        {}};
    c.flags.heading("Conversation");
    c.flags.text("system", "TEXT", o->system, "System message at the beginning");
    add_sampling_flags(c.flags, o->sampling);
    add_common_flags(c.flags, o->common, ModelFlag::required);
    adapt_presets(c.flags, o->common, "1", "");
    c.run = [o] { return run(*o); };
    return c;
}

}  // namespace terrace
