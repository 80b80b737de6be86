// Whole models with a mirror of their K/V planes, on the host and on the emulated device: whatever
// its size, the bits are those without one.
// SPDX-License-Identifier: MIT
#include "model/mirror_script.h"

#include "cpu/cpu_ops.h"
#include "device/emulated_device.h"
#include "ops/emulated_ops.h"

namespace terrace::test {
namespace {

MirrorCounters total(ModelRunner& run) {
    MirrorCounters sum;
    for (const MirrorCounters& c :
         must(run.store().planes().mirror()->read_counters(run.stream()))) {
        sum.calls += c.calls;
        sum.entries += c.entries;
        sum.copied += c.copied;
        sum.at_home += c.at_home;
    }
    return sum;
}

TEST(KvMirrorModel, AnySizeGivesTheBitsWithoutOneOnTheHost) {
    WorkerPool pool(2);
    const auto host = make_host_device();
    const auto cpu = must(make_cpu_ops(*host, pool, {}));
    for (const auto& [name, prompt] : {std::pair{"tiny-exl3", 150}, std::pair{"demo", 600}}) {
        ModelRunner::Options o;
        o.planes = PlaneType::f16;
        o.max_tokens = 1024;
        o.observe = false;
        std::vector<float> want;
        for (const int32_t slots : {0, 1, 8, 64, 1024}) {
            o.mirror_slots = slots;
            ModelRunner run(name, *cpu, o);
            const auto got = mirror_script(run, prompt, 6);
            if (slots == 0) want = got;
            EXPECT_EQ(got, want) << name << " with " << slots << " slots";
            if (slots == 0) continue;
            const MirrorCounters c = total(run);
            EXPECT_GT(c.copied, 0u);
            if (slots < 1024) continue;
            EXPECT_GT(c.hits(), c.entries * 8 / 10) << name;
        }
    }
}

TEST(KvMirrorModel, EverySeedGivesTheBitsOfTheHostOnTheEmulatedDevice) {
    WorkerPool pool(2);
    const auto host = make_host_device();
    const auto cpu = must(make_cpu_ops(*host, pool, {}));
    ModelRunner::Options o;
    o.planes = PlaneType::f16;
    o.max_tokens = 512;
    o.observe = false;
    ModelRunner plain("tiny-exl3", *cpu, o);
    const auto want = mirror_script(plain, 150, 5);
    int64_t replays = 0;
    for (uint64_t seed = 0; seed < 4; ++seed) {
        const auto device = must(EmulatedDevice::create(seed, size_t{1} << 30));
        const auto ops = make_emulated_ops(must(make_cpu_ops(*host, pool, {})));
        constexpr int32_t kSlots[] = {8, 64, 1024, 20};
        {
            o.device = device.get();
            o.kv_space = MemSpace::host_pinned;
            o.mirror_slots = kSlots[seed];
            ModelRunner run("tiny-exl3", *ops, o);
            EXPECT_EQ(mirror_script(run, 150, 5), want) << "seed " << seed;
            EXPECT_GT(total(run).copied, 0u);
            replays += run.model().replays();
        }
        EXPECT_TRUE(device->faults().empty()) << "seed " << seed << ": " << device->faults()[0];
    }
    EXPECT_GT(replays, 20);
}

}  // namespace
}  // namespace terrace::test
