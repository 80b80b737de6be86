// Gated delta net and n-gram injection at the real model's sizes. States rotate through copies
// larger than the L2 cache where a call's own are smaller.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "gpu_bench.h"

namespace terrace::bench {
namespace {

constexpr int kHeads = 48, kKeyHeads = 16, kDim = 128, kKernel = 4;
constexpr int kChannels = (2 * kKeyHeads + kHeads) * kDim;
constexpr int kWide = 10240, kHidden = 2560;

// Rows of `n_seqs` sequences of as many rows each, in a step.
struct Step {
    Step(Gpu& gpu, int n_seqs, int rows_each, int slots) : slots_(slots) {
        std::vector<int32_t> row_seq;
        for (int i = 0; i < n_seqs; ++i) {
            seqs.push_back({i * rows_each, rows_each, 64, 0, 0, i});
            row_seq.insert(row_seq.end(), static_cast<size_t>(rows_each), i);
        }
        rows.n_rows = n_seqs * rows_each;
        rows.n_seqs = n_seqs;
        for (int at = 0; at + n_seqs <= slots; at += n_seqs) {
            for (int i = 0; i < n_seqs; ++i)
                seqs[static_cast<size_t>(i)].slot = at + i;
            copies.push_back(gpu.upload(seqs));
        }
        rows.row_seq = gpu.upload(row_seq);
        rows.host_seqs = seqs.data();
        run = {0, rows.n_rows, rows_each <= kDecodeRows ? RowKind::decode : RowKind::prefill};
        rows.runs = {&run, 1};
    }
    // The step with the slots of call i.
    StepRows at(int i) const {
        StepRows r = rows;
        r.seqs = copies[static_cast<size_t>(i) % copies.size()];
        return r;
    }
    std::vector<SeqRows> seqs;
    std::vector<DevSpan<SeqRows>> copies;
    RowRun run;
    StepRows rows;
    int slots_;
};

void reserve(Gpu& gpu, int rows) {
    OpsLimits limits;
    limits.rows = rows;
    limits.hidden = kHidden;
    limits.streams = kWide / kHidden;
    limits.gdn_v_heads = kHeads;
    limits.gdn_k_dim = limits.gdn_v_dim = kDim;
    limits.gdn_channels = kChannels;
    if (const Status s = gpu.ops().reserve(limits); !s) fmt::print("{}\n", s.error().message);
}

void gated_delta_net(Gpu& gpu) {
    constexpr int kSlots = 48;  // x 3.1 MB
    GdnArgs a;
    a.conv = gpu.plain_f16_vector(kChannels * kKernel, 0.5f);
    a.a_log = gpu.plain_f16_vector(kHeads, 0.5f);
    a.dt_bias = gpu.plain_f16_vector(kHeads);
    a.norm = gpu.plain_f16_vector(kDim);
    a.state = gpu.random_floats(size_t{kSlots} * kHeads * kDim * kDim, 0.1f);
    a.conv_state = gpu.random_floats(size_t{kSlots} * (kKernel - 1) * kChannels);
    a.k_heads = kKeyHeads;
    a.v_heads = kHeads;
    a.k_dim = a.v_dim = kDim;
    a.kernel = kKernel;
    struct Shape {
        int seqs, rows;
    };
    for (const Shape& c :
         std::vector<Shape>{{1, 1}, {4, 1}, {16, 1}, {1, 4}, {1, 2048}, {8, 256}, {1, 64}}) {
        const Step step(gpu, c.seqs, c.rows, kSlots);
        const auto rows = static_cast<size_t>(step.rows.n_rows);
        a.qkv = gpu.random_floats(rows * kChannels);
        a.z = gpu.random_floats(rows * kHeads * kDim);
        a.a = gpu.random_floats(rows * kHeads);
        a.b = gpu.random_floats(rows * kHeads);
        a.out = gpu.space<float>(rows * kHeads * kDim);
        reserve(gpu, step.rows.n_rows);
        const double us = gpu.time_us(c.rows > 16 ? 3 : 48, [&](int i) {
            a.step = step.at(i);
            return gpu.ops().gdn(gpu.stream(), a);
        });
        const double state = 4.0 * kHeads * kDim * kDim + 4.0 * (kKernel - 1) * kChannels;
        report(
            fmt::format("gdn {} sequences x {} rows", c.seqs, c.rows), us,
            2 * state * c.seqs + 4.0 * static_cast<double>(rows) * (kChannels + 2 * kHeads * kDim),
            0);
    }
}

void injection(Gpu& gpu) {
    PleInjectArgs a;
    a.norm_key = gpu.plain_f16_vector(kWide, 0.3f);
    a.norm_query = gpu.plain_f16_vector(kWide, 0.3f);
    a.norm_conv = gpu.plain_f16_vector(kWide, 0.3f);
    a.conv = gpu.plain_f16_vector(kWide * kKernel, 0.5f);
    a.state = gpu.random_floats(size_t{9} * kWide);
    a.streams = kWide / kHidden;
    a.hidden = kHidden;
    for (const int n : {1, 2048}) {
        const Step step(gpu, 1, n, 1);
        const auto rows = static_cast<size_t>(n);
        a.h = gpu.random_floats(rows * kWide, 2.0f);
        a.key = gpu.random_floats(rows * kWide);
        a.value = gpu.random_floats(rows * kHidden);
        reserve(gpu, n);
        const double us = gpu.time_us(n > 16 ? 3 : 20, [&](int i) {
            a.step = step.at(i);
            return gpu.ops().ple_inject(gpu.stream(), a);
        });
        report(fmt::format("ple_inject {} rows", n), us, 4.0 * n * (3 * kWide + kHidden), 0);
    }
}

const Register r("recurrent", [](Gpu& gpu) {
    gated_delta_net(gpu);
    injection(gpu);
});

}  // namespace
}  // namespace terrace::bench
