// Experts beside their products: where every choice's row lies, plain weights, the weighted sum. All
// sizes that depend on the router's choices stay on the device.
// SPDX-License-Identifier: MIT
#include "cuda/gemm/moe.h"

#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kGroupThreads = 1024;

__device__ __forceinline__ int row_of(const ExpertItems& p, int item) {
    return item < p.rows * p.k ? item / p.k : item - p.rows * p.k;
}

// Computes: slots of all choices, grouped by expert, and the row tiles, experts ascending. The order
// of an expert's rows is that of the atomics: it decides where a row lies, never its bits.
// Grid and block: one block of 1024; a thread keeps its choices in registers.
// Shared memory: one word per expert.
__global__ void __launch_bounds__(kGroupThreads)
    group_items_kernel(const __grid_constant__ ExpertItems p) {
    extern __shared__ int32_t count[];  // [n_experts]: rows, then the first slot
    __shared__ unsigned long long warp_total[32];
    __shared__ unsigned long long carry;
    constexpr int kEach = kMaxChoices / kGroupThreads;
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int n_items = p.rows * p.k, n_experts = p.n_experts;
    for (int e = tid; e < n_experts; e += kGroupThreads)
        count[e] = 0;
    if (tid == 0) carry = p.with_shared ? (p.rows + kSlotAlign - 1) / kSlotAlign * kSlotAlign : 0;
    __syncthreads();
    pdl_wait();
    int expert[kEach], rank[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int q = i * kGroupThreads + tid;
        expert[i] = q < n_items ? p.ids[q] : -1;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        rank[i] = expert[i] >= 0 ? atomicAdd(&count[expert[i]], 1) : 0;
    __syncthreads();

    // Exclusive sums: slots in the low half, tiles in the high half.
    for (int base = 0; base < n_experts; base += kGroupThreads) {
        const int e = base + tid;
        const int n = e < n_experts ? count[e] : 0;
        const int n_tiles = (n + kExpertTileRows - 1) / kExpertTileRows;
        const int n_slots = (n + kSlotAlign - 1) / kSlotAlign * kSlotAlign;
        const unsigned long long own =
            (static_cast<unsigned long long>(n_tiles) << 32) | static_cast<unsigned>(n_slots);
        unsigned long long sum = own;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const unsigned long long below = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum += below;
        }
        if (lane == 31) warp_total[warp] = sum;
        __syncthreads();
        unsigned long long before = carry;
        for (int w = 0; w < warp; ++w)
            before += warp_total[w];
        sum += before;
        __syncthreads();
        if (tid == kGroupThreads - 1) carry = sum;
        if (e < n_experts) {
            const auto slot = static_cast<int>((sum - own) & 0xffffffffu);
            const auto tile = static_cast<int>((sum - own) >> 32);
            count[e] = slot;
            for (int i = 0; i < n_tiles; ++i)
                p.tiles->tiles[tile + i] = {e, slot + i * kExpertTileRows,
                                            min(kExpertTileRows, n - i * kExpertTileRows)};
        }
        __syncthreads();
    }
    if (tid == 0) {
        p.tiles->n_tiles = static_cast<int>(carry >> 32);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (expert[i] < 0) continue;
        p.slot_of_item[i * kGroupThreads + tid] = count[expert[i]] + rank[i];
    }
}

// Computes: moe.h, plain_experts. Grid: items; a warp per output.
// Numerics: f32, lanes take every 32nd input, then a butterfly.
__global__ void __launch_bounds__(256)
    plain_experts_kernel(const __grid_constant__ PlainExperts p,
                         const __grid_constant__ ExpertItems items) {
    pdl_wait();
    const int item = static_cast<int>(blockIdx.x);
    const int64_t slot = slot_of(items, item);
    const ExpertWeights* e = item < items.rows * items.k ? p.experts + items.ids[item] : &p.shared;
    const LinearWeight& w = p.projection == 0 ? e->gate : p.projection == 1 ? e->up : e->down;
    if (w.kind != LinearKind::plain) return;
    const int64_t row = p.projection == 2 ? slot : row_of(items, item);
    const float* x = p.x + row * p.x_stride;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    for (int o = static_cast<int>(threadIdx.x) >> 5; o < w.out;
         o += static_cast<int>(blockDim.x) >> 5) {
        float sum = 0.0f;
        for (int i = lane; i < w.in; i += 32)
            sum = fmaf(x[i], load_plain(w.plain, static_cast<int64_t>(o) * w.in + i), sum);
        sum = warp_sum(sum);
        if (lane == 0) p.y[slot * p.y_stride + o] = sum;
    }
}

// Computes: moe.h, sum_experts. Grid: a block per row. Traffic: reads k + 1 rows, writes one.
// Numerics: f32, choices ascending, the shared expert last.
__global__ void __launch_bounds__(256)
    sum_experts_kernel(const __grid_constant__ ExpertSum p,
                       const __grid_constant__ ExpertItems items) {
    __shared__ float sums[32];
    pdl_wait();
    const int64_t r = blockIdx.x;
    const int k = items.k;
    const int32_t* slots = items.slot_of_item + r * k;
    const float* weights = p.weights + r * k;
    float gate = 0.0f;
    if (items.with_shared) {
        if (p.gate_dot) {
            gate = p.gate_dot[r];
        } else {
            for (int i = static_cast<int>(threadIdx.x); i < p.hidden; i += 256)
                gate = fmaf(p.x[r * p.hidden + i], load_plain(p.gate, i), gate);
            gate = block_sum(gate, sums);
        }
        gate = sigmoidf(gate);
    }
    float* y = p.y + r * p.hidden;
    if (p.block_unscale) {
        const int blocks = (p.hidden + 127) / 128;
        const auto* e = static_cast<const __half*>(p.e);
        for (int i = 4 * static_cast<int>(threadIdx.x); i < p.hidden; i += 4 * 256) {
            float4 sum = {};
            const auto add = [&](float w, int64_t slot) {
                const uint2 bits = *reinterpret_cast<const uint2*>(e + slot * p.hidden + i);
                const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
                const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
                w *= p.block_unscale[slot * blocks + i / 128];
                sum.x = fmaf(w, a.x, sum.x), sum.y = fmaf(w, a.y, sum.y);
                sum.z = fmaf(w, b.x, sum.z), sum.w = fmaf(w, b.y, sum.w);
            };
#pragma unroll 10
            for (int j = 0; j < k; ++j)
                add(weights[j], slots[j]);
            if (items.with_shared) add(gate, r);
            *reinterpret_cast<float4*>(y + i) = sum;
        }
        return;
    }
    const auto* e = static_cast<const float*>(p.e);
    for (int i = static_cast<int>(threadIdx.x); i < p.hidden; i += 256) {
        float sum = 0.0f;
        for (int j = 0; j < k; ++j)
            sum = fmaf(weights[j], e[static_cast<int64_t>(slots[j]) * p.hidden + i], sum);
        y[i] = items.with_shared ? fmaf(gate, e[r * p.hidden + i], sum) : sum;
    }
}

}  // namespace

Status group_items(const Launch& l, const ExpertItems& p) {
    return start(l, "group_items", group_items_kernel, 1, kGroupThreads,
                 static_cast<size_t>(p.n_experts) * sizeof(int32_t), Start::overlapping, p);
}

Status plain_experts(const Launch& l, const PlainExperts& p) {
    return start(l, "plain_experts", plain_experts_kernel,
                 static_cast<unsigned>(item_count(*p.items)), 256, 0, Start::overlapping, p,
                 *p.items);
}

Status sum_experts(const Launch& l, const ExpertSum& p) {
    return start(l, "sum_experts", sum_experts_kernel, static_cast<unsigned>(p.items->rows), 256, 0,
                 Start::overlapping, p, *p.items);
}

}  // namespace terrace::cuda
