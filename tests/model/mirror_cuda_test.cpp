// Whole models on the GPU with K and V in pinned host memory and a mirror of them: the bits are those
// of planes in the GPU's memory, captured graphs included. Skipped without a GPU.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "cuda/cuda_backend.h"
#include "model/mirror_script.h"

namespace terrace::test {
namespace {

TEST(KvMirrorCuda, AnySizeGivesTheBitsOfPlanesInTheGpusMemory) {
    if (!probe_cuda().usable()) GTEST_SKIP() << "no GPU";
    const auto device = must(make_cuda_device(0));
    const auto ops = must(make_cuda_ops(*device));
    for (const auto& [name, prompt] : {std::pair{"tiny-exl3", 150}, std::pair{"demo", 600}}) {
        ModelRunner::Options o;
        o.planes = PlaneType::f16;
        o.max_tokens = 1024;
        o.observe = false;
        o.device = device.get();
        std::vector<float> want;
        int64_t replays = 0;
        for (const int32_t slots : {-1, 0, 1, 8, 64, 1024}) {
            if (slots >= 0) o.kv_space = MemSpace::host_pinned;
            o.mirror_slots = std::max(slots, 0);
            for (const auto graphs : {Model::Graphs::off, Model::Graphs::on}) {
                ModelRunner run(name, *ops, o);
                run.model().use_graphs(graphs);
                const auto got = mirror_script(run, prompt, 12);
                if (want.empty()) want = got;
                EXPECT_TRUE(got == want) << name << " with " << slots << " slots";
                replays += run.model().replays();
                if (slots <= 0) continue;
                MirrorCounters sum;
                for (const MirrorCounters& c :
                     must(run.store().planes().mirror()->read_counters(run.stream()))) {
                    EXPECT_LE(c.copied + c.at_home, c.entries);
                    sum.entries += c.entries;
                    sum.copied += c.copied;
                    sum.at_home += c.at_home;
                }
                EXPECT_GT(sum.copied, 0u);
                if (graphs == Model::Graphs::on)
                    fmt::print(
                        "{} with {} slots: {} blocks asked for, {} hits, {} copied, {} read "
                        "at home\n",
                        name, slots, sum.entries, sum.hits(), sum.copied, sum.at_home);
            }
        }
        EXPECT_GT(replays, 100);
    }
}

}  // namespace
}  // namespace terrace::test
