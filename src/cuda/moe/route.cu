// The router's choice on the GPU: the k largest logits of each row and their softmax weights. Entry
// point in moe_ops.h; reads logits, writes ids and weights, keeps nothing.
// SPDX-License-Identifier: MIT
#include "cuda/moe/moe_ops.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kWarps = 4;

// Order of floats as unsigned numbers; 0 is kept for "taken", and NaNs are the least of all others,
// so that ids are always valid.
__device__ __forceinline__ uint32_t sort_key(float v) {
    if (isnan(v)) return 1;
    const uint32_t bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float key_value(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// A lane's keys, of experts lane, lane + 32, ...: in registers up to 512 experts, else in shared
// memory.
template <int PER_LANE>
struct Keys {
    uint32_t key[PER_LANE];
    __device__ __forceinline__ Keys(const float* logits, int experts, int lane, uint32_t*) {
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            key[i] = lane + 32 * i < experts ? sort_key(logits[lane + 32 * i]) : 0;
    }
    __device__ __forceinline__ void take(int id, int lane) {
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            if (lane + 32 * i == id) key[i] = 0;
    }
    __device__ __forceinline__ void best(int lane, int, uint32_t& most, int& at) const {
        most = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            if (key[i] > most) most = key[i], at = lane + 32 * i;
    }
};
template <>
struct Keys<0> {
    uint32_t* key;
    __device__ __forceinline__ Keys(const float* logits, int experts, int lane, uint32_t* memory)
        : key(memory) {
        for (int e = lane; e < experts; e += 32)
            key[e] = sort_key(logits[e]);
    }
    __device__ __forceinline__ void take(int id, int) { key[id] = 0; }
    __device__ __forceinline__ void best(int lane, int experts, uint32_t& most, int& at) const {
        most = 0;
        for (int e = lane; e < experts; e += 32)
            if (key[e] > most) most = key[e], at = e;
    }
};

// Computes: the k largest logits of a row, ties to the lower expert, and their softmax weights.
// Grid and block: rows / 4; four warps, one row each.
// Shared memory: [4][experts] keys beyond 512 experts.
// Traffic: logits once.
// Numerics: f32; sums lane by lane, then a butterfly.
template <int PER_LANE>
__global__ void __launch_bounds__(32 * kWarps)
    route_kernel(const float* logits, int32_t* ids, float* weights, int rows, int experts, int k,
                 Renormalise renormalise) {
    extern __shared__ uint32_t all_keys[];
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
    pdl_launch();
    pdl_wait();
    if (row >= rows) return;
    logits += int64_t{row} * experts;
    ids += int64_t{row} * k;
    weights += int64_t{row} * k;

    Keys<PER_LANE> keys(logits, experts, lane, all_keys + warp * experts);
    uint32_t best;
    int at = 0;
    keys.best(lane, experts, best, at);
    float top = 0, chosen = 0;
    for (int first = 0; first < k; first += 32) {  // lane j keeps choice first + j
        uint32_t my_key = 0;
        int my_id = 0;
        const int n = min(32, k - first);
        for (int j = 0; j < n; ++j) {
            const uint32_t most = __reduce_max_sync(0xffffffffu, best);
            const int id = __reduce_min_sync(0xffffffffu, best == most ? at : experts);
            if (j == lane) my_key = most, my_id = id;
            if (best == most && at == id) {  // the owner looks for its next best
                keys.take(id, lane);
                keys.best(lane, experts, best, at);
            }
        }
        const float value = key_value(my_key);
        if (first == 0) top = __shfl_sync(0xffffffffu, value, 0);
        if (lane < n) {
            const float e = expf(value - top);
            chosen += e;
            ids[first + lane] = my_id;
            weights[first + lane] = e;
        }
    }
    float sum = 0;
    if (renormalise == Renormalise::yes)
        sum = chosen;
    else
        for (int e = lane; e < experts; e += 32)
            sum += expf(logits[e] - top);
    sum = warp_sum(sum);
    for (int j = lane; j < k; j += 32)
        weights[j] /= sum;
}

}  // namespace

Status route(const Launch& launch, const RouteArgs& a) {
    const bool few = a.experts <= 512;
    return start(launch, "route", few ? route_kernel<16> : route_kernel<0>,
                 dim3((a.rows + kWarps - 1) / kWarps), dim3(32 * kWarps),
                 few ? 0 : sizeof(uint32_t) * kWarps * static_cast<size_t>(a.experts),
                 Start::overlapping, a.logits.device_pointer(), a.ids.device_pointer(),
                 a.weights.device_pointer(), a.rows, a.experts, a.k, a.renormalise);
}

}  // namespace terrace::cuda
