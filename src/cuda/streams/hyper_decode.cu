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
constexpr int kOuts = 10;      // outputs of a cluster: 33 clusters for 320 + 4 outputs
constexpr int kBatch = 16;     // rows between two exchanges
constexpr int kColumns = 20;   // of x per block of the second launch: 128 blocks for 2560
constexpr int kParts = 4;      // pieces of the rank that threads sum side by side
constexpr int kGates = kColumns * kStreams;

struct Args {
    const float* h;  // [rows][4][hidden]
    PlainTensor norm;
    const uint16_t *down, *inject, *up;
    float *x, *inj;  // inj null at the final mixer
    float* mid;      // [rows][rank], activated
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

// Computes mid = silu(down(n) / 4), inj = 2 sigmoid(inject(n) / 4), inv. The norm is factored out:
// the dot products of h * (1 + w) with the weights, stream by stream, are scaled by the stream's inv.
// Grid: clusters of 4 blocks for 10 outputs, a block per stream; 8 columns of the stream per thread,
// whose weights stay in registers for all rows.
// Shared memory: sums per warp of a batch of rows; the cluster's sums in its first block.
// Traffic: weights once; h once per cluster, out of the L2 cache.
// Numerics: fp32; columns of a thread in order, then lanes as a butterfly, warps and streams in order.
// One row alone takes its own instance: its weights need not stay, and with half of the registers
// the second launch fits beside it on a multiprocessor.
template <DType T, int kRows>
__global__ void __cluster_dims__(kStreams, 1, 1) __launch_bounds__(kThreads, kRows == 1 ? 2 : 1)
    down_kernel(Args a) {
    __shared__ float sums[kRows][kThreads / 32][16];
    __shared__ float scaled[kStreams][kRows * kOuts];
    const int s = cluster_rank(), first = static_cast<int>(blockIdx.x) / kStreams * kOuts;
    const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t & 31;
    const int warps = static_cast<int>(blockDim.x) / 32, wide = kStreams * a.hidden;
    const int column = 8 * t;
    const bool active = column < a.hidden;
    const int outs = min(kOuts, a.rank + (a.inj ? kStreams : 0) - first);

    uint4 packed[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) {
        const int out = first + o;
        const uint16_t* row =
            out < a.rank ? a.down + int64_t{out} * wide : a.inject + int64_t{out - a.rank} * wide;
        packed[o] = o < outs && active ? load_weight(row + s * a.hidden + column) : uint4{};
    }
    const uint4 packed_norm =
        active ? load_weight(static_cast<const uint16_t*>(a.norm.data) + s * a.hidden + column)
               : uint4{};
    cluster_arrive();
    pdl_launch();
    pdl_wait();

    const auto load_row = [&](int r, float* v) {
        const auto* p =
            reinterpret_cast<const float4*>(a.h + int64_t{r} * wide + s * a.hidden + column);
        const float4 lo = active ? p[0] : float4{}, hi = active ? p[1] : float4{};
        v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
        v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
    };
    float h[8], w[kOuts][8], scale[8];
    load_row(0, h);
    widen8<T>(packed_norm, scale);
#pragma unroll
    for (int i = 0; i < 8; ++i)
        scale[i] += 1.0f;
#pragma unroll
    for (int o = 0; o < kOuts; ++o)
        widen8<T>(packed[o], w[o]);
    cluster_wait();  // the first block has started

    const int rows = kRows == 1 ? 1 : a.rows;
    for (int base = 0; base < rows; base += kRows) {
        const int n = min(kRows, rows - base);
        for (int r = 0; r < n; ++r) {
            float v[16] = {};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float x = h[i] * scale[i];
#pragma unroll
                for (int o = 0; o < kOuts; ++o)
                    v[o] = fmaf(x, w[o][i], v[o]);
                v[kOuts] = fmaf(h[i], h[i], v[kOuts]);
            }
            if (base + r + 1 < rows) load_row(base + r + 1, h);
            const float sum = warp_sums16(v);
            if ((lane & 1) == 0) sums[r][warp][lane / 2] = sum;
        }
        __syncthreads();
        for (int i = t; i < n * kOuts; i += static_cast<int>(blockDim.x)) {
            const int r = i / kOuts, o = i - r * kOuts;
            float sum = 0.0f, square = 0.0f;
            for (int j = 0; j < warps; ++j) {
                sum += sums[r][j][o];
                square += sums[r][j][kOuts];
            }
            const float inv = rsqrtf(square / static_cast<float>(a.hidden) + a.eps);
            if (first == 0 && o == 0) a.inv[(base + r) * kStreams + s] = inv;
            store_remote(&scaled[s][i], 0, sum * inv);
        }
        cluster_arrive();
        cluster_wait();
        if (s == 0)
            for (int i = t; i < n * kOuts; i += static_cast<int>(blockDim.x)) {
                const int r = i / kOuts, out = first + i - r * kOuts;
                const float sum = (((scaled[0][i] + scaled[1][i]) + scaled[2][i]) + scaled[3][i]) *
                                  (1.0f / kStreams);
                if (out < a.rank)
                    a.mid[int64_t{base + r} * a.rank + out] = siluf(sum);
                else if (out - a.rank < kStreams && a.inj)
                    a.inj[(base + r) * kStreams + out - a.rank] = 2.0f * sigmoidf(sum);
            }
        if (base + kRows < rows) {  // before the first block's sums are written again
            cluster_arrive();
            cluster_wait();
        }
    }
}

// Shared memory of the second launch.
struct UpPlan {
    int row_bytes;  // of a row of weights; 16 more than its data, so that 8 rows meet all banks
    size_t mid, part, barrier, bytes;
};
__host__ __device__ inline UpPlan up_plan(int rank, int batch) {
    UpPlan p{};
    p.row_bytes = 2 * rank + 16;
    p.mid = static_cast<size_t>(kGates * p.row_bytes);
    p.part = p.mid + sizeof(float) * static_cast<size_t>(batch * rank);
    p.barrier = p.part + sizeof(float) * static_cast<size_t>(batch * kParts * kGates);
    p.bytes = p.barrier + sizeof(uint64_t);
    return p;
}

// Computes x = mean over the streams of sigmoid(up(mid)) * n, with n recomputed from h and inv.
// Grid: a block per 20 columns of all streams; a thread per gate and quarter of the rank.
// Shared memory: UpPlan. Traffic: weights once; mid and inv in every block, out of the L2 cache.
// Numerics: fp32; a quarter of the rank in order, then the quarters, then pairs of streams.
template <DType T, int kRows>
__global__ void __launch_bounds__(kThreads, 1) up_kernel(Args a) {
    extern __shared__ __align__(128) unsigned char smem[];
    const UpPlan plan = up_plan(a.rank, kRows);
    auto* mid = reinterpret_cast<float*>(smem + plan.mid);
    auto* part = reinterpret_cast<float*>(smem + plan.part);  // [rows][4][gates]
    auto* barrier = reinterpret_cast<uint64_t*>(smem + plan.barrier);
    const int t = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * kColumns;
    const int columns = min(kColumns, a.hidden - first);
    if (t < 32) {
        if (t == 0) {
            barrier_init(barrier, 1);
            barrier_expect(barrier, static_cast<uint32_t>(columns * kStreams * 2 * a.rank));
        }
        __syncwarp();
        for (int g = t; g < columns * kStreams; g += 32)
            bulk_copy(smem + g * plan.row_bytes,
                      a.up + (int64_t{g % kStreams} * a.hidden + first + g / kStreams) * a.rank,
                      static_cast<uint32_t>(2 * a.rank), barrier);
    }
    pdl_launch();
    pdl_wait();
    const int gate = t % kGates, quarter = t / kGates, ranks = a.rank / kParts;
    constexpr int kTasks = (kRows * kGates + kThreads - 1) / kThreads;
    for (int base = 0; base < a.rows; base += kRows) {
        const int n = min(kRows, a.rows - base);
        const auto* from = reinterpret_cast<const float4*>(a.mid + int64_t{base} * a.rank);
        for (int i = t; i < n * a.rank / 4; i += kThreads)
            reinterpret_cast<float4*>(mid)[i] = from[i];
        float normed[kTasks];  // of the gates that this thread finishes
#pragma unroll
        for (int k = 0; k < kTasks; ++k) {
            const int task = t + k * kThreads, r = task / kGates, g = task % kGates;
            const int s = g % kStreams, column = first + g / kStreams;
            normed[k] = 0.0f;
            if (r < n && column < a.hidden)
                normed[k] = a.h[(int64_t{base + r} * kStreams + s) * a.hidden + column] *
                            a.inv[(base + r) * kStreams + s] *
                            (1.0f + load_plain(a.norm.data, T, s * a.hidden + column));
        }
        __syncthreads();
        if (base == 0) barrier_wait(barrier, 0);
        float sum[kRows] = {};
        const unsigned char* weights = smem + gate * plan.row_bytes + 2 * quarter * ranks;
        const float* m = mid + quarter * ranks;
        for (int k = 0; k < ranks; k += 8) {
            float w[8];
            widen8<T>(*reinterpret_cast<const uint4*>(weights + 2 * k), w);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float4 lo = *reinterpret_cast<const float4*>(m + r * a.rank + k);
                const float4 hi = *reinterpret_cast<const float4*>(m + r * a.rank + k + 4);
                sum[r] = fmaf(lo.x, w[0], sum[r]);
                sum[r] = fmaf(lo.y, w[1], sum[r]);
                sum[r] = fmaf(lo.z, w[2], sum[r]);
                sum[r] = fmaf(lo.w, w[3], sum[r]);
                sum[r] = fmaf(hi.x, w[4], sum[r]);
                sum[r] = fmaf(hi.y, w[5], sum[r]);
                sum[r] = fmaf(hi.z, w[6], sum[r]);
                sum[r] = fmaf(hi.w, w[7], sum[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r)
            part[(r * kParts + quarter) * kGates + gate] = sum[r];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kTasks; ++k) {
            const int task = t + k * kThreads, r = task / kGates, g = task % kGates;
            float v = 0.0f;
            if (r < n) {
                const float* p = part + r * kParts * kGates + g;
                v = sigmoidf(((p[0] + p[kGates]) + p[2 * kGates]) + p[3 * kGates]) * normed[k];
            }
            v += __shfl_xor_sync(0xffffffffu, v, 1);
            v += __shfl_xor_sync(0xffffffffu, v, 2);
            const int column = first + g / kStreams;
            if (r < n && g % kStreams == 0 && column < a.hidden)
                a.x[int64_t{base + r} * a.hidden + column] = v * (1.0f / kStreams);
        }
    }
}

template <DType T>
Status launch(const Launch& l, const Args& a) {
    const int outs = a.rank + (a.inj ? kStreams : 0);
    const int threads = (a.hidden / 8 + 31) / 32 * 32;
    TERRACE_TRY(start(l, "hyper_read: down",
                      a.rows == 1 ? down_kernel<T, 1> : down_kernel<T, kBatch>,
                      static_cast<unsigned>((outs + kOuts - 1) / kOuts * kStreams),
                      static_cast<unsigned>(threads), 0, Start::overlapping, a));
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
    d.mid = s.mid;
    d.inv = s.inv;
    d.rows = n_rows;
    d.hidden = a.hidden;
    d.rank = a.rank;
    d.eps = a.eps;
    return w.down.plain.dtype == DType::f16 ? launch<DType::f16>(l, d) : launch<DType::bf16>(l, d);
}

}  // namespace terrace::cuda
