// hyper_read for many rows of plain weights: three products on the tensor cores with elementwise
// kernels between them.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/gemm/gemm.h"
#include "cuda/streams/hyper_read.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 256;

struct Rows {
    float* h;  // [rows][S][H]
    PlainTensor norm;
    __half *n, *act;
    float *g, *mid, *inv, *x, *inj;  // inj null at the final mixer
    const float *add_y, *add_inj;    // null: nothing to add
    int rows, streams, hidden, rank;
    float eps;
};

// N neighbouring elements: one access where rows and addresses allow it.
template <int N>
struct alignas(4 * N) Floats {
    float v[N];
};
template <int N>
struct alignas(2 * N) Halves {
    __half v[N];
};

// Computes h += add_inj * add_y, n = h * inv * (1 + w) as f16 and inv = rsqrt(mean(h_s^2) + eps).
// Grid: (streams, rows). Traffic: h once from memory and once from the cache; n; h once more and y
// where something is added.
template <int N>
__global__ void __launch_bounds__(kThreads) norm_kernel(Rows a) {
    __shared__ float part[32];
    pdl_launch();
    pdl_wait();
    const int s = static_cast<int>(blockIdx.x), wide = a.streams * a.hidden;
    for (int r = static_cast<int>(blockIdx.y); r < a.rows; r += static_cast<int>(gridDim.y)) {
        float* h = a.h + int64_t{r} * wide + s * a.hidden;
        __half* n = a.n + int64_t{r} * round_up8(wide) + s * a.hidden;
        const float* add = a.add_y ? a.add_y + int64_t{r} * a.hidden : nullptr;
        const float add_inj = add ? a.add_inj[int64_t{r} * a.streams + s] : 0.0f;
        float sum = 0.0f;
        for (int i = static_cast<int>(threadIdx.x) * N; i < a.hidden; i += kThreads * N) {
            auto x = *reinterpret_cast<const Floats<N>*>(h + i);
            if (add) {
                const auto y = *reinterpret_cast<const Floats<N>*>(add + i);
#pragma unroll
                for (int j = 0; j < N; ++j)
                    x.v[j] = fmaf(add_inj, y.v[j], x.v[j]);
                *reinterpret_cast<Floats<N>*>(h + i) = x;
            }
#pragma unroll
            for (int j = 0; j < N; ++j)
                sum = fmaf(x.v[j], x.v[j], sum);
        }
        const float inv = rsqrtf(block_sum(sum, part) / static_cast<float>(a.hidden) + a.eps);
        for (int i = static_cast<int>(threadIdx.x) * N; i < a.hidden; i += kThreads * N) {
            const auto x = *reinterpret_cast<const Floats<N>*>(h + i);
            Halves<N> y;
#pragma unroll
            for (int j = 0; j < N; ++j)
                y.v[j] = __float2half_rn(x.v[j] * inv *
                                         (1.0f + load_plain(a.norm, s * a.hidden + i + j)));
            *reinterpret_cast<Halves<N>*>(n + i) = y;
        }
        if (threadIdx.x == 0) a.inv[int64_t{r} * a.streams + s] = inv;
    }
}

// Computes act = silu(mid / S) as f16, and inj = 2 sigmoid(inj / S) in place. A thread per element.
__global__ void __launch_bounds__(kThreads) middle_kernel(Rows a) {
    pdl_launch();
    pdl_wait();
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    const float scale = 1.0f / static_cast<float>(a.streams);
    const int stride = round_up8(a.rank);
    const int64_t r = i / stride;
    const int c = static_cast<int>(i - r * stride);
    if (r < a.rows)
        a.act[i] = __float2half_rn(c < a.rank ? siluf(a.mid[r * a.rank + c] * scale) : 0.0f);
    if (a.inj && i < int64_t{a.rows} * a.streams) a.inj[i] = 2.0f * sigmoidf(a.inj[i] * scale);
}

// Computes x = mean over the streams of sigmoid(g) * h * inv * (1 + w).
// Grid: (pieces of a row, rows). Traffic: g, h, x.
template <int N>
__global__ void __launch_bounds__(kThreads) gate_kernel(Rows a) {
    pdl_launch();
    pdl_wait();
    const int i = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * N;
    if (i >= a.hidden) return;
    for (int r = static_cast<int>(blockIdx.y); r < a.rows; r += static_cast<int>(gridDim.y)) {
        Floats<N> sum = {};
        for (int s = 0; s < a.streams; ++s) {
            const int64_t at = (int64_t{r} * a.streams + s) * a.hidden + i;
            const auto g = *reinterpret_cast<const Floats<N>*>(a.g + at);
            const auto h = *reinterpret_cast<const Floats<N>*>(a.h + at);
            const float inv = a.inv[int64_t{r} * a.streams + s];
#pragma unroll
            for (int j = 0; j < N; ++j)
                sum.v[j] += sigmoidf(g.v[j]) *
                            (h.v[j] * inv * (1.0f + load_plain(a.norm, s * a.hidden + i + j)));
        }
#pragma unroll
        for (int j = 0; j < N; ++j)
            sum.v[j] *= 1.0f / static_cast<float>(a.streams);
        *reinterpret_cast<Floats<N>*>(a.x + int64_t{r} * a.hidden + i) = sum;
    }
}

}  // namespace

bool hyper_prefill_serves(const HyperReadArgs& a) {
    const HyperWeights& w = *a.weights;
    return w.down.kind == LinearKind::plain && w.up.kind == LinearKind::plain &&
           (a.inj.empty() || w.inject.kind == LinearKind::plain);
}

Status hyper_prefill(const Launch& l, const HyperReadArgs& a, const HyperScratch& s, int row0,
                     int n_rows) {
    const HyperWeights& w = *a.weights;
    const int wide = a.streams * a.hidden;
    Rows d{};
    d.h = a.h.device_pointer() + int64_t{row0} * wide;
    d.norm = w.norm;
    d.n = reinterpret_cast<__half*>(s.n);
    d.act = s.act;
    d.g = s.g;
    d.mid = s.mid;
    d.inv = s.inv;
    d.x = a.x.device_pointer() + int64_t{row0} * a.hidden;
    d.inj = a.inj.empty() ? nullptr : a.inj.device_pointer() + int64_t{row0} * a.streams;
    if (!a.add_y.empty()) {
        d.add_y = a.add_y.device_pointer() + int64_t{row0} * a.hidden;
        d.add_inj = a.add_inj.device_pointer() + int64_t{row0} * a.streams;
    }
    d.rows = n_rows;
    d.streams = a.streams;
    d.hidden = a.hidden;
    d.rank = a.rank;
    d.eps = a.eps;
    const bool four = a.hidden % 4 == 0 && reinterpret_cast<uintptr_t>(d.h) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(d.x) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(d.add_y) % 16 == 0;
    const auto rows = static_cast<unsigned>(std::min(n_rows, 65535));
    TERRACE_TRY(start(l, "hyper_read: norm", four ? norm_kernel<4> : norm_kernel<1>,
                      dim3(static_cast<unsigned>(a.streams), rows), kThreads, 0, Start::overlapping,
                      d));
    TERRACE_TRY(
        gemm_plain(l, w.down.plain, wide, a.rank, d.n, round_up8(wide), n_rows, d.mid, a.rank));
    if (d.inj)
        TERRACE_TRY(gemm_plain(l, w.inject.plain, wide, a.streams, d.n, round_up8(wide), n_rows,
                               d.inj, a.streams));
    const int64_t middle = int64_t{n_rows} * std::max(round_up8(a.rank), a.streams);
    TERRACE_TRY(start(l, "hyper_read: middle", middle_kernel,
                      static_cast<unsigned>((middle + kThreads - 1) / kThreads), kThreads, 0,
                      Start::overlapping, d));
    TERRACE_TRY(
        gemm_plain(l, w.up.plain, a.rank, wide, d.act, round_up8(a.rank), n_rows, d.g, wide));
    const int per_block = kThreads * (four ? 4 : 1);
    return start(l, "hyper_read: gate", four ? gate_kernel<4> : gate_kernel<1>,
                 dim3(static_cast<unsigned>((a.hidden + per_block - 1) / per_block), rows),
                 kThreads, 0, Start::overlapping, d);
}

}  // namespace terrace::cuda
