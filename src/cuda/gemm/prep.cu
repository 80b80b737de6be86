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

// Exponent of the scale; its negative undoes it. Zero and non-finite rows stay as they are.
__device__ __forceinline__ int scale_exponent(float largest) {
    const int e = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    if (largest == 0.0f || e == 128) return 0;
    return kTop - max(e, -100);
}
__device__ __forceinline__ float power_of_two(int e) {
    return __uint_as_float(static_cast<uint32_t>(e + 127) << 23);
}

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

// One row by one block. Eight lanes share 128 elements: lane l has 8l .. 8l+7 and the same 64 on.
// read8(i, v) gives elements i .. i+7. Numerics: f32 butterflies 1 2 4 64 8 16 32, not normalised
// (`unscale` has 1/128 for this and the output transform), one rounding to f16.
template <class Read8>
__device__ __forceinline__ void encode_row(const Read8& read8, int in, const f16* suh, __half* to,
                                           int64_t slots, int64_t slot, float* unscale) {
    __shared__ float maxima[32];
    const int lane = static_cast<int>(threadIdx.x) & 31, l = lane & 7;
    const int stride = static_cast<int>(blockDim.x) * 16;
    const int at = (static_cast<int>(threadIdx.x) >> 3) * 128 + 8 * l;
    float v[16];
    const auto transform = [&](int base) {
        const int i = base + at;
        if (i < in) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                read8(i + 64 * h, v + 8 * h);
                const uint4 bits = *reinterpret_cast<const uint4*>(suh + i + 64 * h);
                const uint32_t* words = &bits.x;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float2 s = __half22float2(*reinterpret_cast<const __half2*>(words + j));
                    v[8 * h + 2 * j] *= s.x;
                    v[8 * h + 2 * j + 1] *= s.y;
                }
            }
        } else {
#pragma unroll
            for (float& e : v)
                e = 0.0f;
        }
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
    };
    float largest = 0.0f;
    for (int base = 0; base < in; base += stride) {
        transform(base);
#pragma unroll
        for (const float e : v)
            largest = fmaxf(largest, fabsf(e));
    }
    largest = block_max(largest, maxima);
    const int e = scale_exponent(largest);
    const float scale = power_of_two(e);
    for (int base = 0; base < in; base += stride) {
        if (in > stride) transform(base);  // a longer row than the block's registers hold
        const int i = base + at;
        if (i >= in) continue;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int64_t row = ((i >> 6) + h) * slots + slot;
            const int chunk = l ^ static_cast<int>(slot & 7);
            *reinterpret_cast<uint4*>(to + row * 64 + chunk * 8) = round8(v + 8 * h, scale);
        }
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
    const int e = scale_exponent(largest);
    const float scale = power_of_two(e);
    for (int i = 8 * static_cast<int>(threadIdx.x); i < to_stride;
         i += 8 * static_cast<int>(blockDim.x)) {
        float v[8];
        load8(x, i, in, v);
        *reinterpret_cast<uint4*>(to + i) = round8(v, scale);
    }
    if (threadIdx.x == 0) unscale[r] = power_of_two(-e);
}

__device__ __forceinline__ const ExpertWeights* expert_of(const PrepExperts& p, int item) {
    const int row = item / p.items_per_row, j = item - row * p.items_per_row;
    return j == p.k ? &p.shared : p.experts + p.ids[static_cast<int64_t>(row) * p.k + j];
}

// Computes: the gate's and the up projection's activations of a slot. Grid: slots x 2.
__global__ void __launch_bounds__(kMaxThreads)
    prep_experts_in_kernel(const __grid_constant__ PrepExperts p) {
    pdl_wait();
    const int slot = static_cast<int>(blockIdx.x);
    if (slot >= p.tiles->n_slots) return;
    const int item = p.item_of_slot[slot];
    if (item < 0) return;
    const ExpertWeights* e = expert_of(p, item);
    const LinearWeight& w = blockIdx.y == 0 ? e->gate : e->up;
    if (w.kind != LinearKind::exl3) return;
    const float* x = p.x + static_cast<int64_t>(item / p.items_per_row) * p.hidden;
    encode_row([&](int i, float* v) { load8(x, i, p.hidden, v); }, w.exl3.in, w.exl3.suh,
               blockIdx.y == 0 ? p.gate_x : p.up_x, p.slots, slot,
               blockIdx.y == 0 ? p.gate_unscale : p.up_unscale);
}

// Computes: the down projection's activations of a slot, silu(g) * u. Grid: slots.
__global__ void __launch_bounds__(kMaxThreads)
    prep_experts_down_kernel(const __grid_constant__ PrepExperts p) {
    pdl_wait();
    const int slot = static_cast<int>(blockIdx.x);
    if (slot >= p.tiles->n_slots) return;
    const int item = p.item_of_slot[slot];
    if (item < 0) return;
    const LinearWeight& w = expert_of(p, item)->down;
    float* g = p.g + static_cast<int64_t>(slot) * p.width;
    const float* u = p.u + static_cast<int64_t>(slot) * p.width;
    if (w.kind != LinearKind::exl3) {
        for (int i = static_cast<int>(threadIdx.x); i < w.in; i += static_cast<int>(blockDim.x))
            g[i] = siluf(g[i]) * u[i];
        return;
    }
    encode_row(
        [&](int i, float* v) {
            float b[8];
            load8(g, i, w.in, v);
            load8(u, i, w.in, b);
#pragma unroll
            for (int j = 0; j < 8; ++j)
                v[j] = siluf(v[j]) * b[j];
        },
        w.exl3.in, w.exl3.suh, p.down_x, p.slots, slot, p.down_unscale);
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

Status prep_experts_in(const Launch& l, const PrepExperts& a, int slots) {
    return start(
        l, "prep_experts_in", prep_experts_in_kernel, dim3(static_cast<unsigned>(slots), 2),
        static_cast<unsigned>(threads_for((a.hidden + 127) / 128 * 128)), 0, Start::overlapping, a);
}

Status prep_experts_down(const Launch& l, const PrepExperts& a, int slots) {
    return start(l, "prep_experts_down", prep_experts_down_kernel, static_cast<unsigned>(slots),
                 static_cast<unsigned>(threads_for((a.width + 127) / 128 * 128)), 0,
                 Start::overlapping, a);
}

}  // namespace terrace::cuda
