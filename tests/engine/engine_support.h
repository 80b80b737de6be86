// Opens engines on the bundled models for tests, and collects what requests produce.
// SPDX-License-Identifier: MIT
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "support/support.h"

namespace terrace::test {

inline EngineOptions demo_options() {
    EngineOptions o;
    o.model = std::filesystem::path(TERRACE_SOURCE_DIR) / "models" / "demo";
    o.backend.device = "cpu";  // whatever this machine has
    o.backend.threads = 2;
    o.ctx = 2048;
    o.max_seqs = 4;
    o.prefill_chunk = 128;
    return o;
}

struct Collected {
    std::vector<TokenId> tokens;
    std::string text;
    TokenEvent last;
};

// Steps until idle; what each request produced.
inline std::map<SeqId, Collected> run_all(Engine& engine, int max_steps = 100000) {
    std::map<SeqId, Collected> out;
    while (!engine.idle() && max_steps-- > 0) {
        must(engine.step());
        for (TokenEvent& e : engine.take_events()) {
            Collected& c = out[e.seq];
            if (e.token >= 0) c.tokens.push_back(e.token);
            c.text += e.text;
            if (e.finish != FinishReason::none) c.last = e;
        }
    }
    EXPECT_TRUE(engine.idle());
    return out;
}

inline Request text_request(Engine& engine, const std::string& prompt, int32_t max_tokens) {
    Request r;
    r.prompt = must(engine.runtime().tokenizer()->encode(prompt, Tokenizer::Specials::parse));
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    r.ignore_eos = true;
    return r;
}

}  // namespace terrace::test
