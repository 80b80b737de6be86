// Whole models on the emulated device: weights placed in memory the host cannot touch, steps queued
// and run late in an order the seed picks, decode steps captured and replayed. Every seed must give
// the host's bits and no fault.
// SPDX-License-Identifier: MIT
#include "device/emulated_device.h"

#include "cpu/cpu_ops.h"
#include "model/model_runner.h"
#include "ops/emulated_ops.h"

namespace terrace::test {
namespace {

std::vector<TokenId> some_tokens(int32_t n, uint64_t seed) {
    Random random(seed);
    std::vector<TokenId> out;
    for (int32_t i = 0; i < n; ++i)
        out.push_back(static_cast<TokenId>(random.below(512)));
    return out;
}

// Two sequences: prefill in pieces, then decode together and alone, over page and selection borders.
std::vector<float> script(ModelRunner& run) {
    const auto a = some_tokens(190, 1), b = some_tokens(120, 2);
    auto s = run.start(), t = run.start();
    std::vector<float> all = run.feed(s, {a.begin(), a.begin() + 150}, 128);
    const auto more = run.feed(t, {b.begin(), b.begin() + 90}, 64);
    all.insert(all.end(), more.begin(), more.end());
    for (size_t i = 0; i < 30; ++i) {
        const auto logits = i % 5 < 3 ? run.step({&s, &t}, {{a[150 + i]}, {b[90 + i]}})
                                      : run.step({&s}, {{a[150 + i]}});
        for (const auto& l : logits)
            all.insert(all.end(), l.begin(), l.end());
    }
    return all;
}

TEST(Emulated, EverySeedAndPlacementGivesTheBitsOfTheHost) {
    WorkerPool pool(2);
    const auto host = make_host_device();
    const auto cpu = must(make_cpu_ops(*host, pool, {}));
    ModelRunner plain("tiny-exl3", *cpu, {});
    const auto want = script(plain);
    int64_t replays = 0;
    for (uint64_t seed = 0; seed < 6; ++seed) {
        const auto device = must(EmulatedDevice::create(seed, size_t{1} << 30));
        const auto ops = make_emulated_ops(must(make_cpu_ops(*host, pool, {})));
        {
            ModelRunner::Options o;
            o.device = device.get();
            o.observe = seed % 3 == 0;  // an observed step is never replayed
            // K and V planes, and with them or not raw keys, in the host's pinned memory.
            if (seed % 2) o.kv_space = MemSpace::host_pinned;
            if (seed % 4 == 3) o.raw_space = MemSpace::host_pinned;
            ModelRunner run("tiny-exl3", *ops, o);
            EXPECT_EQ(script(run), want) << "seed " << seed;
            replays += run.model().replays();
        }
        EXPECT_TRUE(device->faults().empty()) << "seed " << seed << ": " << device->faults()[0];
    }
    EXPECT_GT(replays, 40);
}

}  // namespace
}  // namespace terrace::test
