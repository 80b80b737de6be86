// hyper_read for decoded rows of the real model's kind: four streams, f16 or bf16 weights. One row
// alone takes one launch (hyper_one.cu); more take two that each stream half of the weights once,
// starting before the rows are ready.
// SPDX-License-Identifier: MIT
#include "cuda/streams/hyper_decode.cuh"
#include "cuda/streams/stream_ops.h"

namespace terrace::cuda {
namespace {

using namespace hyper;

constexpr int kBatch = 16;  // rows between two sums across warps
constexpr int kGroup = 4;   // rows in flight: their loads are what takes long

// Computes sums[r][s][o] = <n_s, w_s[o]>: the parts of down(n) and inject(n) that each stream
// gives, and inv. The norm is factored out: dot products of h * (1 + w) are scaled by the stream's
// inv.
// Grid: (streams, groups of 10 outputs), 132 blocks at the real size; 8 columns of the stream per
// thread, whose weights stay in registers for all rows.
// Shared memory: sums per warp of a batch of rows.
// Traffic: weights once; h once per group, out of the L2 cache.
// Numerics: fp32; a thread's columns in order, lanes as a butterfly, warps in order.
template <DType T>
__global__ void __launch_bounds__(kThreads, 1) down_kernel(Args a) {
    __shared__ float part[kBatch][kWarps][16];
    const int s = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * kOuts;
    const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t & 31;
    const int wide = kStreams * a.hidden, column = 8 * t;
    const bool active = column < a.hidden;
    const int n_outs = a.rank + (a.inj ? kStreams : 0), outs = min(kOuts, n_outs - first);

    uint4 packed[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o)
        packed[o] = o < outs && active
                        ? load_weight(weights_of(a, first + o) + s * a.hidden + column)
                        : uint4{};
    const uint4 packed_norm =
        active ? load_weight(static_cast<const uint16_t*>(a.norm.data) + s * a.hidden + column)
               : uint4{};
    pdl_launch();
    pdl_wait();

    const auto load_group = [&](int r0, float(&v)[kGroup][8]) {
#pragma unroll
        for (int q = 0; q < kGroup; ++q) {
            // No condition on the loads; rows that are not there are not looked at.
            const int64_t at = int64_t{min(r0 + q, a.rows - 1)} * wide + s * a.hidden;
            const auto* p = reinterpret_cast<const float4*>(a.h + at + min(column, a.hidden - 8));
            float4 lo = p[0], hi = p[1];
            if (!active) lo = hi = float4{};
            v[q][0] = lo.x, v[q][1] = lo.y, v[q][2] = lo.z, v[q][3] = lo.w;
            v[q][4] = hi.x, v[q][5] = hi.y, v[q][6] = hi.z, v[q][7] = hi.w;
        }
    };
    float next[kGroup][8], scale[8];
    load_group(0, next);
    widen8<T>(packed_norm, scale);
#pragma unroll
    for (int i = 0; i < 8; ++i)
        scale[i] += 1.0f;

    for (int base = 0; base < a.rows; base += kBatch) {
        const int n = min(kBatch, a.rows - base);
        for (int r = 0; r < n; r += kGroup) {
            float x[kGroup][8], v[kGroup][16] = {};
#pragma unroll
            for (int q = 0; q < kGroup; ++q)
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    v[q][kOuts] = fmaf(next[q][i], next[q][i], v[q][kOuts]);
                    x[q][i] = next[q][i] * scale[i];
                }
            load_group(base + r + kGroup, next);
#pragma unroll
            for (int o = 0; o < kOuts; ++o) {
                float w[8];
                widen8<T>(packed[o], w);
#pragma unroll
                for (int q = 0; q < kGroup; ++q)
#pragma unroll
                    for (int i = 0; i < 8; ++i)
                        v[q][o] = fmaf(x[q][i], w[i], v[q][o]);
            }
#pragma unroll
            for (int q = 0; q < kGroup; ++q) {
                const float sum = warp_sums16(v[q]);
                if ((lane & 1) == 0) part[r + q][warp][lane / 2] = sum;
            }
        }
        __syncthreads();
        if (t < n * kOuts) {  // at most 160
            const int r = t / kOuts, o = t - r * kOuts;
            float sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int j = 0; j < kWarps; ++j) {
                sum += part[r][j][o];
                square += part[r][j][kOuts];
            }
            const float inv = rsqrtf(fmaf(square, a.per_hidden, a.eps));
            const int64_t rs = int64_t{base + r} * kStreams + s;
            if (first == 0 && o == 0) a.inv[rs] = inv;
            if (o < outs) a.sums[rs * (a.rank + kStreams) + first + o] = sum * inv;
        }
        if (base + kBatch < a.rows) __syncthreads();
    }
}

// Computes mid = silu(down(n) / 4), inj = 2 sigmoid(inject(n) / 4) and x = mean over the streams of
// sigmoid(up(mid)) * n, with n recomputed from h and inv.
// Grid: a block per 20 columns of all streams; a thread per pair of gates and eighth of the rank.
// Shared memory: UpPlan. Traffic: weights once; sums and inv in every block, out of the L2 cache.
// Numerics: fp32; an eighth of the rank in two chains, then the eighths, then pairs of streams.
template <DType T, int kRows>
__global__ void __launch_bounds__(kThreads, 1) up_kernel(Args a) {
    extern __shared__ __align__(128) unsigned char smem[];
    const UpPlan plan = up_plan(a.rank, kRows);
    auto* mid = reinterpret_cast<float*>(smem + plan.mid);
    auto* part = reinterpret_cast<float*>(smem + plan.part);
    const int t = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * kColumns;
    copy_up(a, smem, plan.row_bytes);
    const int pair = t % kPairs, piece = t / kPairs, ranks = a.rank / kParts;
    // A thread finishes one gate of every fourth row.
    const int gate = t % kGates, quarter = t / kGates;
    const int gate_stream = gate % kStreams, column = first + gate / kStreams;
    const int at = gate_stream * a.hidden + min(column, a.hidden - 1);
    const float scale = 1.0f + load_plain(a.norm.data, T, at);
    constexpr int kTasks = kRows / 4;
    pdl_launch();
    pdl_wait();
    for (int base = 0; base < a.rows; base += kRows) {
        const int n = min(kRows, a.rows - base);
        float h[kTasks], inv[kTasks];
#pragma unroll
        for (int k = 0; k < kTasks; ++k) {
            const int64_t r = base + min(quarter + 4 * k, n - 1);
            h[k] = a.h[r * kStreams * a.hidden + at];
            inv[k] = a.inv[r * kStreams + gate_stream];
        }
        const int stride = a.rank + kStreams, quads = a.rank / 4;
#pragma unroll 2
        for (int i = t; i < n * quads; i += kThreads) {
            const int r = i / quads;
            const auto* p = reinterpret_cast<const float4*>(
                a.sums + int64_t{base + r} * kStreams * stride + (i - r * quads) * 4);
            const float4 s0 = p[0], s1 = p[stride / 4], s2 = p[stride / 2], s3 = p[3 * stride / 4];
            reinterpret_cast<float4*>(mid)[i] =
                make_float4(middle(s0.x, s1.x, s2.x, s3.x), middle(s0.y, s1.y, s2.y, s3.y),
                            middle(s0.z, s1.z, s2.z, s3.z), middle(s0.w, s1.w, s2.w, s3.w));
        }
        if (base == 0) cp_async_wait_all();
        __syncthreads();
        // Rows of inj are spread over the blocks.
        const int inj_row =
            static_cast<int>(blockIdx.x) + t / kStreams * static_cast<int>(gridDim.x);
        if (a.inj && inj_row < n) {
            const float* p =
                a.sums + int64_t{base + inj_row} * kStreams * stride + a.rank + t % kStreams;
            a.inj[(base + inj_row) * kStreams + t % kStreams] =
                injection(p[0], p[stride], p[2 * stride], p[3 * stride]);
        }
        float sum[kRows][2][2] = {};
        const unsigned char* weights = smem + pair * plan.row_bytes + 2 * piece * ranks;
        for (int k = 0; k < ranks; k += 8) {
            float w[2][8];
            load_pair<T>(weights, plan.row_bytes, k, w);
#pragma unroll
            for (int r = 0; r < kRows; ++r)
                multiply_pair(mid + r * a.rank + piece * ranks + k, w, sum[r]);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int g = 0; g < 2; ++g)
                part[(r * kParts + piece) * kGates + pair + g * kPairs] =
                    sum[r][g][0] + sum[r][g][1];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kTasks; ++k) {
            const int r = quarter + 4 * k;
            const float x = mean_gated(part + min(r, kRows - 1) * kParts * kGates + gate,
                                       h[k] * inv[k] * scale);
            if (r < n && gate_stream == 0 && column < a.hidden)
                a.x[int64_t{base + r} * a.hidden + column] = x;
        }
        if (base + kRows < a.rows) __syncthreads();
    }
}

template <DType T>
Status two_launches(const Launch& l, const Args& a) {
    const int outs = a.rank + (a.inj ? kStreams : 0);
    const dim3 grid(kStreams, static_cast<unsigned>((outs + kOuts - 1) / kOuts));
    TERRACE_TRY(
        start(l, "hyper_read: down", down_kernel<T>, grid, kThreads, 0, Start::overlapping, a));
    const auto blocks = static_cast<unsigned>((a.hidden + kColumns - 1) / kColumns);
    const auto up = [&](auto* kernel, int rows) {
        return start(l, "hyper_read: up", kernel, blocks, kThreads, up_plan(a.rank, rows).bytes,
                     Start::overlapping, a);
    };
    const bool few = a.rows <= 4 || up_plan(a.rank, 16).bytes > l.info->smem_per_block;
    return few ? up(up_kernel<T, 4>, 4) : up(up_kernel<T, 16>, 16);
}

}  // namespace

bool hyper_decode_serves(const Launch& l, const HyperReadArgs& a) {
    const HyperWeights& w = *a.weights;
    const DType t = w.down.plain.dtype;
    const bool same =
        w.up.plain.dtype == t && w.norm.dtype == t &&
        (a.inj.empty() || (w.inject.kind == LinearKind::plain && w.inject.plain.dtype == t));
    return w.down.kind == LinearKind::plain && w.up.kind == LinearKind::plain && same &&
           (t == DType::f16 || t == DType::bf16) && a.streams == kStreams && a.hidden % 8 == 0 &&
           a.hidden <= 8 * kThreads && a.rank % (8 * kParts) == 0 &&
           reinterpret_cast<uintptr_t>(a.h.device_pointer()) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(a.add_y.device_pointer()) % 16 == 0 &&
           up_plan(a.rank, 4).bytes <= l.info->smem_per_block;
}

Status hyper_decode(const Launch& l, const HyperReadArgs& a, const HyperScratch& s, int row0,
                    int n_rows) {
    const HyperWeights& w = *a.weights;
    Args d{};
    d.h = a.h.device_pointer() + int64_t{row0} * kStreams * a.hidden;
    d.norm = w.norm;
    d.down = static_cast<const uint16_t*>(w.down.plain.data);
    d.up = static_cast<const uint16_t*>(w.up.plain.data);
    d.x = a.x.device_pointer() + int64_t{row0} * a.hidden;
    if (!a.inj.empty()) {
        d.inject = static_cast<const uint16_t*>(w.inject.plain.data);
        d.inj = a.inj.device_pointer() + int64_t{row0} * kStreams;
    }
    if (!a.add_y.empty()) {
        d.add_y = a.add_y.device_pointer() + int64_t{row0} * a.hidden;
        d.add_inj = a.add_inj.device_pointer() + int64_t{row0} * kStreams;
    }
    d.sums = s.sums;
    d.inv = s.inv;
    d.boxes = l.boxes;
    d.rows = n_rows;
    d.hidden = a.hidden;
    d.rank = a.rank;
    d.per_hidden = 1.0f / static_cast<float>(a.hidden);
    d.eps = a.eps;
    if (one_row_serves(l, d)) return one_row(l, d, w.down.plain.dtype);
    TERRACE_TRY(hyper_add(l, a, row0, n_rows));
    return w.down.plain.dtype == DType::f16 ? two_launches<DType::f16>(l, d)
                                            : two_launches<DType::bf16>(l, d);
}

}  // namespace terrace::cuda
