// V16: sixteen floats as one AVX-512 register, and N16: sixteen int32. Included by isa_avx512.cpp
// and isa_vbmi.cpp only.
//
// The same names exist in simd_avx2.h, with equal element order, rounding and reduction trees: see
// there. The compiler's own reduction intrinsics are not used, their tree is its business.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/simd_common.h"

namespace terrace::TERRACE_ISA {

struct V16 {
    __m512 v;
};
struct N16 {
    __m512i v;
};
struct M16 {
    __mmask16 m;
};

// Dense product: outputs x rows held in accumulators, 16 of 32 registers.
inline constexpr int kDenseOutputs1 = 8;  // outputs when there is one row
inline constexpr int kDenseOutputs = 4;
inline constexpr int kDenseRows = 4;

// ---- load, store -------------------------------------------------------------------------------
TERRACE_INLINE V16 zero() {
    return {_mm512_setzero_ps()};
}
TERRACE_INLINE V16 set1(float v) {
    return {_mm512_set1_ps(v)};
}
TERRACE_INLINE V16 load(const float* p) {
    return {_mm512_loadu_ps(p)};
}
TERRACE_INLINE void store(float* p, V16 v) {
    _mm512_storeu_ps(p, v.v);
}
// p[0..3] four times.
TERRACE_INLINE V16 broadcast4(const float* p) {
    return {_mm512_broadcast_f32x4(_mm_loadu_ps(p))};
}
TERRACE_INLINE V16 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
TERRACE_INLINE V16 widen_bf16(__m256i h) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
TERRACE_INLINE V16 load_bf16(const uint16_t* p) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// Round to nearest even.
TERRACE_INLINE void store_f16(uint16_t* p, V16 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT));
}
// Round to binary16 (nearest even) and back.
TERRACE_INLINE V16 round_f16(V16 v) {
    return {_mm512_cvtph_ps(_mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT))};
}

TERRACE_INLINE __mmask16 first_lanes(int n) {
    return static_cast<__mmask16>((1u << n) - 1u);
}
// Partial forms: elements >= n (0 <= n <= 16) are zero, and their memory is not touched.
TERRACE_INLINE V16 load_n(const float* p, int n) {
    return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
TERRACE_INLINE void store_n(float* p, V16 v, int n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), v.v);
}
TERRACE_INLINE V16 load_f16_n(const uint16_t* p, int n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
TERRACE_INLINE V16 load_bf16_n(const uint16_t* p, int n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
TERRACE_INLINE void store_f16_n(uint16_t* p, V16 v, int n) {
    _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT));
}

// ---- arithmetic --------------------------------------------------------------------------------
TERRACE_INLINE V16 add(V16 x, V16 y) {
    return {_mm512_add_ps(x.v, y.v)};
}
TERRACE_INLINE V16 sub(V16 x, V16 y) {
    return {_mm512_sub_ps(x.v, y.v)};
}
TERRACE_INLINE V16 mul(V16 x, V16 y) {
    return {_mm512_mul_ps(x.v, y.v)};
}
TERRACE_INLINE V16 div(V16 x, V16 y) {
    return {_mm512_div_ps(x.v, y.v)};
}
// x*y + z, one rounding.
TERRACE_INLINE V16 fma(V16 x, V16 y, V16 z) {
    return {_mm512_fmadd_ps(x.v, y.v, z.v)};
}
// z - x*y, one rounding.
TERRACE_INLINE V16 fnma(V16 x, V16 y, V16 z) {
    return {_mm512_fnmadd_ps(x.v, y.v, z.v)};
}
TERRACE_INLINE V16 max(V16 x, V16 y) {
    return {_mm512_max_ps(x.v, y.v)};
}
TERRACE_INLINE V16 min(V16 x, V16 y) {
    return {_mm512_min_ps(x.v, y.v)};
}
TERRACE_INLINE V16 sqrt(V16 x) {
    return {_mm512_sqrt_ps(x.v)};
}
TERRACE_INLINE V16 bit_and(V16 x, V16 y) {
    return {_mm512_and_ps(x.v, y.v)};
}
TERRACE_INLINE V16 bit_xor(V16 x, V16 y) {
    return {_mm512_xor_ps(x.v, y.v)};
}
// To the nearest integer, ties to even, as a float.
TERRACE_INLINE V16 round_even(V16 x) {
    return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// ---- compare, select ---------------------------------------------------------------------------
TERRACE_INLINE M16 lt(V16 x, V16 y) {
    return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ)};
}
TERRACE_INLINE M16 le(V16 x, V16 y) {
    return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_LE_OQ)};
}
TERRACE_INLINE M16 gt(V16 x, V16 y) {
    return lt(y, x);
}
TERRACE_INLINE M16 ge(V16 x, V16 y) {
    return le(y, x);
}
TERRACE_INLINE M16 eq(V16 x, V16 y) {
    return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ)};
}
TERRACE_INLINE M16 first_n(int n) {
    return {first_lanes(n)};
}
// x where m, else y.
TERRACE_INLINE V16 select(M16 m, V16 x, V16 y) {
    return {_mm512_mask_blend_ps(m.m, y.v, x.v)};
}
// Bit i = element i of the mask.
TERRACE_INLINE uint32_t mask_bits(M16 m) {
    return m.m;
}

// ---- reductions: distance 8, then 4, 2, 1 ------------------------------------------------------
TERRACE_INLINE float reduce_add(V16 x) {
    const __m256 v8 = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_shuffle_ps(v2, v2, 1)));
}
TERRACE_INLINE float reduce_max(V16 x) {
    const __m256 v8 = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 v4 = _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_max_ss(v2, _mm_shuffle_ps(v2, v2, 1)));
}

// ---- partners at distance 1, 2, 4, 8: element i becomes element i ^ d
// -----------------------------
TERRACE_INLINE V16 swap1(V16 x) {
    return {_mm512_permute_ps(x.v, 0xb1)};
}
TERRACE_INLINE V16 swap2(V16 x) {
    return {_mm512_permute_ps(x.v, 0x4e)};
}
TERRACE_INLINE V16 swap4(V16 x) {
    return {_mm512_shuffle_f32x4(x.v, x.v, 0xb1)};
}
TERRACE_INLINE V16 swap8(V16 x) {
    return {_mm512_shuffle_f32x4(x.v, x.v, 0x4e)};
}

// ---- int32 -------------------------------------------------------------------------------------
TERRACE_INLINE N16 set1_i(int32_t v) {
    return {_mm512_set1_epi32(v)};
}
TERRACE_INLINE N16 load_i(const int32_t* p) {
    return {_mm512_loadu_si512(p)};
}
TERRACE_INLINE void store_i(int32_t* p, N16 v) {
    _mm512_storeu_si512(p, v.v);
}
TERRACE_INLINE N16 add(N16 x, N16 y) {
    return {_mm512_add_epi32(x.v, y.v)};
}
TERRACE_INLINE N16 sub(N16 x, N16 y) {
    return {_mm512_sub_epi32(x.v, y.v)};
}
TERRACE_INLINE N16 max(N16 x, N16 y) {
    return {_mm512_max_epi32(x.v, y.v)};
}
template <int kBits>
TERRACE_INLINE N16 shl(N16 x) {
    return {_mm512_slli_epi32(x.v, kBits)};
}
// Nearest, ties to even; INT32_MIN for NaN and what does not fit.
TERRACE_INLINE N16 to_int(V16 x) {
    return {_mm512_cvtps_epi32(x.v)};
}
TERRACE_INLINE V16 to_float(N16 x) {
    return {_mm512_cvtepi32_ps(x.v)};
}
TERRACE_INLINE N16 as_int(V16 x) {
    return {_mm512_castps_si512(x.v)};
}
TERRACE_INLINE V16 as_float(N16 x) {
    return {_mm512_castsi512_ps(x.v)};
}
TERRACE_INLINE int32_t reduce_add_i(N16 x) {  // modulo 2^32
    const __m256i v8 =
        _mm256_add_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti32x8_epi32(x.v, 1));
    const __m128i v4 = _mm_add_epi32(_mm256_castsi256_si128(v8), _mm256_extracti128_si256(v8, 1));
    const __m128i v2 = _mm_add_epi32(v4, _mm_shuffle_epi32(v4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(v2, _mm_shuffle_epi32(v2, 0xb1)));
}
TERRACE_INLINE int32_t reduce_max_i(N16 x) {
    const __m256i v8 =
        _mm256_max_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti32x8_epi32(x.v, 1));
    const __m128i v4 = _mm_max_epi32(_mm256_castsi256_si128(v8), _mm256_extracti128_si256(v8, 1));
    const __m128i v2 = _mm_max_epi32(v4, _mm_shuffle_epi32(v4, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(v2, _mm_shuffle_epi32(v2, 0xb1)));
}
// Saturates to int16 and stores 16 of them.
TERRACE_INLINE void store_i16(int16_t* p, N16 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(v.v));
}

}  // namespace terrace::TERRACE_ISA

#include "cpu/simd_math.h"
