// Input transforms of the tiled products: rows times suh, Hadamard transform, one power of two per row,
// f16. Eight lanes share a block of 128 elements, so that of its seven stages three cross lanes.
// SPDX-License-Identifier: MIT
#include "cuda/gemm/prep.h"

#include <algorithm>

#include "cuda/gemm/tile.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kMaxThreads = 512;

// The largest magnitude of a row goes to [2^kTop, 2^(kTop + 1)): 2^7 below the largest f16, and 22
// binades above the smallest normal one.
constexpr int kTop = 8;

__device__ __forceinline__ float block_max(float v, float* smem) {
    v = warp_max(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) smem[threadIdx.x >> 5] = v;
    __syncthreads();
    const int warps = static_cast<int>(blockDim.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    return warp_max(lane < warps ? smem[lane] : 0.0f);
}

// Elements i .. i+7 of a row of n f32 values, zeros behind its end.
__device__ __forceinline__ void load8(const float* row, int i, int n, float* v) {
    if (i + 8 <= n && (reinterpret_cast<uintptr_t>(row) & 15) == 0) {
        const float4 a = *reinterpret_cast<const float4*>(row + i);
        const float4 b = *reinterpret_cast<const float4*>(row + i + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
        v[j] = i + j < n ? row[i + j] : 0.0f;
}

__device__ __forceinline__ uint4 round8(const float* v, float scale) {
    uint4 out;
    uint32_t* words = &out.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const __half2 h = __floats2half2_rn(v[2 * j] * scale, v[2 * j + 1] * scale);
        words[j] = *reinterpret_cast<const uint32_t*>(&h);
    }
    return out;
}

// Eight lanes share 128 elements: lane l has 8l .. 8l+7 and the same 64 on. Element of v[0]:
__device__ __forceinline__ int first_element(int thread) {
    return (thread >> 3) * 128 + 8 * (thread & 7);
}
__device__ __forceinline__ void multiply8(float* v, const f16* by) {
    const uint4 bits = *reinterpret_cast<const uint4*>(by);
    const uint32_t* words = &bits.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 s = __half22float2(*reinterpret_cast<const __half2*>(words + j));
        v[2 * j] *= s.x;
        v[2 * j + 1] *= s.y;
    }
}
// Numerics: f32 butterflies 1 2 4 64 8 16 32, not normalised (`unscale` has 1/128 for this and the
// output transform).
__device__ __forceinline__ void hadamard16(float (&v)[16], int lane) {
#pragma unroll
    for (int m = 1; m < 16; m *= 2)
#pragma unroll
        for (int j = 0; j < 16; ++j)
            if (!(j & m)) {
                const float a = v[j], b = v[j + m];
                v[j] = a + b;
                v[j + m] = a - b;
            }
#pragma unroll
    for (int m = 1; m < 8; m *= 2)
#pragma unroll
        for (float& e : v)
            e = butterfly_lane(e, lane, m);
}
__device__ __forceinline__ float max16(const float (&v)[16]) {
    float largest = 0.0f;
#pragma unroll
    for (const float e : v)
        largest = fmaxf(largest, fabsf(e));
    return largest;
}
// Elements i.., of a slot, to the tiled activations.
__device__ __forceinline__ void store16(const float (&v)[16], float scale, __half* to,
                                        int64_t slots, int64_t slot, int i) {
    const int chunk = ((i >> 3) & 7) ^ static_cast<int>(slot & 7);
#pragma unroll
    for (int h = 0; h < 2; ++h)
        *reinterpret_cast<uint4*>(to + (((i >> 6) + h) * slots + slot) * 64 + chunk * 8) =
            round8(v + 8 * h, scale);
}

// One row by one block, of any length. read8(i, v) gives elements i .. i+7.
template <class Read8>
__device__ __forceinline__ void encode_row(const Read8& read8, int in, const f16* suh, __half* to,
                                           int64_t slots, int64_t slot, float* unscale) {
    __shared__ float maxima[32];
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int stride = static_cast<int>(blockDim.x) * 16;
    const int at = first_element(static_cast<int>(threadIdx.x));
    float v[16];
    const auto transform = [&](int i) {
#pragma unroll
        for (float& e : v)
            e = 0.0f;
        if (i < in) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                read8(i + 64 * h, v + 8 * h);
                multiply8(v + 8 * h, suh + i + 64 * h);
            }
        }
        hadamard16(v, lane);
    };
    float largest = 0.0f;
    for (int base = 0; base < in; base += stride) {
        transform(base + at);
        largest = fmaxf(largest, max16(v));
    }
    const int e = scale_exponent(block_max(largest, maxima), kTop);
    for (int base = 0; base < in; base += stride) {
        if (in > stride) transform(base + at);  // a longer row than the block's registers hold
        if (base + at < in) store16(v, power_of_two(e), to, slots, slot, base + at);
    }
    if (threadIdx.x == 0) unscale[slot] = power_of_two(-e - 7);
}

int threads_for(int in) {
    return std::min(kMaxThreads, (in / 16 + 31) / 32 * 32);
}

// Computes: prep.h, prep_rows. Grid: rows x sides, a block per row.
// Traffic: reads the row once per side, writes half of that.
__global__ void __launch_bounds__(kMaxThreads)
    prep_rows_kernel(const __grid_constant__ PrepRows p) {
    pdl_wait();
    const PrepSide& side = p.side[blockIdx.y];
    const int64_t r = blockIdx.x;
    const float* x = p.x + r * p.x_stride;
    encode_row([&](int i, float* v) { load8(x, i, p.in, v); }, side.in_padded, side.suh, side.to,
               p.slots, r, side.unscale);
}

// Computes: prep.h, prep_plain. A block per row.
__global__ void __launch_bounds__(256)
    prep_plain_kernel(const float* x, int64_t x_stride, int in, __half* to, int64_t to_stride,
                      float* unscale) {
    __shared__ float maxima[32];
    pdl_wait();
    const int64_t r = blockIdx.x;
    x += r * x_stride;
    to += r * to_stride;
    float largest = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < in; i += static_cast<int>(blockDim.x))
        largest = fmaxf(largest, fabsf(x[i]));
    largest = block_max(largest, maxima);
    const int e = scale_exponent(largest, kTop);
    const float scale = power_of_two(e);
    for (int i = 8 * static_cast<int>(threadIdx.x); i < to_stride;
         i += 8 * static_cast<int>(blockDim.x)) {
        float v[8];
        load8(x, i, in, v);
        *reinterpret_cast<uint4*>(to + i) = round8(v, scale);
    }
    if (threadIdx.x == 0) unscale[r] = power_of_two(-e);
}

constexpr int kItemsPerBlock = 16;  // of a row in prep_experts_in

// Computes: the gate's and the up projection's activations of a row, for all its experts.
// Grid and block: rows x groups of choices; 16 elements a thread. The row stays in registers.
// Traffic: the row once, two scale vectors and two rows of f16 per choice.
__global__ void __launch_bounds__(kMaxThreads)
    prep_experts_in_kernel(const __grid_constant__ PrepExperts p,
                           const __grid_constant__ ExpertItems items, int per_block) {
    __shared__ const f16* suh[kItemsPerBlock][2];
    __shared__ int slots[kItemsPerBlock];
    __shared__ float maxima[2][2][32];
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int warps = static_cast<int>(blockDim.x) >> 5;
    const int r = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * per_block;
    const int n = min(per_block, items.k + (items.with_shared ? 1 : 0) - first);
    pdl_wait();
    if (tid < 2 * n) {
        const int j = first + (tid >> 1), q = r * items.k + j;
        const ExpertWeights* e = j == items.k ? &p.shared : p.experts + items.ids[q];
        const LinearWeight& w = tid & 1 ? e->up : e->gate;
        suh[tid >> 1][tid & 1] = w.kind == LinearKind::exl3 ? w.exl3.suh : nullptr;
        if ((tid & 1) == 0) slots[tid >> 1] = j == items.k ? r : items.slot_of_item[q];
    }
    const float* row = p.x + static_cast<int64_t>(r) * p.hidden;
    const int in = (p.hidden + 127) / 128 * 128;
    const auto read8 = [&](int i, float* v) { load8(row, i, p.hidden, v); };
    __syncthreads();
    if (in > 16 * static_cast<int>(blockDim.x)) {
        for (int j = 0; j < n; ++j) {
            if (suh[j][0])
                encode_row(read8, in, suh[j][0], p.gate_x, p.slots, slots[j], p.gate_unscale);
            if (suh[j][1])
                encode_row(read8, in, suh[j][1], p.up_x, p.slots, slots[j], p.up_unscale);
        }
        return;
    }
    const int i = first_element(tid);
    float x[16];
    read8(i, x);
    read8(i + 64, x + 8);
    for (int j = 0; j < n; ++j) {
        float v[2][16];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const bool there = suh[j][s] && i < in;
#pragma unroll
            for (int u = 0; u < 16; ++u)
                v[s][u] = there ? x[u] : 0.0f;
            if (there) {
                multiply8(v[s], suh[j][s] + i);
                multiply8(v[s] + 8, suh[j][s] + i + 64);
            }
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            hadamard16(v[s], lane);
            const float largest = warp_max(max16(v[s]));
            if (lane == 0) maxima[j & 1][s][warp] = largest;
        }
        __syncthreads();  // the other half of `maxima` is free again: all have passed this point
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            if (!suh[j][s]) continue;
            const int e =
                scale_exponent(warp_max(lane < warps ? maxima[j & 1][s][lane] : 0.0f), kTop);
            if (i < in)
                store16(v[s], power_of_two(e), s == 0 ? p.gate_x : p.up_x, p.slots, slots[j], i);
            if (tid == 0) (s == 0 ? p.gate_unscale : p.up_unscale)[slots[j]] = power_of_two(-e - 7);
        }
    }
}

// Computes: the down projection's activations, `per_block` items by one block, 16 elements a thread.
__global__ void __launch_bounds__(kMaxThreads)
    prep_experts_down_kernel(const __grid_constant__ PrepExperts p,
                             const __grid_constant__ ExpertItems items, int per_block,
                             int threads_per_slot) {
    __shared__ int maxima[kMaxThreads / 8];  // bits of f32 >= 0, which are ordered as integers
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
    const int local = tid / threads_per_slot;
    const int i = first_element(tid - local * threads_per_slot);
    const int item = static_cast<int>(blockIdx.x) * per_block + local;
    if (tid < kMaxThreads / 8) maxima[tid] = 0;
    pdl_wait();
    const ExpertWeights* e = nullptr;
    if (local < per_block && item < item_count(items))
        e = item < items.rows * items.k ? p.experts + items.ids[item] : &p.shared;
    const int slot = e ? slot_of(items, item) : 0;
    float* g = p.g + static_cast<int64_t>(slot) * p.width;
    const float* u = p.u + static_cast<int64_t>(slot) * p.width;
    const bool gated = e && e != &p.shared && p.fused && e->gate.kind == LinearKind::exl3;
    const bool encode = e && e->down.kind == LinearKind::exl3;
    const int n = e ? e->down.in : 0;
    const auto read8 = [&](int at, float* v) {
        load8(g, at, n, v);
        if (gated) return;
        float b[8];
        load8(u, at, n, b);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            v[j] = siluf(v[j]) * b[j];
    };
    if (e && !encode && !gated)
        for (int j = tid - local * threads_per_slot; j < n; j += min(threads_per_slot, kMaxThreads))
            g[j] = siluf(g[j]) * u[j];
    if (threads_per_slot > kMaxThreads) {  // one slot, one block
        if (encode)
            encode_row(read8, e->down.exl3.in, e->down.exl3.suh, p.down_x, p.slots, slot,
                       p.down_unscale);
        return;
    }
    float v[16] = {};
    const bool there = encode && i < e->down.exl3.in;
    if (there) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            read8(i + 64 * h, v + 8 * h);
            multiply8(v + 8 * h, e->down.exl3.suh + i + 64 * h);
        }
    }
    hadamard16(v, lane);
    float largest = max16(v);
#pragma unroll
    for (int m = 1; m < 8; m *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, m));
    __syncthreads();
    if (there && (lane & 7) == 0) atomicMax(&maxima[local], __float_as_int(largest));
    __syncthreads();
    if (!there) return;
    const int scale = scale_exponent(__int_as_float(maxima[local]), kTop);
    store16(v, power_of_two(scale), p.down_x, p.slots, slot, i);
    if (i == 0) p.down_unscale[slot] = power_of_two(-scale - 7);
}

}  // namespace

Status prep_rows(const Launch& l, const PrepRows& a) {
    int widest = 0;
    for (int i = 0; i < a.n_sides; ++i)
        widest = std::max(widest, a.side[i].in_padded);
    return start(l, "prep_rows", prep_rows_kernel,
                 dim3(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.n_sides)),
                 static_cast<unsigned>(threads_for(widest)), 0, Start::overlapping, a);
}

Status prep_plain(const Launch& l, const float* x, int64_t x_stride, int rows, int in, __half* to,
                  int64_t to_stride, float* unscale) {
    return start(l, "prep_plain", prep_plain_kernel, static_cast<unsigned>(rows), 256, 0,
                 Start::overlapping, x, x_stride, in, to, to_stride, unscale);
}

Status prep_experts_in(const Launch& l, const PrepExperts& a) {
    const int choices = a.items->k + (a.items->with_shared ? 1 : 0);
    // Few rows: more blocks of fewer choices.
    const int groups = std::clamp(8 * l.info->sms / a.items->rows, 1, choices);
    const int per_block = std::min((choices + groups - 1) / groups, kItemsPerBlock);
    return start(l, "prep_experts_in", prep_experts_in_kernel,
                 dim3(static_cast<unsigned>(a.items->rows),
                      static_cast<unsigned>((choices + per_block - 1) / per_block)),
                 static_cast<unsigned>(threads_for((a.hidden + 127) / 128 * 128)), 0,
                 Start::overlapping, a, *a.items, per_block);
}

Status prep_experts_down(const Launch& l, const PrepExperts& a) {
    const int each = (a.width + 127) / 128 * 8;
    const int per_block = std::max(1, 320 / each);
    return start(l, "prep_experts_down", prep_experts_down_kernel,
                 static_cast<unsigned>((item_count(*a.items) + per_block - 1) / per_block),
                 static_cast<unsigned>(std::min(kMaxThreads, (per_block * each + 31) / 32 * 32)), 0,
                 Start::overlapping, a, *a.items, per_block, each);
}

}  // namespace terrace::cuda
