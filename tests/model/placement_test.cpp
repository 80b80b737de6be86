// Weights in the memory of a device of its own: every view moved, nothing changed, sizes as planned.
// SPDX-License-Identifier: MIT
#include "model/placement.h"

#include <cstring>

#include "device/emulated_device.h"
#include "model/model_runner.h"

namespace terrace::test {
namespace {

struct Pair {
    const void *host, *device;
    size_t bytes;
};

void add(std::vector<Pair>& all, const PlainTensor& a, const PlainTensor& b) {
    all.push_back({a.data, b.data, static_cast<size_t>(a.size) * dtype_bytes(a.dtype)});
}
void add(std::vector<Pair>& all, const LinearWeight& a, const LinearWeight& b) {
    if (a.kind == LinearKind::plain) add(all, a.plain, b.plain);
    if (a.kind != LinearKind::exl3) return;
    all.push_back({a.exl3.trellis, b.exl3.trellis, a.exl3.trellis_bytes()});
    all.push_back({a.exl3.suh, b.exl3.suh, 2 * static_cast<size_t>(a.exl3.in)});
    all.push_back({a.exl3.svh, b.exl3.svh, 2 * static_cast<size_t>(a.exl3.out)});
}

TEST(Placement, MovesEveryTensorAndChangesNoByte) {
    for (const char* name : {"tiny-exl3", "tiny-bf16"}) {
        const ModelDir dir = must(ModelDir::open(model_path(name)));
        const auto device = must(EmulatedDevice::create(9, size_t{1} << 30));
        const auto stream = must(device->make_stream());
        Budget budget("device", 0);
        const ModelWeights host = must(bind_weights(dir));
        ModelWeights placed = must(bind_weights(dir));
        const WeightBytes planned = placed_bytes(placed);
        must(place_weights(placed, *device, *stream, budget));
        EXPECT_EQ(budget.used(Role::weights), planned.weights);
        EXPECT_EQ(budget.used(Role::experts), planned.experts);
        EXPECT_TRUE(placed.owned.empty());

        std::vector<Pair> all;
        add(all, host.embed, placed.embed);
        add(all, host.head, placed.head);
        add(all, host.mixer.up, placed.mixer.up);
        for (size_t i = 0; i < host.layers.size(); ++i) {
            const LayerWeights &a = host.layers[i], &b = placed.layers[i];
            add(all, a.attn_hyper.norm, b.attn_hyper.norm);
            add(all, a.mlp_hyper.down, b.mlp_hyper.down);
            if (a.kind == LayerKind::gdn) {
                add(all, a.gdn.qkv, b.gdn.qkv);
                add(all, a.gdn.a_log, b.gdn.a_log);
            } else {
                add(all, a.qsa.index_qk, b.qsa.index_qk);
                add(all, a.qsa.q_norm, b.qsa.q_norm);
            }
            add(all, a.moe.router, b.moe.router);
            add(all, a.moe.shared.down, b.moe.shared.down);
            for (size_t e = 0; e < a.moe.experts.size(); ++e) {
                add(all, a.moe.experts[e].gate, b.moe.experts[e].gate);
                add(all, a.moe.experts[e].down, b.moe.experts[e].down);
            }
            if (a.ple) add(all, a.ple->key, b.ple->key);
        }
        for (const Pair& p : all) {
            EXPECT_EQ(reinterpret_cast<uintptr_t>(p.device) % kWeightAlign, 0u);
            std::vector<std::byte> back(p.bytes);
            must(stream->copy(back.data(), p.device, p.bytes));
            must(stream->synchronize());
            ASSERT_EQ(std::memcmp(back.data(), p.host, p.bytes), 0) << name;
        }
        // The table on the device holds what the host's entries say.
        for (const LayerWeights& l : placed.layers) {
            std::vector<ExpertWeights> back(l.moe.experts.size());
            must(stream->copy(back.data(), l.moe.device_experts.device_pointer(),
                              back.size() * sizeof(ExpertWeights)));
            must(stream->synchronize());
            for (size_t e = 0; e < back.size(); ++e)
                EXPECT_EQ(back[e].up.exl3.trellis, l.moe.experts[e].up.exl3.trellis);
        }
        EXPECT_TRUE(device->faults().empty());
    }
}

TEST(Placement, ATiedHeadHasOneHome) {
    const ModelDir dir = must(ModelDir::open(model_path("tiny-bf16")));
    const auto device = must(EmulatedDevice::create(1, size_t{1} << 30));
    const auto stream = must(device->make_stream());
    Budget budget("device", 0);
    ModelWeights w = must(bind_weights(dir));
    w.head.kind = LinearKind::plain;
    w.head.plain = w.embed;
    const uint64_t before = placed_bytes(w).weights;
    must(place_weights(w, *device, *stream, budget));
    EXPECT_EQ(w.head.plain.data, w.embed.data);
    EXPECT_EQ(budget.used(Role::weights), before);
}

TEST(Placement, StaysWhereItIsOnAUnifiedDevice) {
    const ModelDir dir = must(ModelDir::open(model_path("tiny-exl3")));
    const auto device = make_host_device();
    const auto stream = must(device->make_stream());
    Budget budget("host", 0);
    ModelWeights w = must(bind_weights(dir));
    const void* embed = w.embed.data;
    must(place_weights(w, *device, *stream, budget));
    EXPECT_EQ(w.embed.data, embed);
    EXPECT_EQ(budget.used(), 0u);
    EXPECT_EQ(w.layers[0].moe.device_experts.device_pointer(), w.layers[0].moe.experts.data());
}

TEST(Placement, DeviceThatIsTooSmallIsToldApart) {
    const ModelDir dir = must(ModelDir::open(model_path("tiny-bf16")));
    const auto device = must(EmulatedDevice::create(1, 4096));
    const auto stream = must(device->make_stream());
    Budget budget("device", 0);
    ModelWeights w = must(bind_weights(dir));
    const Status refused = place_weights(w, *device, *stream, budget);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Code::out_of_memory);
}

}  // namespace
}  // namespace terrace::test
