// Input side of an EXL3 product for few rows: x * suh, Hadamard transform, and the row as B operands
// of the matrix instructions.
//
// Two arithmetics. `integer` (mul1): a row is rounded to int16, one scale per row (its largest
// element becomes 32512 = 127 * 256), and cut into x = 256 * hi + lo with signed bytes; sums of bytes
// of the product words times hi and lo are exact, so the order of summation is free (EXL3 format
// 2.9, 3.10). `half` (3inst, mcg): a row is scaled by a power of two and rounded to f16.
//
// Planes, in the order in which lanes want them, for groups of tokens (integer: 4, each two columns;
// half: 8, one column): column n's lane is 4 * n + q.
//   integer: uint32 [in/16][tokens/4][32], bytes x[2q], x[2q+1], x[2q+8], x[2q+9] of the hi (even
//            column) or lo (odd column) plane
//   half:    uint2  [in/16][tokens/8][32], f16 pairs (x[2q], x[2q+1]), (x[2q+8], x[2q+9])
// Both take 32 bytes per token and 16 inputs. Columns of absent tokens are not written.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/exl3/hadamard.cuh"
#include "exl3/tensor.h"

namespace terrace::cuda {

enum class Arithmetic : uint8_t { integer, half };

constexpr size_t kPlaneBytes = 32;  // per token and 16 inputs
constexpr float kInt16Top = 32512.0f;

// value = scale * sum; sum of the row's int16 (integer only). scale is NaN for a row with a value
// that is not finite.
struct RowScale {
    float scale;
    int32_t sum;
};

__device__ __forceinline__ float f16_value(const f16* p) {
    return __half2float(*reinterpret_cast<const __half*>(p));
}

// xh[0, in) = Hd(x * suh), x extended with zeros from n on; every warp of the block takes blocks of
// 128 in turn. Returns the largest absolute value's bits over the calling lane's elements: a NaN or
// an infinity is larger than every number.
__device__ __forceinline__ uint32_t transform_row(const float* x, int n, const f16* suh, int in,
                                                  float* xh) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    uint32_t top = 0;
    for (int b = static_cast<int>(threadIdx.x) >> 5; b < in / 128;
         b += static_cast<int>(blockDim.x) >> 5) {
        const int at = 128 * b + 4 * lane;
        const uint2 scales = *reinterpret_cast<const uint2*>(suh + at);
        const float2 s01 = __half22float2(*reinterpret_cast<const __half2*>(&scales.x));
        const float2 s23 = __half22float2(*reinterpret_cast<const __half2*>(&scales.y));
        float v[4] = {at < n ? x[at] * s01.x : 0.0f, at + 1 < n ? x[at + 1] * s01.y : 0.0f,
                      at + 2 < n ? x[at + 2] * s23.x : 0.0f, at + 3 < n ? x[at + 3] * s23.y : 0.0f};
        warp_fwht128(v, lane);
        *reinterpret_cast<float4*>(xh + at) = make_float4(v[0], v[1], v[2], v[3]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            top = max(top, __float_as_uint(fabsf(v[j])));
    }
    return top;
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

// Writes the part of token `token`'s planes that belongs to inputs 2q, 2q+1, 2q+8, 2q+9 of row tile
// `tile`; xh16 are the tile's 16 inputs. Returns the sum of their int16.
__device__ __forceinline__ int store_planes(Arithmetic arithmetic, const float* xh16, float inverse,
                                            std::byte* planes, int64_t tile, int q, int token,
                                            int token_tiles) {
    const float v[4] = {xh16[2 * q], xh16[2 * q + 1], xh16[2 * q + 8], xh16[2 * q + 9]};
    if (arithmetic == Arithmetic::half) {
        const __half2 a = __floats2half2_rn(v[0] * inverse, v[1] * inverse);
        const __half2 b = __floats2half2_rn(v[2] * inverse, v[3] * inverse);
        const int64_t at = (tile * token_tiles + token / 8) * 32 + 4 * (token % 8) + q;
        reinterpret_cast<uint2*>(planes)[at] = make_uint2(*reinterpret_cast<const uint32_t*>(&a),
                                                          *reinterpret_cast<const uint32_t*>(&b));
        return 0;
    }
    uint32_t hi = 0, lo = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int x = to_int16(v[i], inverse);
        sum += x;
        hi |= static_cast<uint32_t>(((x + 128) >> 8) & 0xff) << (8 * i);
        lo |= static_cast<uint32_t>(x & 0xff) << (8 * i);
    }
    auto* to = reinterpret_cast<uint32_t*>(planes) + (tile * token_tiles + token / 4) * 32 +
               8 * (token % 4) + q;
    to[0] = hi;
    to[4] = lo;
    return sum;
}

}  // namespace terrace::cuda
