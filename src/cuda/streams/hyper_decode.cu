// hyper_read for decoded rows of the real model's kind: four streams, f16 or bf16 weights. Two
// launches that each stream half of the weights once, starting before the rows are ready.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/streams/hyper_read.h"
#include "cuda/util/async.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kStreams = 4;
constexpr int kThreads = 320;  // 8 columns each: a stream of 2560
constexpr int kWarps = kThreads / 32;
constexpr int kOuts = 10;     // outputs of a block: 33 groups for 320 + 4 of them
constexpr int kBatch = 16;    // rows between two sums across warps
constexpr int kColumns = 20;  // of x per block of the second launch: 128 blocks for 2560
constexpr int kParts = 8;     // pieces of the rank that threads sum side by side
constexpr int kGates = kColumns * kStreams;
constexpr int kPairs = kGates / 2;  // of gates that a thread sums together
static_assert(kPairs * kParts == kThreads && 4 * kGates == kThreads);

struct Args {
    const float* h;  // [rows][4][hidden]
    PlainTensor norm;
    const uint16_t *down, *inject, *up;
    float *x, *inj;  // inj null at the final mixer
    float* sums;     // [rows][4][rank + 4]
    float* inv;      // [rows][4], 1 / rms of the streams
    int rows, hidden, rank;
    float eps;
};

template <DType T>
__device__ __forceinline__ void widen8(const uint4& w, float* f) {
    const uint32_t part[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (T == DType::bf16) {
            f[2 * i] = __uint_as_float(part[i] << 16);
            f[2 * i + 1] = __uint_as_float(part[i] & 0xffff0000u);
        } else {
            const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&part[i]));
            f[2 * i] = two.x;
            f[2 * i + 1] = two.y;
        }
    }
}

// Sums 16 values over a warp in a fixed order; lanes 2i and 2i + 1 get the sum of value i. Lanes 2N
// apart keep one half of their values each.
template <int N>
__device__ __forceinline__ void fold(float (&v)[16]) {
    const bool upper = threadIdx.x & (2 * N);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const float keep = upper ? v[i + N] : v[i], send = upper ? v[i] : v[i + N];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, send, 2 * N);
    }
}
__device__ __forceinline__ float warp_sums16(float (&v)[16]) {
    fold<8>(v);
    fold<4>(v);
    fold<2>(v);
    fold<1>(v);
    return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 1);
}

// Computes sums[r][s][o] = <n_s, w_s[o]>: the parts of down(n) and inject(n) that each stream
// gives, and inv. The norm is factored out: dot products of h * (1 + w) are scaled by the stream's
// inv.
// Grid: (streams, groups of 10 outputs), 132 blocks at the real size; 8 columns of the stream per
// thread, whose weights stay in registers for all rows.
// Shared memory: sums per warp of a batch of rows.
// Traffic: weights once; h once per group, out of the L2 cache.
// Numerics: fp32; a thread's columns in order, lanes as a butterfly, warps in order.
// One row alone takes its own instance, with the weights in shared memory: kernels that hold few
// registers are beside each other on a multiprocessor, the later ones bringing their weights.
template <DType T, int kRows>
__global__ void __launch_bounds__(kThreads, kRows == 1 ? 3 : 1) down_kernel(Args a) {
    constexpr int kGroup = kRows == 1 ? 1 : 4;  // rows in flight: their loads are what takes long
    __shared__ float part[kRows][kWarps][16];
    const int s = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * kOuts;
    const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t & 31;
    const int wide = kStreams * a.hidden, column = 8 * t;
    const bool active = column < a.hidden;
    const int n_outs = a.rank + (a.inj ? kStreams : 0), outs = min(kOuts, n_outs - first);

    const auto weights = [&](int o) {
        const int out = first + o;
        const uint16_t* row =
            out < a.rank ? a.down + int64_t{out} * wide : a.inject + int64_t{out - a.rank} * wide;
        return row + s * a.hidden;
    };
    extern __shared__ __align__(128) unsigned char smem[];  // one row: weights [10][hidden]
    uint4 packed[kRows == 1 ? 1 : kOuts];
    if constexpr (kRows == 1) {
#pragma unroll
        for (int o = 0; o < kOuts; ++o)
            if (o < outs && active) copy16(smem + 2 * (o * a.hidden + column), weights(o) + column);
    } else {
#pragma unroll
        for (int o = 0; o < kOuts; ++o)
            packed[o] = o < outs && active ? load_weight(weights(o) + column) : uint4{};
    }
    const uint4 packed_norm =
        active ? load_weight(static_cast<const uint16_t*>(a.norm.data) + s * a.hidden + column)
               : uint4{};
    pdl_launch();
    pdl_wait();

    const int rows = kRows == 1 ? 1 : a.rows;
    const auto load_group = [&](int r0, float(&v)[kGroup][8]) {
#pragma unroll
        for (int q = 0; q < kGroup; ++q) {
            // No condition on the loads; rows that are not there are not looked at.
            const int64_t at = int64_t{min(r0 + q, rows - 1)} * wide + s * a.hidden;
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
    if constexpr (kRows == 1) copies_wait();  // a thread reads what it has copied

    for (int base = 0; base < rows; base += kRows) {
        const int n = min(kRows, rows - base);
        for (int r = 0; r < n; r += kGroup) {
            float x[kGroup][8], v[kGroup][16] = {};
#pragma unroll
            for (int q = 0; q < kGroup; ++q)
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    v[q][kOuts] = fmaf(next[q][i], next[q][i], v[q][kOuts]);
                    x[q][i] = next[q][i] * scale[i];
                }
            if (kRows > 1) load_group(base + r + kGroup, next);
#pragma unroll
            for (int o = 0; o < kOuts; ++o) {
                float w[8];
                if constexpr (kRows == 1)
                    widen8<T>(
                        active ? *reinterpret_cast<const uint4*>(smem + 2 * (o * a.hidden + column))
                               : uint4{},
                        w);
                else
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
            const float inv = rsqrtf(square / static_cast<float>(a.hidden) + a.eps);
            const int64_t rs = int64_t{base + r} * kStreams + s;
            if (first == 0 && o == 0) a.inv[rs] = inv;
            if (o < outs) a.sums[rs * (a.rank + kStreams) + first + o] = sum * inv;
        }
        if (base + kRows < rows) __syncthreads();
    }
}

// Shared memory of the second launch.
struct UpPlan {
    int row_bytes;  // of a row of weights; 16 more than its data, so that 8 rows meet all banks
    size_t mid, part, bytes;
};
__host__ __device__ inline UpPlan up_plan(int rank, int batch) {
    UpPlan p{};
    p.row_bytes = 2 * rank + 16;
    p.mid = static_cast<size_t>(kGates * p.row_bytes);
    p.part = p.mid + sizeof(float) * static_cast<size_t>(batch * rank);
    p.bytes = p.part + sizeof(float) * static_cast<size_t>(batch * kParts * kGates);
    return p;
}

// Computes mid = silu(down(n) / 4), inj = 2 sigmoid(inject(n) / 4) and x = mean over the streams of
// sigmoid(up(mid)) * n, with n recomputed from h and inv.
// Grid: a block per 20 columns of all streams; a thread per pair of gates and eighth of the rank.
// Shared memory: UpPlan. Traffic: weights once; sums and inv in every block, out of the L2 cache.
// Numerics: fp32; an eighth of the rank in two chains, then the eighths, then pairs of streams.
template <DType T, int kRows>
__global__ void __launch_bounds__(kThreads, kRows == 1 ? 3 : 1) up_kernel(Args a) {
    extern __shared__ __align__(128) unsigned char smem[];
    const UpPlan plan = up_plan(a.rank, kRows);
    auto* mid = reinterpret_cast<float*>(smem + plan.mid);
    auto* part = reinterpret_cast<float*>(smem + plan.part);  // [rows][4][gates]
    const int t = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * kColumns;
    const int columns = min(kColumns, a.hidden - first);
    const int chunks = a.rank / 8;
#pragma unroll 5
    for (int i = t; i < columns * kStreams * chunks; i += kThreads) {
        const int g = i / chunks, c = i - g * chunks;
        const int64_t row = int64_t{g % kStreams} * a.hidden + first + g / kStreams;
        copy16(smem + g * plan.row_bytes + 16 * c, a.up + row * a.rank + 8 * c);
    }
    const int pair = t % kPairs, piece = t / kPairs, ranks = a.rank / kParts;
    // A thread finishes one gate of every fourth row.
    const int gate = t % kGates, quarter = t / kGates;
    const int gate_stream = gate % kStreams, column = first + gate / kStreams;
    const int at = gate_stream * a.hidden + min(column, a.hidden - 1);
    const float scale = 1.0f + load_plain(a.norm.data, T, at);
    constexpr int kTasks = (kRows + 3) / 4;
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
        const int stride = a.rank + kStreams;
        const auto over_streams = [&](int r, int o) {  // a quarter of the sum over the streams
            const float* p = a.sums + int64_t{base + r} * kStreams * stride + o;
            return (((p[0] + p[stride]) + p[2 * stride]) + p[3 * stride]) * (1.0f / kStreams);
        };
        if constexpr (kRows == 1) {
            for (int i = t; i < a.rank; i += kThreads)
                mid[i] = siluf(over_streams(0, i));
        } else {
            const int quads = a.rank / 4;
#pragma unroll 2
            for (int i = t; i < n * quads; i += kThreads) {
                const int r = i / quads;
                const auto* p = reinterpret_cast<const float4*>(
                    a.sums + int64_t{base + r} * kStreams * stride + (i - r * quads) * 4);
                const float4 s0 = p[0], s1 = p[stride / 4], s2 = p[stride / 2],
                             s3 = p[3 * stride / 4];
                const auto one = [](float x0, float x1, float x2, float x3) {
                    return siluf((((x0 + x1) + x2) + x3) * (1.0f / kStreams));
                };
                reinterpret_cast<float4*>(mid)[i] =
                    make_float4(one(s0.x, s1.x, s2.x, s3.x), one(s0.y, s1.y, s2.y, s3.y),
                                one(s0.z, s1.z, s2.z, s3.z), one(s0.w, s1.w, s2.w, s3.w));
            }
        }
        if (base == 0) copies_wait();
        __syncthreads();
        // Rows of inj are spread over the blocks.
        const int inj_row =
            static_cast<int>(blockIdx.x) + t / kStreams * static_cast<int>(gridDim.x);
        if (a.inj && inj_row < n)
            a.inj[(base + inj_row) * kStreams + t % kStreams] =
                2.0f * sigmoidf(over_streams(inj_row, a.rank + t % kStreams));
        // Two gates, each in two chains: what is read of mid serves both.
        float sum[kRows][2][2] = {};
        const unsigned char* weights = smem + pair * plan.row_bytes + 2 * piece * ranks;
        const float* m = mid + piece * ranks;
        for (int k = 0; k < ranks; k += 8) {
            float w[2][8];
#pragma unroll
            for (int g = 0; g < 2; ++g)
                widen8<T>(
                    *reinterpret_cast<const uint4*>(weights + g * kPairs * plan.row_bytes + 2 * k),
                    w[g]);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float4 lo = *reinterpret_cast<const float4*>(m + r * a.rank + k);
                const float4 hi = *reinterpret_cast<const float4*>(m + r * a.rank + k + 4);
#pragma unroll
                for (int g = 0; g < 2; ++g) {
                    float(&c)[2] = sum[r][g];
                    c[0] = fmaf(lo.x, w[g][0], c[0]), c[1] = fmaf(hi.x, w[g][4], c[1]);
                    c[0] = fmaf(lo.y, w[g][1], c[0]), c[1] = fmaf(hi.y, w[g][5], c[1]);
                    c[0] = fmaf(lo.z, w[g][2], c[0]), c[1] = fmaf(hi.z, w[g][6], c[1]);
                    c[0] = fmaf(lo.w, w[g][3], c[0]), c[1] = fmaf(hi.w, w[g][7], c[1]);
                }
            }
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
            const float* p = part + min(r, kRows - 1) * kParts * kGates + gate;
            float g = p[0];
#pragma unroll
            for (int i = 1; i < kParts; ++i)
                g += p[i * kGates];
            float v = sigmoidf(g) * (h[k] * inv[k] * scale);
            v += __shfl_xor_sync(0xffffffffu, v, 1);
            v += __shfl_xor_sync(0xffffffffu, v, 2);
            if (r < n && gate_stream == 0 && column < a.hidden)
                a.x[int64_t{base + r} * a.hidden + column] = v * (1.0f / kStreams);
        }
    }
}

template <DType T>
Status launch(const Launch& l, const Args& a) {
    const int outs = a.rank + (a.inj ? kStreams : 0);
    const dim3 grid(kStreams, static_cast<unsigned>((outs + kOuts - 1) / kOuts));
    TERRACE_TRY(start(l, "hyper_read: down",
                      a.rows == 1 ? down_kernel<T, 1> : down_kernel<T, kBatch>, grid, kThreads,
                      a.rows == 1 ? static_cast<size_t>(kOuts * 2 * a.hidden) : 0,
                      Start::overlapping, a));
    const auto blocks = static_cast<unsigned>((a.hidden + kColumns - 1) / kColumns);
    const auto up = [&](auto* kernel, int rows) {
        return start(l, "hyper_read: up", kernel, blocks, kThreads, up_plan(a.rank, rows).bytes,
                     Start::overlapping, a);
    };
    if (a.rows == 1) return up(up_kernel<T, 1>, 1);
    if (a.rows <= 4) return up(up_kernel<T, 4>, 4);
    return up(up_kernel<T, 16>, 16);
}

}  // namespace

bool hyper_decode_serves(const Launch& l, const HyperReadArgs& a) {
    const HyperWeights& w = *a.weights;
    const DType t = w.down.plain.dtype;
    const bool same =
        w.up.plain.dtype == t && w.norm.dtype == t &&
        (a.inj.empty() || (w.inject.kind == LinearKind::plain && w.inject.plain.dtype == t));
    return l.info->cc >= 90 && w.down.kind == LinearKind::plain && w.up.kind == LinearKind::plain &&
           same && (t == DType::f16 || t == DType::bf16) && a.streams == kStreams &&
           a.hidden % 8 == 0 && a.hidden <= 8 * kThreads && a.rank % (8 * kParts) == 0 &&
           reinterpret_cast<uintptr_t>(a.h.device_pointer()) % 16 == 0 &&
           up_plan(a.rank, 16).bytes <= l.info->smem_per_block;
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
    d.sums = s.sums;
    d.inv = s.inv;
    d.rows = n_rows;
    d.hidden = a.hidden;
    d.rank = a.rank;
    d.eps = a.eps;
    return w.down.plain.dtype == DType::f16 ? launch<DType::f16>(l, d) : launch<DType::bf16>(l, d);
}

}  // namespace terrace::cuda
