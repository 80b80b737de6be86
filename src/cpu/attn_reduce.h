// Sixteen reductions at once: out[4*l + m] = reduce_add(v[4*m + l]), with the bits of reduce_add
// (distance 8, 4, 2, 1). Thirty shuffles for sixteen sums instead of four dependent steps for each.
// Included by the isa_*.cpp files only.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/simd_common.h"

namespace terrace::TERRACE_ISA {

#ifdef __AVX512F__

// Vectors of a 4x4 tile held at once.
inline constexpr int kTileA = 4, kTileB = 4;

TERRACE_INLINE V16 reduce16(const V16 (&v)[16]) {
    __m512 u[4];
    for (int m = 0; m < 4; ++m) {
        const __m512 x = v[4 * m].v, y = v[4 * m + 1].v, z = v[4 * m + 2].v, w = v[4 * m + 3].v;
        const __m512 xy =
            _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
        const __m512 zw =
            _mm512_add_ps(_mm512_shuffle_f32x4(z, w, 0x44), _mm512_shuffle_f32x4(z, w, 0xee));
        u[m] =
            _mm512_add_ps(_mm512_shuffle_f32x4(xy, zw, 0x88), _mm512_shuffle_f32x4(xy, zw, 0xdd));
    }
    const __m512 p =
        _mm512_add_ps(_mm512_shuffle_ps(u[0], u[1], 0x44), _mm512_shuffle_ps(u[0], u[1], 0xee));
    const __m512 q =
        _mm512_add_ps(_mm512_shuffle_ps(u[2], u[3], 0x44), _mm512_shuffle_ps(u[2], u[3], 0xee));
    return {_mm512_add_ps(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xdd))};
}

#else

inline constexpr int kTileA = 2, kTileB = 2;

TERRACE_INLINE V16 reduce16(const V16 (&v)[16]) {
    __m256 u[4][2];  // [m]: 128-bit lanes of v[4m], v[4m+1] and of v[4m+2], v[4m+3]
    for (int m = 0; m < 4; ++m)
        for (int half = 0; half < 2; ++half) {
            const V16 x = v[4 * m + 2 * half], y = v[4 * m + 2 * half + 1];
            const __m256 x8 = _mm256_add_ps(x.a, x.b), y8 = _mm256_add_ps(y.a, y.b);
            u[m][half] = _mm256_add_ps(_mm256_permute2f128_ps(x8, y8, 0x20),
                                       _mm256_permute2f128_ps(x8, y8, 0x31));
        }
    __m256 out[2];
    for (int half = 0; half < 2; ++half) {
        const __m256 p = _mm256_add_ps(_mm256_shuffle_ps(u[0][half], u[1][half], 0x44),
                                       _mm256_shuffle_ps(u[0][half], u[1][half], 0xee));
        const __m256 q = _mm256_add_ps(_mm256_shuffle_ps(u[2][half], u[3][half], 0x44),
                                       _mm256_shuffle_ps(u[2][half], u[3][half], 0xee));
        out[half] = _mm256_add_ps(_mm256_shuffle_ps(p, q, 0x88), _mm256_shuffle_ps(p, q, 0xdd));
    }
    return {out[0], out[1]};
}

#endif

}  // namespace terrace::TERRACE_ISA
