// The CPU backend, on every instruction set this machine has, against the activations of an
// independent float32 implementation; and its equality promises on whole models.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cpu/cpu_ops.h"
#include "model/golden_cases.h"

namespace terrace::test {
namespace {

struct CpuBackend {
    std::unique_ptr<Device> device = make_host_device();
    std::unique_ptr<WorkerPool> pool;
    std::unique_ptr<Ops> ops;
};

CpuBackend make_cpu(IsaChoice isa, Activations activations, int threads) {
    CpuBackend b;
    b.pool = std::make_unique<WorkerPool>(threads);
    b.ops = must(make_cpu_ops(*b.device, *b.pool, {isa, activations}));
    return b;
}

class GoldenCpu : public testing::TestWithParam<IsaChoice> {
  protected:
    void SetUp() override {
        if (!select_kernels(GetParam())) GTEST_SKIP() << "this processor lacks the instruction set";
    }
};

const std::vector<int32_t> kChunks{1, 3, 64, 100, 300};

TEST_P(GoldenCpu, TinyBf16MatchesWithinTwoTenThousandthsInEveryChunking) {
    CpuBackend cpu = make_cpu(GetParam(), Activations::f32, 2);
    run_golden_cases("tiny-bf16", *cpu.ops, GoldenLimits{2e-4f, kChunks});
}

TEST_P(GoldenCpu, TinyExl3WithFloatActivationsMatchesWithinOneThousandth) {
    CpuBackend cpu = make_cpu(GetParam(), Activations::f32, 2);
    run_golden_cases("tiny-exl3", *cpu.ops, GoldenLimits{1e-3f, kChunks});
}

// The fast path drops the fp16 rounding of code values (2.1e-4 relative per linear, EXL3
// format 2.9) and rounds activations to 16 bits of their block's largest. What remains of the
// difference is an expert or a block near a tie that now falls the other way: rare rows, far apart.
TEST_P(GoldenCpu, TinyExl3WithInt16ActivationsStaysWithinItsBounds) {
    CpuBackend cpu = make_cpu(GetParam(), Activations::int16, 2);
    const Golden golden(std::filesystem::path(TERRACE_TEST_DATA) / "tiny-exl3.golden.safetensors");
    ModelRunner run("tiny-exl3", *cpu.ops, {});
    const auto vocab = static_cast<size_t>(run.config().vocab);
    double kl_sum = 0;
    std::vector<double> differences;  // largest logit difference of each row
    for (const char* c : {"len66", "len67", "len131"}) {
        const auto ids = golden.ints(std::string(c) + ".tokens");
        const auto want = golden.floats(std::string(c) + ".logits");
        auto seq = run.start();
        const auto got = run.feed(seq, {ids.begin(), ids.end()}, 512);
        for (size_t r = 0; r < want.size() / vocab; ++r) {
            kl_sum += kl_divergence(&want[r * vocab], &got[r * vocab], vocab);
            differences.push_back(
                static_cast<double>(max_abs_difference(&got[r * vocab], &want[r * vocab], vocab)));
        }
    }
    std::sort(differences.begin(), differences.end());
    const double kl = kl_sum / static_cast<double>(differences.size());
    const double median = differences[differences.size() / 2];
    fmt::print(
        "int16 activations: mean KL {:.2e}, largest logit difference of a row: median "
        "{:.2e}, worst {:.2e}\n",
        kl, median, differences.back());
    EXPECT_LT(kl, 2e-4);  // asked for: 2e-3
    EXPECT_LT(median, 4e-3);
    EXPECT_GT(median, 0);  // the path under test is another one than the exact one
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, GoldenCpu,
                         testing::Values(IsaChoice::avx2, IsaChoice::avx512,
                                         IsaChoice::avx512_vbmi),
                         [](const auto& i) {
                             return i.param == IsaChoice::avx2     ? "avx2"
                                    : i.param == IsaChoice::avx512 ? "avx512"
                                                                   : "avx512vbmi";
                         });

std::vector<TokenId> some_tokens(int32_t n, int32_t vocab, uint64_t seed) {
    Random random(seed);
    std::vector<TokenId> out;
    for (int32_t i = 0; i < n; ++i)
        out.push_back(static_cast<TokenId>(random.below(vocab)));
    return out;
}

// 150 tokens in one prefill, then 6 one by one: every kind of row.
std::vector<float> one_run(Ops& ops, const std::vector<TokenId>& tokens, PlaneType planes) {
    ModelRunner::Options options;
    options.planes = planes;
    ModelRunner run("tiny-exl3", ops, options);
    auto seq = run.start();
    auto out = run.feed(seq, {tokens.begin(), tokens.begin() + 150}, 150);
    const auto rest = run.feed(seq, {tokens.begin() + 150, tokens.end()}, 1);
    out.insert(out.end(), rest.begin(), rest.end());
    return out;
}

TEST(CpuEquality, ThreadsAndInstructionSetsGiveTheSameBits) {
    const auto tokens = some_tokens(156, 512, 1);
    for (const PlaneType planes : {PlaneType::f16, PlaneType::f32})
        for (const Activations a : {Activations::int16, Activations::f32}) {
            std::vector<float> first;
            for (const IsaChoice isa : {IsaChoice::avx2, IsaChoice::avx512, IsaChoice::avx512_vbmi})
                for (const int threads : {1, 2, 5}) {
                    if (!select_kernels(isa)) continue;
                    CpuBackend cpu = make_cpu(isa, a, threads);
                    const auto logits = one_run(*cpu.ops, tokens, planes);
                    if (first.empty()) first = logits;
                    EXPECT_EQ(logits, first) << static_cast<int>(isa) << " " << threads;
                }
        }
}

TEST(CpuEquality, BatchMatesAndTheirChunksNeverChangeABit) {
    CpuBackend cpu = make_cpu(IsaChoice::auto_detect, Activations::int16, 2);
    const auto a = some_tokens(140, 512, 2), b = some_tokens(200, 512, 3),
               c = some_tokens(90, 512, 4);
    ModelRunner run("tiny-exl3", *cpu.ops, {});
    // Alone: 128 rows, then one by one.
    auto alone = run.start();
    auto want = run.feed(alone, {a.begin(), a.begin() + 128}, 128);
    const auto tail = run.feed(alone, {a.begin() + 128, a.end()}, 1);
    want.insert(want.end(), tail.begin(), tail.end());
    // Beside two others that prefill and decode in other sizes at the same time.
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

TEST(CpuEquality, PromptCutAtMultiplesOf64GivesTheSameBits) {
    CpuBackend cpu = make_cpu(IsaChoice::auto_detect, Activations::int16, 2);
    const auto tokens = some_tokens(257, 512, 5);
    ModelRunner run("tiny-exl3", *cpu.ops, {});
    auto whole = run.start();
    const auto want = run.feed(whole, tokens, 512);
    for (const int32_t chunk : {64, 128, 192, 256}) {
        auto seq = run.start();
        EXPECT_EQ(run.feed(seq, tokens, chunk), want) << "chunk " << chunk;
    }
}

}  // namespace
}  // namespace terrace::test
