// Terrace's C++ API: RAII over the C one, header only, any compiler. Errors are exceptions of type
// terrace::api::Failure here, because this header belongs to the caller's side of the border.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "terrace/terrace.h"

namespace terrace::api {

class Failure : public std::runtime_error {
  public:
    Failure(int failure_code, const char* message)
        : std::runtime_error(message), code(failure_code) {}
    int code;
};

inline void must(int code) {
    if (code != TERRACE_OK) throw Failure(code, terrace_last_error());
}

struct Options : terrace_options {
    explicit Options(const char* model) {
        terrace_options_init(this);
        model_dir = model;
    }
};

struct Request : terrace_request {
    explicit Request(const char* text) {
        terrace_request_init(this);
        prompt = text;
    }
};

struct Outcome {
    std::string text;
    int finish = TERRACE_RUNNING;
    int prompt_tokens = 0, generated_tokens = 0;
};

class Engine {
  public:
    explicit Engine(const Options& options) {
        terrace_engine* raw = nullptr;
        must(terrace_open(&options, &raw));
        engine_.reset(raw);
    }

    uint64_t submit(const Request& request) {
        uint64_t id = 0;
        must(terrace_submit(engine_.get(), &request, &id));
        return id;
    }
    terrace_event next(uint64_t id) {
        terrace_event event{};
        must(terrace_next(engine_.get(), id, &event));
        return event;
    }
    void cancel(uint64_t id) { must(terrace_cancel(engine_.get(), id)); }

    // Runs one request to its end; `on_text` sees each piece as it comes.
    Outcome generate(const Request& request,
                     const std::function<void(std::string_view)>& on_text = {}) {
        const uint64_t id = submit(request);
        Outcome outcome;
        while (outcome.finish == TERRACE_RUNNING) {
            const terrace_event e = next(id);
            outcome.text.append(e.text, e.text_bytes);
            if (on_text) on_text({e.text, e.text_bytes});
            outcome.finish = e.finish;
            outcome.prompt_tokens = e.prompt_tokens;
            outcome.generated_tokens = e.generated_tokens;
        }
        return outcome;
    }
    std::string memory_report() { return terrace_memory_report(engine_.get()); }

  private:
    struct Close {
        void operator()(terrace_engine* e) const { terrace_close(e); }
    };
    std::unique_ptr<terrace_engine, Close> engine_;
};

}  // namespace terrace::api
