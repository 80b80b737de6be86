// The C API over Engine: converts structs, holds the lock, keeps each request's events apart, and
// lets no exception out.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <deque>
#include <exception>
#include <mutex>
#include <unordered_map>

#include "engine/engine.h"
#include "terrace/terrace.h"

using terrace::Code;
using terrace::Error;

struct terrace_engine {
    std::mutex mutex;
    std::unique_ptr<terrace::Engine> engine;
    std::unordered_map<uint64_t, std::deque<terrace::TokenEvent>>
        events;        // of requests not yet gone
    std::string text;  // what the last call handed out
};

namespace {

thread_local std::string g_error;

int fail(const Error& error) {
    g_error = error.message;
    switch (error.code) {
        case Code::invalid_argument:
            return TERRACE_INVALID_ARGUMENT;
        case Code::not_found:
            return TERRACE_NOT_FOUND;
        case Code::unsupported:
            return TERRACE_UNSUPPORTED;
        case Code::corrupt_data:
            return TERRACE_CORRUPT_DATA;
        case Code::out_of_memory:
            return TERRACE_OUT_OF_MEMORY;
        case Code::io:
            return TERRACE_IO;
        case Code::cancelled:
            return TERRACE_CANCELLED;
        case Code::internal:
            return TERRACE_INTERNAL;
    }
    return TERRACE_INTERNAL;
}

int fail(Code code, const char* message) {
    return fail(Error{code, message});
}

// Nothing may be thrown through C.
template <class F>
int guarded(F&& f) {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        return fail(Code::out_of_memory, "the system refused memory");
    } catch (const std::exception& e) {
        return fail(Error{Code::internal, e.what()});
    }
}

int finish_code(terrace::FinishReason reason) {
    switch (reason) {
        case terrace::FinishReason::none:
            return TERRACE_RUNNING;
        case terrace::FinishReason::stop_id:
            return TERRACE_STOP_ID;
        case terrace::FinishReason::stop_string:
            return TERRACE_STOP_STRING;
        case terrace::FinishReason::length:
            return TERRACE_LENGTH;
        case terrace::FinishReason::context_full:
            return TERRACE_CONTEXT_FULL;
        case terrace::FinishReason::cancelled:
            return TERRACE_WAS_CANCELLED;
        case terrace::FinishReason::failed:
            return TERRACE_FAILED;
    }
    return TERRACE_FAILED;
}

int submit(terrace_engine& e, const terrace_request& r, uint64_t* id) {
    terrace::Request request;
    if (r.prompt) {
        const terrace::Tokenizer* tokenizer = e.engine->runtime().tokenizer();
        if (!tokenizer)
            return fail(Code::unsupported,
                        "a text prompt needs a tokenizer.json in the model folder: pass tokens");
        auto ids = tokenizer->encode(r.prompt, terrace::Tokenizer::Specials::parse);
        if (!ids) return fail(ids.error());
        request.prompt = std::move(*ids);
    } else if (r.tokens) {
        request.prompt.assign(r.tokens, r.tokens + r.n_tokens);
    }
    request.max_tokens = r.max_tokens;
    request.sampling.temperature = r.temperature;
    request.sampling.top_k = r.top_k;
    request.sampling.top_p = r.top_p;
    request.sampling.min_p = r.min_p;
    request.sampling.repetition_penalty = r.repetition_penalty;
    request.sampling.presence_penalty = r.presence_penalty;
    request.sampling.frequency_penalty = r.frequency_penalty;
    request.sampling.seed = r.seed;
    for (size_t i = 0; i < r.n_stop; ++i)
        request.stop_strings.emplace_back(r.stop[i]);
    request.ignore_eos = r.ignore_eos != 0;
    const auto seq = e.engine->submit(std::move(request));
    if (!seq) return fail(seq.error());
    *id = ix(*seq);
    e.events.try_emplace(*id);
    return TERRACE_OK;
}

int next(terrace_engine& e, uint64_t id, terrace_event* out) {
    const auto mine = e.events.find(id);
    if (mine == e.events.end())
        return fail(Error{Code::not_found, fmt::format("request {} is not running", id)});
    std::deque<terrace::TokenEvent>& queue = mine->second;
    while (queue.empty()) {
        const terrace::Status ok = e.engine->step();
        for (terrace::TokenEvent& event : e.engine->take_events())
            if (const auto to = e.events.find(ix(event.seq)); to != e.events.end())
                to->second.push_back(std::move(event));
        if (!ok && queue.empty()) return fail(ok.error());
    }
    const terrace::TokenEvent event = std::move(queue.front());
    queue.pop_front();
    e.text = event.text;
    *out = {event.token,         e.text.c_str(),        e.text.size(), finish_code(event.finish),
            event.prompt_tokens, event.generated_tokens};
    if (event.finish == terrace::FinishReason::failed) g_error = event.error;
    if (event.finish != terrace::FinishReason::none) e.events.erase(mine);
    return TERRACE_OK;
}

}  // namespace

extern "C" {

void terrace_options_init(terrace_options* o) {
    *o = {};
    o->size = sizeof *o;
    o->device = "auto";
    o->isa = "auto";
    o->activations = "int16";
    o->max_seqs = 4;
    o->prefill_chunk = 512;
}

void terrace_request_init(terrace_request* r) {
    *r = {};
    r->size = sizeof *r;
    r->max_tokens = 256;
    r->temperature = 1;
    r->top_p = 1;
    r->repetition_penalty = 1;
}

int terrace_open(const terrace_options* o, terrace_engine** out) {
    if (!o || !out || o->size != sizeof *o || !o->model_dir)
        return fail(
            Code::invalid_argument,
            "terrace_open: options must come from terrace_options_init and name a model_dir");
    return guarded([&] {
        terrace::EngineOptions options;
        options.model = o->model_dir;
        options.backend.device = o->device ? o->device : "auto";
        options.backend.isa = o->isa ? o->isa : "auto";
        options.backend.activations = o->activations ? o->activations : "int16";
        options.backend.threads = o->threads;
        options.ctx = o->ctx;
        options.max_seqs = o->max_seqs;
        options.prefill_chunk = o->prefill_chunk;
        options.host_limit = o->host_limit;
        auto engine = terrace::Engine::open(options);
        if (!engine) return fail(engine.error());
        auto handle = std::make_unique<terrace_engine>();
        handle->engine = std::move(*engine);
        *out = handle.release();
        return static_cast<int>(TERRACE_OK);
    });
}

void terrace_close(terrace_engine* engine) {
    delete engine;
}

int terrace_submit(terrace_engine* engine, const terrace_request* request, uint64_t* id) {
    if (!engine || !request || !id || request->size != sizeof *request)
        return fail(Code::invalid_argument,
                    "terrace_submit: the request must come from terrace_request_init");
    return guarded([&] {
        const std::lock_guard lock(engine->mutex);
        return submit(*engine, *request, id);
    });
}

int terrace_next(terrace_engine* engine, uint64_t id, terrace_event* out) {
    if (!engine || !out) return fail(Code::invalid_argument, "terrace_next: null argument");
    return guarded([&] {
        const std::lock_guard lock(engine->mutex);
        return next(*engine, id, out);
    });
}

int terrace_cancel(terrace_engine* engine, uint64_t id) {
    if (!engine) return fail(Code::invalid_argument, "terrace_cancel: null engine");
    return guarded([&] {
        const std::lock_guard lock(engine->mutex);
        engine->engine->cancel(terrace::SeqId{id});
        return static_cast<int>(TERRACE_OK);
    });
}

const char* terrace_memory_report(terrace_engine* engine) {
    if (!engine) return "";
    const int ok = guarded([&] {
        const std::lock_guard lock(engine->mutex);
        engine->text = engine->engine->runtime().report().table();
        return static_cast<int>(TERRACE_OK);
    });
    return ok == TERRACE_OK ? engine->text.c_str() : "";
}

const char* terrace_last_error(void) {
    return g_error.c_str();
}

const char* terrace_version(void) {
    return "0.1.0";
}

}  // extern "C"
