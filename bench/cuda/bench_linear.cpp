// Linears of few rows at the real model's sizes, and those of the comparison table.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "gpu_bench.h"

namespace terrace::bench {
namespace {

struct Shape {
    const char* name;
    int in, out, bits;
};

// Copies that together exceed the L2 cache several times.
int copies_for(double bytes) {
    return std::clamp(static_cast<int>(3e8 / bytes), 2, 64);
}

double weight_bytes(const LinearWeight& w) {
    if (w.kind == LinearKind::plain) return 2.0 * w.in * w.out;
    return static_cast<double>(w.exl3.trellis_bytes()) + 2.0 * (w.exl3.in + w.exl3.out);
}

void time_jobs(Gpu& gpu, const std::string& name, const std::vector<std::vector<LinearWeight>>& w,
               int rows) {
    const int in = w[0][0].in;
    const DevSpan<float> x = gpu.random_floats(static_cast<size_t>(rows) * static_cast<size_t>(in));
    LinearArgs a;
    a.x = x;
    a.x_stride = in;
    a.rows = rows;
    a.n_jobs = static_cast<int32_t>(w[0].size());
    const RowRun run{0, rows, RowKind::decode};
    a.runs = {&run, 1};
    OpsLimits limits;
    limits.rows = rows;
    limits.widest = in;
    double bytes = 0;
    for (size_t j = 0; j < w[0].size(); ++j) {
        const LinearWeight& one = w[0][j];
        a.jobs[j].y = gpu.space<float>(static_cast<size_t>(rows) * static_cast<size_t>(one.out));
        a.jobs[j].y_stride = one.out;
        limits.widest = std::max(limits.widest, one.out);
        bytes += weight_bytes(one);
    }
    if (!gpu.ops().reserve(limits)) return;
    const double us = gpu.time_us(std::max(8, static_cast<int>(w.size())), [&](int i) {
        for (size_t j = 0; j < w[0].size(); ++j)
            a.jobs[j].weight = &w[static_cast<size_t>(i) % w.size()][j];
        return gpu.ops().linear(gpu.stream(), a);
    });
    report(fmt::format("{} m={}", name, rows), us, bytes, 0);
}

void bench_shape(Gpu& gpu, const Shape& s, std::initializer_list<int> rows,
                 Codebook codebook = Codebook::mul1) {
    const double bytes = static_cast<double>(s.in) * s.out * s.bits / 8;
    std::vector<std::vector<LinearWeight>> w;
    for (int i = 0; i < copies_for(bytes); ++i)
        w.push_back({gpu.exl3(s.in, s.out, 16 * s.bits, codebook)});
    for (const int m : rows)
        time_jobs(gpu,
                  fmt::format("{} {}x{} K={} {}", s.name, s.in, s.out, s.bits, to_string(codebook)),
                  w, m);
    gpu.forget();
}

const Register linear("linear", [](Gpu& gpu) {
    bench_shape(gpu, {"q_proj", 2560, 12288, 6}, {1, 2, 4, 8, 16});
    bench_shape(gpu, {"o_proj", 6144, 2560, 6}, {1, 4, 16});
    bench_shape(gpu, {"k_proj", 2560, 512, 6}, {1, 16});
    bench_shape(gpu, {"shared gate", 2560, 640, 6}, {1, 16});
    bench_shape(gpu, {"", 4096, 4096, 4}, {1, 16});
    bench_shape(gpu, {"", 4096, 14336, 3}, {1, 16});
});

const Register head("linear-head",
                    [](Gpu& gpu) { bench_shape(gpu, {"lm_head", 2560, 248320, 6}, {1, 16}); });

const Register codebooks("linear-f16", [](Gpu& gpu) {
    for (const int bits : {4, 6})
        bench_shape(gpu, {"f16 products", 2560, 12288, bits}, {1, 16}, Codebook::mcg);
    bench_shape(gpu, {"integer products", 2560, 12288, 4}, {1, 16});
});

const Register groups("linear-jobs", [](Gpu& gpu) {
    std::vector<std::vector<LinearWeight>> qkv, gdn, router;
    for (int i = 0; i < 8; ++i) {
        qkv.push_back({gpu.exl3(2560, 12288, 96), gpu.exl3(2560, 512, 96), gpu.exl3(2560, 512, 96),
                       gpu.exl3(2560, 640, 96)});
        gdn.push_back({gpu.exl3(2560, 10240, 96), gpu.exl3(2560, 6144, 96), gpu.plain_f16(2560, 48),
                       gpu.plain_f16(2560, 48)});
    }
    for (int i = 0; i < 40; ++i)
        router.push_back({gpu.plain_f16(2560, 512)});
    for (const int m : {1, 4, 16}) {
        time_jobs(gpu, "q + k + v + index K=6", qkv, m);
        time_jobs(gpu, "qkv + z K=6, a + b f16", gdn, m);
        time_jobs(gpu, "router 2560x512 f16", router, m);
    }
    gpu.forget();
});

}  // namespace
}  // namespace terrace::bench
