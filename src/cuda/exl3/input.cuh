// Input side of an EXL3 product for few rows: x * suh, Hadamard transform, and the row as B operands
// of the matrix instructions.
//
// Two arithmetics. `integer` (mul1): a row is rounded to int16, one scale per row, and cut into x =
// 256 * hi + lo with signed bytes; sums of bytes
// of the product words times hi and lo are exact, so the order of summation is free (EXL3 format
// 2.9, 3.10). `half` (3inst, mcg): a row is scaled by a power of two and rounded to f16.
//
// Planes of a token are 32 bytes per 16 inputs, in the order in which lanes want them (q = lane % 4):
//   integer: uint32 [in/16][8], word q holds bytes x[2q], x[2q+1], x[2q+8], x[2q+9] of the hi plane,
//            word 4 + q those of the lo plane; four tokens are the eight columns of B
//   half:    uint2 [in/16][4], entry q holds f16 pairs (x[2q], x[2q+1]), (x[2q+8], x[2q+9]); eight
//            tokens are the columns of B
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/exl3/hadamard.cuh"
#include "cuda/linear/plan.h"
#include "cuda/util/common.cuh"
#include "exl3/tensor.h"

namespace terrace::cuda {

enum class Arithmetic : uint8_t { integer, half };

constexpr float kInt16Top = 32512.0f;

// The scale follows from the largest Euclidean norm of a row's blocks of 128, which the orthonormal
// transform keeps and no element exceeds: so a block of threads that needs a part of the row transforms
// that part only. Norms exceed the largest element by a factor of 4 (2 bits, 1e-8 of noise) on
// normal data, and the bound on the row's error, relative to its own norm, is the same.
//
// value = scale * sum; sum of the row's int16 (integer only). scale is NaN for a row with a value
// that is not finite.
struct RowScale {
    float scale;
    int32_t sum;
};

__device__ __forceinline__ float f16_value(const f16* p) {
    return __half2float(*reinterpret_cast<const __half*>(p));
}

// A warp's share of a row's input scales: blocks of 128 number warp, warp + warps, ... Loaded before
// the weights' stream starts, for behind it their way from memory is long.
template <int HELD>
struct InputScales {
    uint2 held[HELD];  // four f16 per lane
    __device__ __forceinline__ static uint2 load(const f16* suh, int block, int lane) {
        return __ldg(reinterpret_cast<const uint2*>(suh + 128 * block + 4 * lane));
    }
    __device__ __forceinline__ void hold(const f16* suh, int blocks, int warp, int warps,
                                         int lane) {
#pragma unroll
        for (int u = 0; u < HELD; ++u)
            if (warp + u * warps < blocks) held[u] = load(suh, warp + u * warps, lane);
    }
};

// v[j] = x[at + j] * suh, zero from n on.
__device__ __forceinline__ void scaled_input(const float* x, bool aligned, int n, int at,
                                             float (&v)[4]) {
    if (aligned && at + 3 < n) {
        const float4 four = *reinterpret_cast<const float4*>(x + at);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
            v[j] = at + j < n ? x[at + j] : 0.0f;
    }
}
__device__ __forceinline__ void apply_scales(uint2 scales, float (&v)[4]) {
    const float2 s01 = __half22float2(*reinterpret_cast<const __half2*>(&scales.x));
    const float2 s23 = __half22float2(*reinterpret_cast<const __half2*>(&scales.y));
    v[0] *= s01.x, v[1] *= s01.y, v[2] *= s23.x, v[3] *= s23.y;
}

// Takes all blocks of a row by `warps` warps, this one being number `warp`; stores the transforms of
// blocks [keep_first, keep_last) from `xh` on, `pitch` floats apart. Returns the bits of the largest norm of the warp's
// blocks: a NaN or an infinity is larger than every number.
template <int HELD>
__device__ __forceinline__ uint32_t transform_blocks(const float* x, int n, const f16* suh,
                                                     const InputScales<HELD>& scales, int in,
                                                     int warp, int warps, int keep_first,
                                                     int keep_last, float* xh, int pitch) {
    const int lane = static_cast<int>(threadIdx.x) & 31, blocks = in / 128;
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    uint32_t top = 0;
    for (int b0 = warp; b0 < blocks; b0 += HELD * warps) {
        float v[HELD][4];
#pragma unroll
        for (int u = 0; u < HELD; ++u)
            if (b0 + u * warps < blocks)
                scaled_input(x, aligned, n, 128 * (b0 + u * warps) + 4 * lane, v[u]);
#pragma unroll
        for (int u = 0; u < HELD; ++u) {
            const int b = b0 + u * warps;
            if (b >= blocks) break;
            apply_scales(b0 == warp ? scales.held[u] : scales.load(suh, b, lane), v[u]);
            float norm = v[u][0] * v[u][0];
#pragma unroll
            for (int j = 1; j < 4; ++j)
                norm = fmaf(v[u][j], v[u][j], norm);
            top = max(top, __float_as_uint(sqrtf(warp_sum(norm))));
            if (b >= keep_first && b < keep_last) {
                warp_fwht128(v[u], lane);
                *reinterpret_cast<float4*>(xh + pitch * (b - keep_first) + 4 * lane) =
                    make_float4(v[u][0], v[u][1], v[u][2], v[u][3]);
            }
        }
    }
    return top;
}

// The whole row by the whole block.
__device__ __forceinline__ uint32_t transform_row(const float* x, int n, const f16* suh, int in,
                                                  float* xh) {
    const int warp = static_cast<int>(threadIdx.x) >> 5;
    const int warps = static_cast<int>(blockDim.x) >> 5;
    InputScales<6> scales;
    scales.hold(suh, in / 128, warp, warps, static_cast<int>(threadIdx.x) & 31);
    return transform_blocks(x, n, suh, scales, in, warp, warps, 0, in / 128, xh, 128);
}

// Scale of a row and its inverse. Rows below 1e-30 count as zero: their outputs could not be told
// from rounding noise of anything they are added to.
struct Quantiser {
    float scale;
    float inverse;
};
__device__ __forceinline__ Quantiser row_quantiser(Arithmetic arithmetic, uint32_t top_bits) {
    if (top_bits >= 0x7f800000u) return {__uint_as_float(0x7fc00000u), 0.0f};
    const float top = __uint_as_float(top_bits);
    if (top < 1e-30f) return {0.0f, 0.0f};
    if (arithmetic == Arithmetic::integer) return {top / kInt16Top, kInt16Top / top};
    const int e = static_cast<int>(top_bits >> 23);  // top in [2^(e-127), 2^(e-126)): below 2^14
    return {__uint_as_float(static_cast<uint32_t>(e - 13) << 23),
            __uint_as_float(static_cast<uint32_t>(127 + 127 + 13 - e) << 23)};
}
__device__ __forceinline__ int to_int16(float x, float inverse) {
    return min(max(__float2int_rn(x * inverse), -32512), 32512);
}

// Writes what belongs to inputs 2q, 2q+1, 2q+8, 2q+9 of row tile `tile` into a token's planes; xh16
// are the tile's 16 inputs. Returns the sum of their int16.
template <Arithmetic A>
__device__ __forceinline__ int store_planes(const float* xh16, float inverse, std::byte* planes,
                                            int tile, int q) {
    const float2 a = *reinterpret_cast<const float2*>(xh16 + 2 * q);
    const float2 b = *reinterpret_cast<const float2*>(xh16 + 2 * q + 8);
    if constexpr (A == Arithmetic::half) {
        const __half2 h = __floats2half2_rn(a.x * inverse, a.y * inverse);
        const __half2 i = __floats2half2_rn(b.x * inverse, b.y * inverse);
        reinterpret_cast<uint2*>(planes)[tile * 4 + q] = make_uint2(
            *reinterpret_cast<const uint32_t*>(&h), *reinterpret_cast<const uint32_t*>(&i));
        return 0;
    } else {
        const int x[4] = {to_int16(a.x, inverse), to_int16(a.y, inverse), to_int16(b.x, inverse),
                          to_int16(b.y, inverse)};
        uint32_t hi = 0, lo = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            hi |= static_cast<uint32_t>(((x[i] + 128) >> 8) & 0xff) << (8 * i);
            lo |= static_cast<uint32_t>(x[i] & 0xff) << (8 * i);
        }
        auto* to = reinterpret_cast<uint32_t*>(planes) + tile * 8 + q;
        to[0] = hi;
        to[4] = lo;
        return x[0] + x[1] + x[2] + x[3];
    }
}

}  // namespace terrace::cuda
