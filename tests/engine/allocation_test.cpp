// The decode step allocates nothing: on the demo model, and on a synthetic one with the real
// model's dims (four layers, fewer experts and ids so that it fits a test).
// SPDX-License-Identifier: MIT
#include "engine/engine_support.h"

namespace terrace::test {
namespace {

// Prefills `prompt` tokens (past the selection budget), then decodes; counts from the second chunk on.
int64_t allocations_of_decode(Runtime& runtime, int32_t prompt, int32_t steps) {
    Batch batch(runtime);
    Sequence s = must(batch.start());
    SamplingParams params;
    params.temperature = 0.8f;
    params.top_k = 40;
    params.repetition_penalty = 1.1f;
    params.frequency_penalty = 0.1f;
    Sampler sampler(params, runtime.config().vocab, {});
    std::vector<TokenId> tokens(static_cast<size_t>(prompt));
    for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<TokenId>(i * 7 % 4000);
    int64_t before = 0;
    for (size_t at = 0; at < tokens.size(); at += 128) {
        if (at == 128) before = allocations_so_far();  // the first call may warm something up
        batch.clear();
        must(batch.add(s, {tokens.data() + at, std::min<size_t>(128, tokens.size() - at)},
                       LogitRows::last));
        must(batch.run());
    }
    TokenId next = sampler.sample(batch.logits(0));
    for (int32_t i = 0; i < steps; ++i) {
        batch.clear();
        must(batch.add(s, {&next, 1}, LogitRows::last));
        must(batch.run());
        next = sampler.sample(batch.logits(0));
    }
    return allocations_so_far() - before;
}

TEST(Allocation, CounterCounts) {
    const int64_t before = allocations_so_far();
    const auto p = std::make_unique<int>(1);
    EXPECT_GT(allocations_so_far(), before);
    EXPECT_EQ(*p, 1);
}

TEST(Allocation, DemoDecodeAllocatesNothing) {
    const auto runtime = must(Runtime::open(demo_options()));
    // 300 steps cross a page border: pages come from the pool, not from the heap.
    EXPECT_EQ(allocations_of_decode(*runtime, 600, 300), 0);
}

TEST(Allocation, RealDimsDecodeAllocatesNothing) {
    std::string json;
    {
        const auto path =
            std::filesystem::path(TERRACE_SOURCE_DIR) / "docs" / "qwen3.8-flash-next.config.json";
        json = must(read_text_file(path, 1 << 20));
    }
    ModelConfig c = must(parse_model_config(json, "docs config"));
    c.n_layers = 4;
    c.layer_kinds.resize(4);
    c.n_experts = 16;
    c.vocab = 4096;
    c.eos = 4000;
    c.ngram_vocab_base = 1009;
    EngineOptions o = demo_options();
    o.model.clear();
    o.ctx = 4096;
    o.max_seqs = 2;
    const auto runtime = must(Runtime::open_synthetic(o, c, {}));
    EXPECT_EQ(allocations_of_decode(*runtime, 2100, 8), 0);
}

}  // namespace
}  // namespace terrace::test
