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

// Computes: the k largest logits of a row, ties to the lower expert, and their softmax weights.
// Grid and block: rows / 4; four warps, one row each.
// Shared memory: [4][experts] keys.
// Traffic: logits once.
// Numerics: f32; sums over chosen experts in descending order, over all experts lane by lane, then a
// butterfly.
__global__ void __launch_bounds__(32 * kWarps)
    route_kernel(const float* logits, int32_t* ids, float* weights, int rows, int experts, int k,
                 Renormalise renormalise) {
    extern __shared__ uint32_t all_keys[];
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
    uint32_t* keys = all_keys + warp * experts;
    pdl_launch();
    pdl_wait();
    if (row >= rows) return;
    logits += int64_t{row} * experts;
    ids += int64_t{row} * k;
    weights += int64_t{row} * k;

    // The lane's best, and where: lanes own experts lane, lane + 32, ...
    uint32_t best = 0;
    int at = 0;
    for (int e = lane; e < experts; e += 32) {
        const uint32_t key = sort_key(logits[e]);
        keys[e] = key;
        if (key > best) best = key, at = e;
    }
    float top = 0, chosen = 0, mine = 0;  // mine: exp of the choice with this lane's number
    for (int j = 0; j < k; ++j) {
        const uint32_t most = __reduce_max_sync(0xffffffffu, best);
        const int id = __reduce_min_sync(0xffffffffu, best == most ? at : experts);
        const float value = key_value(most);
        if (j == 0) top = value;
        const float e = expf(value - top);
        chosen += e;
        if (j % 32 == lane) mine = e;
        if (lane == 0) ids[j] = id;
        if (j % 32 == 31 || j == k - 1)
            if (lane <= j % 32) weights[j / 32 * 32 + lane] = mine;
        if (at == id && best == most) {  // the owner looks for its next best
            keys[id] = 0;
            best = 0;
            for (int i = lane; i < experts; i += 32)
                if (keys[i] > best) best = keys[i], at = i;
        }
    }
    float sum = chosen;
    if (renormalise == Renormalise::no) {
        sum = 0;
        for (int e = lane; e < experts; e += 32)
            sum += expf(logits[e] - top);
        sum = warp_sum(sum);
    }
    for (int j = lane; j < k; j += 32)
        weights[j] /= sum;
}

}  // namespace

Status route(const Launch& launch, const RouteArgs& a) {
    return start(launch, "route", route_kernel, dim3((a.rows + kWarps - 1) / kWarps),
                 dim3(32 * kWarps), sizeof(uint32_t) * kWarps * static_cast<size_t>(a.experts),
                 Start::overlapping, a.logits.device_pointer(), a.ids.device_pointer(),
                 a.weights.device_pointer(), a.rows, a.experts, a.k, a.renormalise);
}

}  // namespace terrace::cuda
