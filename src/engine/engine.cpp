// SPDX-License-Identifier: MIT
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace terrace {

std::string_view to_string(FinishReason reason) {
    switch (reason) {
        case FinishReason::none:
            return "none";
        case FinishReason::stop_id:
            return "stop token";
        case FinishReason::stop_string:
            return "stop string";
        case FinishReason::length:
            return "length";
        case FinishReason::context_full:
            return "context full";
        case FinishReason::cancelled:
            return "cancelled";
        case FinishReason::failed:
            return "failed";
    }
    return "?";
}

// States: waiting (no sequence) -> prefill (prompt_done < prompt) -> decode (`next` is the token to
// feed) -> done (finish was called; dropped at the end of the step).
struct Engine::Run {
    Run(SeqId run_id, Request r, int32_t vocab, const Tokenizer* tokenizer)
        : id(run_id),
          request(std::move(r)),
          sampler(request.sampling, vocab, request.prompt),
          stops(request.stop_strings) {
        if (tokenizer) detokenizer.emplace(*tokenizer);
    }

    SeqId id;
    Request request;
    Sampler sampler;
    StopMatcher stops;
    std::optional<Detokenizer> detokenizer;
    std::optional<Sequence> sequence;
    int32_t prompt_done = 0;
    TokenId next = -1;
    int32_t generated = 0;
    int64_t pages = 0;
    bool done = false;
    bool cancelled = false;
};

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
    TERRACE_ASSIGN(std::unique_ptr<Runtime> runtime, Runtime::open(options));
    return std::make_unique<Engine>(std::move(runtime));
}

Engine::Engine(std::unique_ptr<Runtime> runtime) : runtime_(std::move(runtime)), batch_(*runtime_) {
    const auto seqs = static_cast<size_t>(runtime_->options().max_seqs);
    running_.reserve(seqs);
    states_.reserve(seqs);
    plan_.items.reserve(seqs);
}

Engine::~Engine() = default;

int64_t Engine::pages_wanted(const Request& r) const {
    const int64_t longest = std::min<int64_t>(static_cast<int64_t>(r.prompt.size()) + r.max_tokens,
                                              runtime_->options().ctx);
    return (longest + kPageTokens - 1) / kPageTokens;
}

Result<SeqId> Engine::submit(Request r) {
    const int32_t vocab = runtime_->config().vocab, ctx = runtime_->options().ctx;
    if (r.prompt.empty())
        return Error{Code::invalid_argument, "the prompt has no tokens: need at least one"};
    if (static_cast<int64_t>(r.prompt.size()) > ctx)
        return Error{
            Code::invalid_argument,
            fmt::format("the prompt has {} tokens, --ctx is {}: raise --ctx (the model was "
                        "made for up to {}) or shorten the prompt",
                        r.prompt.size(), ctx, runtime_->config().max_positions)};
    if (r.max_tokens < 1)
        return Error{Code::invalid_argument,
                     fmt::format("max_tokens is {}: need 1 or more", r.max_tokens)};
    if (r.top_logprobs < -1 || r.top_logprobs > 20)
        return Error{Code::invalid_argument,
                     fmt::format("top_logprobs is {}: need 0..20", r.top_logprobs)};
    for (size_t i = 0; i < r.prompt.size(); ++i)
        if (r.prompt[i] < 0 || r.prompt[i] >= vocab)
            return Error{Code::invalid_argument,
                         fmt::format("prompt token {} has id {}, outside the vocabulary 0..{}", i,
                                     r.prompt[i], vocab - 1)};
    if (!r.stop_strings.empty() && !runtime_->tokenizer())
        return Error{Code::unsupported, "stop strings need a tokenizer.json in the model folder"};
    TERRACE_TRY(check(r.sampling, vocab));
    const SeqId id{next_id_++};
    waiting_.push_back(std::make_unique<Run>(id, std::move(r), vocab, runtime_->tokenizer()));
    return id;
}

void Engine::cancel(SeqId id) {
    for (auto& run : waiting_)
        if (run->id == id) run->cancelled = true;
    for (auto& run : running_)
        if (run->id == id) run->cancelled = true;
}

// A request starts when a slot is free and the pages of its longest outcome are: nothing that runs
// is ever thrown out again.
void Engine::admit() {
    const int64_t capacity = runtime_->store().pages().capacity();
    while (!waiting_.empty()) {
        Run& run = *waiting_.front();
        if (run.cancelled) {
            finish(run, FinishReason::cancelled);
            waiting_.pop_front();
            continue;
        }
        const int64_t pages = pages_wanted(run.request);
        if (running_.size() >= static_cast<size_t>(runtime_->options().max_seqs) ||
            promised_pages_ + pages > capacity)
            return;
        auto sequence = batch_.start();
        if (!sequence) {
            finish(run, FinishReason::failed, sequence.error().message);
            waiting_.pop_front();
            continue;
        }
        run.sequence.emplace(std::move(*sequence));
        run.pages = pages;
        promised_pages_ += pages;
        running_.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
    }
}

void Engine::finish(Run& run, FinishReason reason, std::string error) {
    if (run.done) return;
    run.done = true;
    TokenEvent e;
    e.seq = run.id;
    if (reason != FinishReason::stop_string && run.detokenizer) {
        e.text = run.stops.push(run.detokenizer->flush()).emit;
        e.text += run.stops.flush().emit;
    }
    e.finish = reason;
    e.error = std::move(error);
    e.prompt_tokens = static_cast<int32_t>(run.request.prompt.size());
    e.generated_tokens = run.generated;
    events_.push_back(std::move(e));
    promised_pages_ -= run.pages;
    run.pages = 0;
    run.sequence.reset();
}

// One token from a row of logits: sample, tell, and decide whether that was the last.
void Engine::accept(Run& run, int32_t row, int32_t candidates) {
    const Request& r = run.request;
    TokenEvent e;
    e.seq = run.id;
    TokenId token = 0;
    if (candidates > 0) {
        const Batch::Candidates c = batch_.candidates(row);
        token = run.sampler.sample(c.values, c.ids);
    } else {
        const std::span<float> logits = batch_.logits(row);
        std::vector<float> untouched;
        if (r.top_logprobs >= 0) untouched.assign(logits.begin(), logits.end());
        token = run.sampler.sample(logits);
        if (r.top_logprobs >= 0) e.top = top_logprobs(untouched, token, r.top_logprobs);
    }
    ++run.generated;
    ++stats_.generated_tokens;
    e.token = token;
    e.generated_tokens = run.generated;
    const auto& eos = runtime_->generation().eos;
    const bool stop = std::find(r.stop_ids.begin(), r.stop_ids.end(), token) != r.stop_ids.end() ||
                      (!r.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end());
    StopMatcher::Step text;
    if (!stop && run.detokenizer) text = run.stops.push(run.detokenizer->push(token));
    e.text = std::move(text.emit);
    events_.push_back(std::move(e));
    if (stop) return finish(run, FinishReason::stop_id);
    if (text.stopped) return finish(run, FinishReason::stop_string);
    if (run.generated >= r.max_tokens) return finish(run, FinishReason::length);
    if (run.sequence->memory.length() >= runtime_->options().ctx)
        return finish(run, FinishReason::context_full);
    run.next = token;
}

// Where logits would have to cross a link, only as many of the largest as every sequence of the step
// can do with; 0 = all of them.
int32_t Engine::candidates_of_step() const {
    if (runtime_->backend().device->unified()) return 0;
    int32_t most = 1;
    for (const StepItem& item : plan_.items) {
        const Run& run = *running_[static_cast<size_t>(item.run)];
        const int32_t enough = run.sampler.enough();
        if (enough == 0 || run.request.top_logprobs >= 0) return 0;
        most = std::max(most, enough);
    }
    return most;
}

Status Engine::step() {
    for (auto& run : running_)
        if (run->cancelled) finish(*run, FinishReason::cancelled);
    std::erase_if(running_, [](const auto& run) { return run->done; });
    admit();
    if (running_.empty()) return {};

    const auto start = std::chrono::steady_clock::now();
    states_.clear();
    for (const auto& run : running_)
        states_.push_back(
            {static_cast<int32_t>(run->request.prompt.size()) - run->prompt_done, ix(run->id)});
    const StepLimits& limits = runtime_->model().limits();
    plan_step(states_, {limits.rows, runtime_->options().prefill_chunk}, plan_);
    batch_.clear();
    for (const StepItem& item : plan_.items) {
        Run& run = *running_[static_cast<size_t>(item.run)];
        const int32_t left = states_[static_cast<size_t>(item.run)].prompt_left;
        const std::span<const TokenId> tokens =
            left == 0 ? std::span<const TokenId>(&run.next, 1)
                      : std::span<const TokenId>(run.request.prompt)
                            .subspan(static_cast<size_t>(run.prompt_done),
                                     static_cast<size_t>(item.rows));
        TERRACE_TRY(batch_.add(*run.sequence, tokens,
                               left == item.rows || left == 0 ? LogitRows::last : LogitRows::none));
    }
    const int32_t candidates = candidates_of_step();
    if (const Status ran = candidates > 0 ? batch_.run_for_candidates(candidates) : batch_.run();
        !ran) {
        // Their state may be half new: none of them can go on.
        for (const StepItem& item : plan_.items)
            finish(*running_[static_cast<size_t>(item.run)], FinishReason::failed,
                   ran.error().message);
        std::erase_if(running_, [](const auto& run) { return run->done; });
        return ran;
    }
    int32_t row = 0, prompt_rows = 0;
    for (const StepItem& item : plan_.items) {
        Run& run = *running_[static_cast<size_t>(item.run)];
        const int32_t left = states_[static_cast<size_t>(item.run)].prompt_left;
        if (left > 0) {
            run.prompt_done += item.rows;
            prompt_rows += item.rows;
        }
        if (left == 0 || left == item.rows) accept(run, row++, candidates);
    }
    std::erase_if(running_, [](const auto& run) { return run->done; });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++stats_.steps;
    stats_.prompt_tokens += prompt_rows;
    (prompt_rows > 0 ? stats_.prompt_seconds : stats_.decode_seconds) += seconds;
    return {};
}

std::vector<TokenEvent> Engine::take_events() {
    std::vector<TokenEvent> out;
    out.swap(events_);
    return out;
}

}  // namespace terrace
