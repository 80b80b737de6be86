// N-gram injection on the GPU. Two launches, because a row's convolution needs b of earlier rows:
// gates and b of all rows; then convolution, sum and the states' move.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/recurrent/ple.h"
#include "cuda/recurrent/recurrent_ops.h"
#include "cuda/recurrent/seq_tiles.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGateThreads = 640;  // 4 columns each: a stream of 2560
constexpr int kHeld = 9;           // rows of the state that a thread moves in registers
// Rows per block of the convolution; at least the history, so that only a sequence's first tile
// reads the state, and may move it on when it has done so.
constexpr int kTileRows = 16;

template <int N>
struct alignas(4 * N) Floats {
    float v[N];
};

// Computes gate[r][s] = sigmoid(signed root of <K_s, Q_s> / sqrt(H)) and
// b[r][s][:] = norm of gate * value. Grid: (streams, rows).
// Traffic: key, h, value once from memory, value again from the cache; b.
// Numerics: norms are factored out of the dot product; the mean square of gate * value is
// gate^2 times that of value.
template <int N>
__global__ void __launch_bounds__(kGateThreads)
    gate_kernel(PleInjectArgs a, float* b, float* gates) {
    __shared__ float part[32];
    pdl_launch();
    pdl_wait();
    const int s = static_cast<int>(blockIdx.x), hidden = a.hidden;
    const auto n = static_cast<float>(hidden);
    for (int r = static_cast<int>(blockIdx.y); r < a.step.n_rows;
         r += static_cast<int>(gridDim.y)) {
        const int64_t at = (int64_t{r} * a.streams + s) * hidden;
        const float* key = a.key.device_pointer() + at;
        const float* h = a.h.device_pointer() + at;
        const float* value = a.value.device_pointer() + int64_t{r} * hidden;
        float kk = 0.0f, hh = 0.0f, kh = 0.0f, vv = 0.0f;
        for (int i = static_cast<int>(threadIdx.x) * N; i < hidden; i += kGateThreads * N) {
            const auto k4 = *reinterpret_cast<const Floats<N>*>(key + i);
            const auto h4 = *reinterpret_cast<const Floats<N>*>(h + i);
            const auto v4 = *reinterpret_cast<const Floats<N>*>(value + i);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const int w = s * hidden + i + j;
                kk = fmaf(k4.v[j], k4.v[j], kk);
                hh = fmaf(h4.v[j], h4.v[j], hh);
                vv = fmaf(v4.v[j], v4.v[j], vv);
                kh = fmaf(k4.v[j] * (1.0f + load_plain(a.norm_key, w)),
                          h4.v[j] * (1.0f + load_plain(a.norm_query, w)), kh);
            }
        }
        kk = block_sum(kk, part);
        hh = block_sum(hh, part);
        vv = block_sum(vv, part);
        kh = block_sum(kh, part);
        const float dot = kh * rsqrtf(kk / n + a.eps) * rsqrtf(hh / n + a.eps) * rsqrtf(n);
        const float root = copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot);
        const float gate = sigmoidf(dot == 0.0f ? 0.0f : root);
        const float scale = gate * rsqrtf(gate * gate * (vv / n) + a.eps);
        if (threadIdx.x == 0) gates[int64_t{r} * a.streams + s] = gate;
        for (int i = static_cast<int>(threadIdx.x) * N; i < hidden; i += kGateThreads * N) {
            auto v4 = *reinterpret_cast<const Floats<N>*>(value + i);
#pragma unroll
            for (int j = 0; j < N; ++j)
                v4.v[j] *= scale * (1.0f + load_plain(a.norm_conv, s * hidden + i + j));
            *reinterpret_cast<Floats<N>*>(b + at + i) = v4;
        }
    }
}

// Computes h += gate * value + silu(convolution of b) and the new states. Grid: (channels / 256,
// tiles of rows), a thread per channel.
// Traffic: h in and out, b once from memory, its earlier rows from the cache.
__global__ void __launch_bounds__(kThreads)
    conv_kernel(PleInjectArgs a, const float* b, const float* gates, int tile_rows) {
    pdl_launch();
    pdl_wait();
    const SeqTile t = find_tile(a.step, Tiled::all, static_cast<int>(blockIdx.y), tile_rows);
    const int wide = a.streams * a.hidden, history = (a.kernel - 1) * a.dilation;
    const int c = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    if (c >= wide) return;
    const int s = c / a.hidden, i = c - s * a.hidden;
    float* past = a.state.device_pointer() + int64_t{t.seq.slot} * history * wide + c;
    const float* own = b + int64_t{t.seq.row0} * wide + c;  // the sequence's rows
    const int done = t.row0 - t.seq.row0;
    // The state to be, on its way together with what the rows need.
    float moved[kHeld];
    const auto later = [&](int k) {  // row of the state when the sequence's rows are done
        const int at = t.seq.n_rows - history + k;
        return *(at < 0 ? past + int64_t{history + at} * wide : own + int64_t{at} * wide);
    };
    if (done == 0)
#pragma unroll
        for (int k = 0; k < kHeld; ++k)
            moved[k] = k < history ? later(k) : 0.0f;
    for (int k = 0; k < t.n_rows; ++k) {
        const int64_t r = t.row0 + k;
        float sum = 0.0f;
#pragma unroll 4
        for (int j = 0; j < a.kernel; ++j) {
            const int at = done + k - history + j * a.dilation;  // negative: in the state
            const float v =
                *(at < 0 ? past + int64_t{history + at} * wide : own + int64_t{at} * wide);
            sum = fmaf(load_plain(a.conv, int64_t{c} * a.kernel + j), v, sum);
        }
        const float gated = gates[r * a.streams + s] * a.value.device_pointer()[r * a.hidden + i];
        float* h = a.h.device_pointer() + r * wide + c;
        *h = *h + gated + siluf(sum);
    }
    if (done > 0) return;
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
        if (k < history) past[int64_t{k} * wide] = moved[k];
    for (int k = kHeld; k < history; ++k)
        past[int64_t{k} * wide] = later(k);
}

}  // namespace

PleScratch ple_scratch(std::byte* base, int rows, int streams, int hidden) {
    const size_t rs = static_cast<size_t>(rows) * static_cast<size_t>(streams);
    Carve carve(base);
    PleScratch s;
    s.b = carve.take<float>(rs * static_cast<size_t>(hidden));
    s.gate = carve.take<float>(rs);
    s.used = carve.used();
    return s;
}

Status ple_inject(const Launch& l, const PleInjectArgs& a) {
    if (a.step.n_rows == 0) return {};
    const PleScratch s = ple_scratch(l.scratch, a.step.n_rows, a.streams, a.hidden);
    const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    const bool four = a.hidden % 4 == 0 && aligned(a.h.device_pointer()) &&
                      aligned(a.key.device_pointer()) && aligned(a.value.device_pointer());
    TERRACE_TRY(start(l, "ple_inject: gates", four ? gate_kernel<4> : gate_kernel<1>,
                      dim3(static_cast<unsigned>(a.streams),
                           static_cast<unsigned>(std::min(a.step.n_rows, 65535))),
                      kGateThreads, 0, Start::overlapping, a, s.b, s.gate));
    const int tile_rows = std::max(kTileRows, (a.kernel - 1) * a.dilation);
    return start(l, "ple_inject: convolution", conv_kernel,
                 dim3(static_cast<unsigned>((a.streams * a.hidden + kThreads - 1) / kThreads),
                      static_cast<unsigned>(count_tiles(a.step, Tiled::all, tile_rows))),
                 kThreads, 0, Start::overlapping, a, s.b, s.gate, tile_rows);
}

}  // namespace terrace::cuda
