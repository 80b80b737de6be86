// The CUDA backend on whole models: against the activations of an independent float32
// implementation, and its equality promises: run to run, alone or in a batch, prompt cuts, captured
// graphs. Skipped, and counted as skipped, where there is no GPU.
//
// Tensor cores take f16 inputs, so logits are held to a share of their own spread, and rows where an
// expert or a block near a tie falls the other way are rare outliers: the median is tight, the mean
// divergence bounds the rest.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuda/cuda_backend.h"
#include "model/model_runner.h"

namespace terrace::test {
namespace {

class GoldenCuda : public testing::Test {
  protected:
    void SetUp() override {
        if (!probe_cuda().usable()) GTEST_SKIP() << "no GPU";
        device_ = must(make_cuda_device(0));
        ops_ = must(make_cuda_ops(*device_));
    }
    ModelRunner runner(const std::string& name, PlaneType planes = PlaneType::f16,
                       bool observe = false) {
        ModelRunner::Options o;
        o.planes = planes;
        o.device = device_.get();
        o.observe = observe;
        return ModelRunner(name, *ops_, o);
    }

    // Mean KL and the median over rows of (largest difference / standard deviation of the row).
    void compare(const std::string& model, int32_t chunk) {
        const Golden golden(std::filesystem::path(TERRACE_TEST_DATA) /
                            (model + ".golden.safetensors"));
        ModelRunner run = runner(model, PlaneType::f32);
        const auto vocab = static_cast<size_t>(run.config().vocab);
        double kl_sum = 0;
        std::vector<double> shares;
        for (const char* c : {"len1", "len3", "len66", "len67", "len131", "len300"}) {
            const auto ids = golden.ints(std::string(c) + ".tokens");
            const auto want = golden.floats(std::string(c) + ".logits");
            auto seq = run.start();
            const auto got = run.feed(seq, {ids.begin(), ids.end()}, chunk);
            const size_t rows = want.size() / vocab;
            const float* mine = &got[got.size() - want.size()];
            for (size_t r = 0; r < rows; ++r) {
                const float* w = &want[r * vocab];
                kl_sum += kl_divergence(w, mine + r * vocab, vocab);
                double sum = 0, squares = 0;
                for (size_t i = 0; i < vocab; ++i) {
                    sum += static_cast<double>(w[i]);
                    squares += static_cast<double>(w[i]) * static_cast<double>(w[i]);
                }
                const double n = static_cast<double>(vocab), mean = sum / n;
                const double deviation = std::sqrt(squares / n - mean * mean);
                shares.push_back(
                    static_cast<double>(max_abs_difference(mine + r * vocab, w, vocab)) /
                    deviation);
            }
        }
        std::sort(shares.begin(), shares.end());
        const double kl = kl_sum / static_cast<double>(shares.size());
        fmt::print(
            "{} on {}, chunks of {}: mean KL {:.2e}; largest difference over deviation: median "
            "{:.2e}, worst {:.2e}\n",
            model, ops_->name(), chunk, kl, shares[shares.size() / 2], shares.back());
        EXPECT_LT(kl, 1e-4);
        EXPECT_LT(shares[shares.size() / 2], 5e-3);
        EXPECT_LT(shares[shares.size() * 9 / 10], 2e-2);
    }

    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
};

std::vector<TokenId> some_tokens(int32_t n, int32_t vocab, uint64_t seed) {
    Random random(seed);
    std::vector<TokenId> out;
    for (int32_t i = 0; i < n; ++i)
        out.push_back(static_cast<TokenId>(random.below(vocab)));
    return out;
}

TEST_F(GoldenCuda, TinyBf16PrefilledAndDecoded) {
    for (const int32_t chunk : {300, 64, 1})
        compare("tiny-bf16", chunk);
}

TEST_F(GoldenCuda, TinyExl3PrefilledAndDecoded) {
    for (const int32_t chunk : {300, 64, 1})
        compare("tiny-exl3", chunk);
}

TEST_F(GoldenCuda, GreedyIdsAreTheRecordedOnesWhereTheMarginAllows) {
    const Golden golden(std::filesystem::path(TERRACE_TEST_DATA) / "demo" / "golden.safetensors");
    ModelRunner run = runner("demo");
    const auto vocab = static_cast<size_t>(run.config().vocab);
    const auto prompt = golden.ints("greedy.prompt");
    const auto want = golden.ints("greedy.tokens.exl3");
    const auto margin = golden.floats("greedy.margin.exl3");
    auto seq = run.start();
    auto logits = run.feed(seq, {prompt.begin(), prompt.end()}, 512);
    size_t equal = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        const auto last = logits.end() - static_cast<int64_t>(vocab);
        const auto best = static_cast<int32_t>(std::max_element(last, logits.end()) - last);
        if (best != want[i]) {
            EXPECT_LT(margin[i], 0.2f) << "token " << i;
            break;
        }
        ++equal;
        logits = run.feed(seq, {best}, 1);
    }
    fmt::print("demo greedy on {}: {} of {} ids equal\n", ops_->name(), equal, want.size());
    EXPECT_GT(equal, want.size() / 4);
}

TEST_F(GoldenCuda, RunAgainGivesTheSameBits) {
    const auto tokens = some_tokens(210, 512, 1);
    std::vector<float> first;
    for (int i = 0; i < 3; ++i) {
        ModelRunner run = runner("tiny-exl3");
        auto seq = run.start();
        auto logits = run.feed(seq, {tokens.begin(), tokens.begin() + 200}, 512);
        const auto rest = run.feed(seq, {tokens.begin() + 200, tokens.end()}, 1);
        logits.insert(logits.end(), rest.begin(), rest.end());
        if (first.empty()) first = logits;
        EXPECT_EQ(logits, first);
    }
}

TEST_F(GoldenCuda, GraphsGiveTheBitsOfEagerSteps) {
    const auto tokens = some_tokens(190, 512, 6);
    const auto decode = [&](Model::Graphs graphs, int64_t& replays) {
        ModelRunner run = runner("tiny-exl3");
        run.model().use_graphs(graphs);
        auto a = run.start(), b = run.start();
        run.feed(a, {tokens.begin(), tokens.begin() + 70}, 512);
        run.feed(b, {tokens.begin(), tokens.begin() + 30}, 512);
        std::vector<float> all;
        // Positions run over page and selection borders; the batch changes its size on the way.
        for (size_t i = 70; i < tokens.size(); ++i) {
            const bool both = i % 7 < 4;
            const auto logits = both ? run.step({&a, &b}, {{tokens[i]}, {tokens[i - 30]}})
                                     : run.step({&a}, {{tokens[i]}});
            for (const auto& l : logits)
                all.insert(all.end(), l.begin(), l.end());
        }
        replays = run.model().replays();
        return all;
    };
    int64_t eager = 0, replayed = 0;
    const auto want = decode(Model::Graphs::off, eager);
    EXPECT_EQ(decode(Model::Graphs::on, replayed), want);
    EXPECT_EQ(eager, 0);
    EXPECT_GT(replayed, 100);
}

TEST_F(GoldenCuda, BatchMatesAndTheirChunksNeverChangeABit) {
    const auto a = some_tokens(140, 512, 2), b = some_tokens(200, 512, 3),
               c = some_tokens(90, 512, 4);
    ModelRunner run = runner("tiny-exl3");
    auto alone = run.start();
    auto want = run.feed(alone, {a.begin(), a.begin() + 128}, 128);
    const auto tail = run.feed(alone, {a.begin() + 128, a.end()}, 1);
    want.insert(want.end(), tail.begin(), tail.end());
    auto s = run.start(), t = run.start(), u = run.start();
    run.feed(t, {b.begin(), b.begin() + 37}, 37);
    std::vector<float> got;
    auto logits = run.step({&u, &s, &t}, {{c.begin(), c.begin() + 3},
                                          {a.begin(), a.begin() + 128},
                                          {b.begin() + 37, b.begin() + 150}});
    got.insert(got.end(), logits[1].begin(), logits[1].end());
    for (size_t i = 0; i < 12; ++i) {
        logits = run.step({&t, &s, &u}, {{b[150 + i]},
                                         {a[128 + i]},
                                         {c.begin() + 3 + static_cast<int64_t>(7 * i),
                                          c.begin() + 10 + static_cast<int64_t>(7 * i)}});
        got.insert(got.end(), logits[1].begin(), logits[1].end());
    }
    EXPECT_EQ(got, want);
}

TEST_F(GoldenCuda, PlanesInHostMemoryGiveTheSameBits) {
    const auto tokens = some_tokens(210, 512, 7);
    const auto run_with = [&](MemSpace kv, MemSpace raw) {
        ModelRunner::Options o;
        o.planes = PlaneType::f16;
        o.device = device_.get();
        o.observe = false;
        o.kv_space = kv;
        o.raw_space = raw;
        ModelRunner run("tiny-exl3", *ops_, o);
        auto seq = run.start();
        auto logits = run.feed(seq, {tokens.begin(), tokens.begin() + 190}, 128);
        const auto rest = run.feed(seq, {tokens.begin() + 190, tokens.end()}, 1);
        logits.insert(logits.end(), rest.begin(), rest.end());
        return logits;
    };
    const auto want = run_with(MemSpace::device, MemSpace::device);
    EXPECT_EQ(run_with(MemSpace::host_pinned, MemSpace::device), want);
    EXPECT_EQ(run_with(MemSpace::host_pinned, MemSpace::host_pinned), want);
}

// Chunks, a fork, a decoding mate; arenas of a few pages, whose passes cut the history, and large.
TEST_F(GoldenCuda, StagedPrefillGivesTheBitsOfDirectPlanes) {
    const auto tokens = some_tokens(1400, 512, 8);
    const auto run_with = [&](MemSpace kv, int32_t half_pages) {
        ModelRunner::Options o;
        o.planes = PlaneType::f16;
        o.device = device_.get();
        o.observe = false;
        o.kv_space = kv;
        o.half_pages = half_pages;
        ModelRunner run("tiny-exl3", *ops_, o);
        auto seq = run.start(), mate = run.start();
        const auto part = [&](int from, int to) {
            return std::vector<TokenId>(tokens.begin() + from, tokens.begin() + to);
        };
        std::vector<float> all = run.feed(seq, part(0, 701), 320);
        run.feed(mate, part(0, 40), 512);
        auto fork =
            ModelRunner::Sequence{must(run.store().fork(run.stream(), seq.memory, 17)), seq.tokens};
        for (const auto& logits :
             {run.step({&mate, &seq}, {part(40, 41), part(701, 901)}),
              run.step({&fork, &seq, &mate}, {part(901, 1101), part(1101, 1301), part(41, 42)}),
              run.step({&seq, &fork}, {part(1301, 1302), part(1302, 1400)})})
            for (const auto& l : logits)
                all.insert(all.end(), l.begin(), l.end());
        EXPECT_EQ(half_pages > 0, run.staging() && run.staging()->traffic().staged_steps > 4);
        return all;
    };
    const auto want = run_with(MemSpace::device, 0);
    EXPECT_EQ(run_with(MemSpace::host_pinned, 0), want);
    for (const int32_t half : {1, 2, 100})
        EXPECT_EQ(run_with(MemSpace::host_pinned, half), want) << "halves of " << half;
}

TEST_F(GoldenCuda, PromptCutAtMultiplesOf64GivesTheSameBits) {
    const auto tokens = some_tokens(257, 512, 5);
    ModelRunner run = runner("tiny-exl3");
    auto whole = run.start();
    const auto want = run.feed(whole, tokens, 512);
    for (const int32_t chunk : {64, 128, 192, 256}) {
        auto seq = run.start();
        EXPECT_EQ(run.feed(seq, tokens, chunk), want) << "chunk " << chunk;
    }
}

}  // namespace
}  // namespace terrace::test
