// Embedding, hyper-connections and row gather at the real model's sizes. Weights and rows rotate
// through copies larger than the L2 cache.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "gpu_bench.h"

namespace terrace::bench {
namespace {

constexpr int kHidden = 2560, kStreams = 4, kWide = kStreams * kHidden, kRank = 320;

void read_and_write(Gpu& gpu) {
    constexpr int kSites = 12;  // x 13.2 MB of weights
    std::vector<HyperWeights> sites(kSites);
    for (HyperWeights& w : sites) {
        w.norm = gpu.plain_f16_vector(kWide, 0.3f);
        w.down = gpu.plain_f16(kWide, kRank);
        w.up = gpu.plain_f16(kRank, kWide);
        w.inject = gpu.plain_f16(kWide, kStreams);
    }
    for (const int rows : {1, 4, 16, 2048}) {
        const auto r = static_cast<size_t>(rows);
        HyperReadArgs a;
        const DevSpan<float> h = gpu.random_floats(r * kWide, 3.0f);
        a.h = h;
        a.x = gpu.space<float>(r * kHidden);
        a.inj = gpu.space<float>(r * kStreams);
        a.rows = rows;
        a.streams = kStreams;
        a.hidden = kHidden;
        a.rank = kRank;
        OpsLimits limits;
        limits.rows = rows;
        limits.hidden = kHidden;
        limits.streams = kStreams;
        limits.rank = kRank;
        limits.widest = kWide;
        if (const Status s = gpu.ops().reserve(limits); !s) {
            fmt::print("{}\n", s.error().message);
            return;
        }
        const double weights = 2.0 * kWide * (2 * kRank + kStreams + 1);
        const double moved = 4.0 * rows * (kWide + kHidden);
        const double flops = rows > 16 ? 2.0 * rows * kWide * (2 * kRank + kStreams) : 0;
        const double us = gpu.time_us(rows > 16 ? 4 : 3 * kSites, [&](int i) {
            a.weights = &sites[static_cast<size_t>(i % kSites)];
            return gpu.ops().hyper_read(gpu.stream(), a);
        });
        report(fmt::format("hyper_read {} rows", rows), us, weights + moved, flops);
        a.add_y = gpu.random_floats(r * kHidden);
        a.add_inj = gpu.random_floats(r * kStreams);
        const double both_us = gpu.time_us(rows > 16 ? 4 : 3 * kSites, [&](int i) {
            a.weights = &sites[static_cast<size_t>(i % kSites)];
            return gpu.ops().hyper_read(gpu.stream(), a);
        });
        report(fmt::format("hyper_read that adds {} rows", rows), both_us,
               weights + moved + 4.0 * rows * (kWide + kHidden), 0);
        HyperWriteArgs w{h, a.x, a.inj, rows, kStreams, kHidden};
        const double write_us = gpu.time_us(
            rows > 16 ? 4 : 50, [&](int) { return gpu.ops().hyper_write(gpu.stream(), w); });
        report(fmt::format("hyper_write {} rows", rows), write_us,
               4.0 * rows * (2 * kWide + kHidden), 0);
    }
}

void copies(Gpu& gpu) {
    for (const int rows : {1, 2048}) {
        const auto r = static_cast<size_t>(rows);
        std::vector<int32_t> ids;
        for (int i = 0; i < rows; ++i)
            ids.push_back(i * 7919 % 4096);
        EmbedArgs e;
        e.table = gpu.plain_f16_vector(int64_t{4096} * kHidden);
        e.tokens = gpu.upload(ids);
        e.h = gpu.space<float>(r * kWide);
        e.rows = rows;
        e.streams = kStreams;
        e.hidden = kHidden;
        double us = gpu.time_us(20, [&](int) { return gpu.ops().embed(gpu.stream(), e); });
        report(fmt::format("embed {} rows", rows), us, rows * (2.0 * kHidden + 4.0 * kWide), 0);
        GatherRowsArgs g{gpu.random_floats(4096 * size_t{kHidden}), e.tokens,
                         gpu.space<float>(r * kHidden), rows, kHidden};
        us = gpu.time_us(20, [&](int) { return gpu.ops().gather_rows(gpu.stream(), g); });
        report(fmt::format("gather_rows {} rows", rows), us, 8.0 * rows * kHidden, 0);
    }
}

void candidates(Gpu& gpu) {
    constexpr int kVocab = 248320, kMost = 256;
    for (const int rows : {1, 16}) {
        const auto r = static_cast<size_t>(rows);
        SampleCandidatesArgs a;
        a.logits = gpu.random_floats(r * kVocab, 8.0f);
        a.values = gpu.space<float>(r * kMost);
        a.ids = gpu.space<int32_t>(r * kMost);
        a.log_sum = gpu.space<float>(r);
        a.rows = rows;
        a.vocab = kVocab;
        OpsLimits limits;
        limits.head_rows = rows;
        if (const Status s = gpu.ops().reserve(limits); !s) fmt::print("{}\n", s.error().message);
        for (const int k : {1, 64, 256}) {
            a.k = k;
            const double us =
                gpu.time_us(20, [&](int) { return gpu.ops().sample_candidates(gpu.stream(), a); });
            report(fmt::format("sample_candidates {} rows, k {}", rows, k), us, 4.0 * rows * kVocab,
                   0);
        }
    }
}

const Register r("streams", [](Gpu& gpu) {
    read_and_write(gpu);
    copies(gpu);
    candidates(gpu);
});

}  // namespace
}  // namespace terrace::bench
