// Router and routed experts of few rows at the real model's sizes: 512 experts of 2560 x 640, top 10.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "gpu_bench.h"

namespace terrace::bench {
namespace {

constexpr int kHidden = 2560, kWidth = 640, kExperts = 512, kTop = 10;

// One layer's experts; all of them share scales, which are small, and nothing else.
struct Layer {
    std::vector<ExpertWeights> experts;
    DevSpan<ExpertWeights> device;
};
Layer make_layer(Gpu& gpu, int n, int n16) {
    Layer l;
    ExpertWeights first;
    first.gate = gpu.exl3(kHidden, kWidth, n16);
    first.up = gpu.exl3(kHidden, kWidth, n16);
    first.down = gpu.exl3(kWidth, kHidden, n16);
    const size_t bytes = first.gate.exl3.trellis_bytes();
    std::byte* all = gpu.random_bytes(bytes * 3 * static_cast<size_t>(n));
    for (int e = 0; e < n; ++e) {
        ExpertWeights w = first;
        for (LinearWeight* m : {&w.gate, &w.up, &w.down}) {
            m->exl3.trellis = reinterpret_cast<const uint16_t*>(all);
            all += bytes;
        }
        l.experts.push_back(w);
    }
    l.device = gpu.upload(l.experts);
    return l;
}

void bench_experts(Gpu& gpu, int n16, const std::vector<int>& rows_list, bool with_shared) {
    const Layer layer = make_layer(gpu, kExperts, n16);
    ExpertWeights shared;
    LinearWeight shared_gate;
    if (with_shared) {
        shared = make_layer(gpu, 1, 96).experts[0];
        shared_gate = gpu.plain_f16(kHidden, 1);
    }
    std::mt19937 random(7);
    for (const int rows : rows_list) {
        OpsLimits limits;
        limits.rows = rows;
        limits.hidden = limits.widest = kHidden;
        limits.experts = kExperts;
        limits.k = kTop;
        limits.moe_width = limits.shared_width = kWidth;
        if (!gpu.ops().reserve(limits)) return;
        // Every call has its own choices, so that experts do not come from the cache.
        constexpr int kCalls = 24;
        std::vector<DevSpan<int32_t>> ids;
        double active = 0;
        for (int c = 0; c < kCalls; ++c) {
            std::vector<int32_t> host;
            std::vector<bool> seen(kExperts);
            std::vector<int32_t> order(kExperts);
            for (int e = 0; e < kExperts; ++e)
                order[static_cast<size_t>(e)] = e;
            for (int r = 0; r < rows; ++r) {
                std::shuffle(order.begin(), order.end(), random);
                host.insert(host.end(), order.begin(), order.begin() + kTop);
                for (int j = 0; j < kTop; ++j)
                    seen[static_cast<size_t>(order[static_cast<size_t>(j)])] = true;
            }
            active += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / kCalls;
            ids.push_back(gpu.upload(host));
        }
        const auto n = static_cast<size_t>(rows);
        MoeArgs a;
        a.x = gpu.random_floats(n * kHidden);
        a.weights = gpu.random_floats(n * kTop);
        a.table = {layer.experts.data(), kExperts, layer.device};
        if (with_shared) {
            a.shared = &shared;
            a.shared_gate = &shared_gate;
        }
        a.y = gpu.space<float>(n * kHidden);
        a.rows = rows;
        a.hidden = kHidden;
        a.width = a.shared_width = kWidth;
        a.k = kTop;
        const RowRun run{0, rows, RowKind::decode};
        a.runs = {&run, 1};
        const double us = gpu.time_us(kCalls, [&](int i) {
            a.ids = ids[static_cast<size_t>(i)];
            return gpu.ops().moe(gpu.stream(), a);
        });
        double bytes = active * 3 * static_cast<double>(layer.experts[0].gate.exl3.trellis_bytes());
        if (with_shared) bytes += 3 * static_cast<double>(shared.gate.exl3.trellis_bytes());
        report(fmt::format("experts K={}{}, {} tokens, {:.0f} active", n16 / 16.0,
                           with_shared ? " + shared K=6" : "", rows, active),
               us, bytes, 0);
    }
    gpu.forget();
}

const Register experts("moe-decode", [](Gpu& gpu) {
    bench_experts(gpu, 64, {1, 2, 4, 8, 16}, false);
    bench_experts(gpu, 64, {1, 16}, true);
    bench_experts(gpu, 48, {1, 4, 16}, false);
});

const Register router("route", [](Gpu& gpu) {
    constexpr int kSites = 48;  // x 2.6 MB
    std::vector<LinearWeight> sites(kSites);
    for (LinearWeight& w : sites)
        w = gpu.plain_f16(kHidden, kExperts);
    for (const int rows : {1, 4, 16, 512}) {
        RouteArgs a;
        const auto n = static_cast<size_t>(rows);
        a.x = gpu.random_floats(n * kHidden, 3.0f);
        a.logits = gpu.space<float>(n * kExperts);
        a.ids = gpu.space<int32_t>(n * kTop);
        a.weights = gpu.space<float>(n * kTop);
        a.rows = rows;
        a.experts = kExperts;
        a.k = kTop;
        OpsLimits limits;
        limits.rows = rows;
        limits.hidden = limits.widest = kHidden;
        if (!gpu.ops().reserve(limits)) return;
        const double us = gpu.time_us(kSites, [&](int i) {
            a.router = &sites[static_cast<size_t>(i % kSites)];
            return gpu.ops().route(gpu.stream(), a);
        });
        report(fmt::format("route 10 of 512, {} rows", rows), us,
               2.0 * kExperts * kHidden + 4.0 * kHidden * rows, 0);
    }
    gpu.forget();
});

}  // namespace
}  // namespace terrace::bench
