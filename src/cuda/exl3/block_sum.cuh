// Sums of a block's warps over the inputs that they took, and the way from sums to outputs: 128
// columns of up to 16 tokens.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "cuda/exl3/product.cuh"

namespace terrace::cuda {

// What one warp leaves per token and column: hi and lo sums, or the f32 sum.
template <Arithmetic A>
struct WarpSum;
template <>
struct WarpSum<Arithmetic::integer> {
    using Type = int2;
};
template <>
struct WarpSum<Arithmetic::half> {
    using Type = float;
};

// acc of TILES column tiles from `first_tile` on into sums[tokens][kSumPitch] of this warp's k-share.
template <Arithmetic A, int GROUPS, int TILES>
__device__ __forceinline__ void store_sums(const typename Arith<A>::Acc (&acc)[TILES][GROUPS][4],
                                           typename WarpSum<A>::Type* sums, int first_tile,
                                           int tokens, int lane) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            const int column = 16 * (first_tile + t) + (lane >> 2);
            if constexpr (A == Arithmetic::integer) {
                const int token = 4 * g + (lane & 3);
                if (token < tokens) {
                    int2* to = sums + token * kSumPitch + column;
                    to[0] = make_int2(acc[t][g][0], acc[t][g][1]);
                    to[8] = make_int2(acc[t][g][2], acc[t][g][3]);
                }
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int token = 8 * g + 2 * (lane & 3) + (i & 1);
                    if (token < tokens)
                        sums[token * kSumPitch + column + 8 * (i >> 1)] = acc[t][g][i];
                }
            }
        }
}

// Sum over `n` k-shares of one token and column, shares ascending.
template <Arithmetic A>
__device__ __forceinline__ typename Arith<A>::Total total_of(const typename WarpSum<A>::Type* sums,
                                                             int n, int tokens, int token,
                                                             int column) {
    const auto* p = sums + token * kSumPitch + column;
    if constexpr (A == Arithmetic::integer) {
        int hi = 0, lo = 0;
        for (int i = 0; i < n; ++i, p += tokens * kSumPitch)
            hi += p->x, lo += p->y;
        return 256LL * hi + lo;
    } else {
        float sum = 0;
        for (int i = 0; i < n; ++i, p += tokens * kSumPitch)
            sum += *p;
        return sum;
    }
}

// Sums as values: of code values times activations. mul1 values are (887 S - 452608) / 2^17; sums of
// bytes stay integers until the end, so that parts of the inputs may be added in any order.
static_assert(kMul1Scale * 131072.0f == 887.0f && kMul1Offset * 131072.0f == -452608.0f);
__device__ __forceinline__ long long exact_sum(long long total, int sum) {
    return 887 * total - 452608LL * sum;
}
__device__ __forceinline__ float sum_value(long long exact, float scale) {
    return scale * 7.62939453125e-06f * static_cast<float>(exact);
}
__device__ __forceinline__ long long finished_sum(long long total, RowScale row) {
    return exact_sum(total, row.sum);
}
__device__ __forceinline__ float finished_sum(float total, RowScale) {
    return total;
}
__device__ __forceinline__ float sum_value(float total, float scale) {
    return scale * total;
}

}  // namespace terrace::cuda
