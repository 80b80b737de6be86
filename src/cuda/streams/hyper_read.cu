// hyper_read on the GPU: grouped norm, low-rank gate, mean over the streams, injection weights.
//
// Any shape and any kind of weight: normed rows in scratch, the products by `linear` on the rows as
// they are, elementwise kernels around them.
// SPDX-License-Identifier: MIT
#include "cuda/streams/hyper_read.h"

#include <algorithm>

#include "cuda/linear/linear_ops.h"
#include "cuda/streams/stream_ops.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 256;

// Computes n[r][s][:] = h * rsqrt(mean(h_s^2) + eps) * (1 + w). Grid: (streams, rows).
// Traffic: h once from memory, once from the cache; n.
__global__ void __launch_bounds__(kThreads)
    norm_kernel(HyperReadArgs a, PlainTensor norm, float* n) {
    __shared__ float part[32];
    pdl_launch();
    pdl_wait();
    const int s = static_cast<int>(blockIdx.x);
    for (int r = static_cast<int>(blockIdx.y); r < a.rows; r += static_cast<int>(gridDim.y)) {
        const int64_t at = (int64_t{r} * a.streams + s) * a.hidden;
        const float* h = a.h.device_pointer() + at;
        float sum = 0.0f;
        for (int i = static_cast<int>(threadIdx.x); i < a.hidden; i += kThreads)
            sum = fmaf(h[i], h[i], sum);
        const float inv = rsqrtf(block_sum(sum, part) / static_cast<float>(a.hidden) + a.eps);
        for (int i = static_cast<int>(threadIdx.x); i < a.hidden; i += kThreads)
            n[at + i] = h[i] * inv * (1.0f + load_plain(norm, s * a.hidden + i));
    }
}

// Computes mid = silu(mid / S) and inj = 2 sigmoid(inj / S), in place. A thread per element.
__global__ void __launch_bounds__(kThreads)
    middle_kernel(HyperReadArgs a, float* mid, int64_t n_inj) {
    pdl_launch();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    const float scale = 1.0f / static_cast<float>(a.streams);
    if (i < int64_t{a.rows} * a.rank) mid[i] = siluf(mid[i] * scale);
    if (i < n_inj) {
        float* inj = a.inj.device_pointer() + i;
        *inj = 2.0f * sigmoidf(*inj * scale);
    }
}

// Computes x = mean over streams of sigmoid(g) * n. Grid: (pieces of a row, rows).
__global__ void __launch_bounds__(kThreads)
    gate_kernel(HyperReadArgs a, const float* n, const float* g) {
    pdl_launch();
    pdl_wait();
    const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    if (i >= a.hidden) return;
    for (int r = static_cast<int>(blockIdx.y); r < a.rows; r += static_cast<int>(gridDim.y)) {
        float sum = 0.0f;
        for (int s = 0; s < a.streams; ++s) {
            const int64_t at = (int64_t{r} * a.streams + s) * a.hidden + i;
            sum += sigmoidf(g[at]) * n[at];
        }
        a.x.device_pointer()[int64_t{r} * a.hidden + i] = sum / static_cast<float>(a.streams);
    }
}

unsigned blocks_of(size_t n) {
    return static_cast<unsigned>((n + kThreads - 1) / kThreads);
}

Status any_shape(const Launch& l, HyperReadArgs a, const HyperScratch& s, const RowRun& run) {
    TERRACE_TRY(hyper_add(l, a, run.row0, run.n_rows));
    const int wide = a.streams * a.hidden;
    const auto first = static_cast<size_t>(run.row0), n_rows = static_cast<size_t>(run.n_rows);
    const size_t n_wide = n_rows * static_cast<size_t>(wide);
    const size_t n_mid = n_rows * static_cast<size_t>(a.rank);
    const size_t n_inj = a.inj.empty() ? 0 : n_rows * static_cast<size_t>(a.streams);
    a.h = a.h.sub(first * static_cast<size_t>(wide), n_wide);
    a.x = a.x.sub(first * static_cast<size_t>(a.hidden), n_rows * static_cast<size_t>(a.hidden));
    if (n_inj > 0) a.inj = a.inj.sub(first * static_cast<size_t>(a.streams), n_inj);
    a.rows = run.n_rows;

    const auto rows = static_cast<unsigned>(std::min(a.rows, 65535));
    TERRACE_TRY(start(l, "hyper_read: norm", norm_kernel,
                      dim3(static_cast<unsigned>(a.streams), rows), kThreads, 0, Start::overlapping,
                      a, a.weights->norm, s.n));
    Launch inner = l;
    inner.scratch += s.used;
    inner.scratch_bytes -= s.used;
    const RowRun whole = {0, a.rows, run.kind};
    LinearArgs linears;
    linears.x = {s.n, n_wide};
    linears.x_stride = wide;
    linears.rows = a.rows;
    linears.runs = {&whole, 1};
    linears.jobs[0] = {&a.weights->down, {s.mid, n_mid}, a.rank};
    linears.jobs[1] = {&a.weights->inject, a.inj, a.streams};
    linears.n_jobs = n_inj > 0 ? 2 : 1;
    TERRACE_TRY(linear(inner, linears));
    TERRACE_TRY(start(l, "hyper_read: middle", middle_kernel, blocks_of(std::max(n_mid, n_inj)),
                      kThreads, 0, Start::overlapping, a, s.mid, static_cast<int64_t>(n_inj)));
    linears.x = {s.mid, n_mid};
    linears.x_stride = a.rank;
    linears.jobs[0] = {&a.weights->up, {s.g, n_wide}, wide};
    linears.n_jobs = 1;
    TERRACE_TRY(linear(inner, linears));
    return start(l, "hyper_read: gate", gate_kernel,
                 dim3(blocks_of(static_cast<size_t>(a.hidden)), rows), kThreads, 0,
                 Start::overlapping, a, s.n, s.g);
}

}  // namespace

Status hyper_add(const Launch& l, const HyperReadArgs& a, int row0, int n_rows) {
    if (a.add_y.empty()) return {};
    const auto first = static_cast<size_t>(row0), n = static_cast<size_t>(n_rows);
    const auto streams = static_cast<size_t>(a.streams), hidden = static_cast<size_t>(a.hidden);
    return hyper_write(
        l, {a.h.sub(first * streams * hidden, n * streams * hidden),
            a.add_y.sub(first * hidden, n * hidden), a.add_inj.sub(first * streams, n * streams),
            n_rows, a.streams, a.hidden});
}

HyperScratch hyper_scratch(std::byte* base, int rows, int streams, int hidden, int rank) {
    const size_t wide =
        static_cast<size_t>(rows) * static_cast<size_t>(round_up8(streams * hidden));
    Carve carve(base);
    HyperScratch s;
    s.n = carve.take<float>(wide);
    s.g = carve.take<float>(wide);
    s.mid = carve.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(rank));
    s.act = carve.take<__half>(static_cast<size_t>(rows) * static_cast<size_t>(round_up8(rank)));
    s.inv = carve.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(streams));
    s.sums = carve.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(streams) *
                               static_cast<size_t>(rank + streams));
    s.used = carve.used();
    return s;
}

size_t stream_scratch_bytes(const DeviceInfo& info, const OpsLimits& l) {
    return hyper_scratch(nullptr, l.rows, l.streams, l.hidden, l.rank).used +
           linear_scratch_bytes(info, l);
}

Status hyper_read(const Launch& l, const HyperReadArgs& a) {
    if (a.rows == 0) return {};
    const HyperScratch s = hyper_scratch(l.scratch, a.rows, a.streams, a.hidden, a.rank);
    const RowRun all = {0, a.rows, a.rows <= kDecodeRows ? RowKind::decode : RowKind::prefill};
    const bool decode = hyper_decode_serves(l, a), prefill = hyper_prefill_serves(a);
    for (int i = 0; i < std::max(a.runs.n, 1); ++i) {
        const RowRun& run = a.runs.n > 0 ? a.runs.data[i] : all;
        if (run.kind == RowKind::decode && decode)
            TERRACE_TRY(hyper_decode(l, a, s, run.row0, run.n_rows));
        else if (run.kind == RowKind::prefill && prefill)
            TERRACE_TRY(hyper_prefill(l, a, s, run.row0, run.n_rows));
        else
            TERRACE_TRY(any_shape(l, a, s, run));
    }
    return {};
}

}  // namespace terrace::cuda
