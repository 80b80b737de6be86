// V16: sixteen floats as two AVX2 registers, and N16: sixteen int32. Included by isa_avx2.cpp only.
//
// The same names exist in simd_avx512.h. Element order, rounding and the tree of every reduction
// are equal there, so that a kernel written once over V16 gives the same bits on both. Nothing is
// contracted: a product and a sum are fused where the kernel says fma.
//
// Any thread. NaN: min and max return their SECOND operand when either is a NaN (the x86 rule).
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/simd_common.h"

namespace terrace::TERRACE_ISA {

struct V16 {
    __m256 a, b;  // elements 0..7 and 8..15
};
struct N16 {
    __m256i a, b;
};
struct M16 {
    __m256 a, b;  // all ones where true
};

// Dense product: outputs x rows held in accumulators. 2 x 3 V16 are 12 of 16 registers.
inline constexpr int kDenseOutputs1 = 4;  // outputs when there is one row
inline constexpr int kDenseOutputs = 2;
inline constexpr int kDenseRows = 3;

// ---- load, store -------------------------------------------------------------------------------
TERRACE_INLINE V16 zero() {
    return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
TERRACE_INLINE V16 set1(float v) {
    return {_mm256_set1_ps(v), _mm256_set1_ps(v)};
}
TERRACE_INLINE V16 load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
TERRACE_INLINE void store(float* p, V16 v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
// p[0..3] four times.
TERRACE_INLINE V16 broadcast4(const float* p) {
    const __m256 v = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
    return {v, v};
}
TERRACE_INLINE V16 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
TERRACE_INLINE V16 load_bf16(const uint16_t* p) {
    const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i hi = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lo), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(hi), 16))};
}
// Round to nearest even.
TERRACE_INLINE void store_f16(uint16_t* p, V16 v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                     _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}
// Round to binary16 (nearest even) and back.
TERRACE_INLINE V16 round_f16(V16 v) {
    return {_mm256_cvtph_ps(_mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT)),
            _mm256_cvtph_ps(_mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT))};
}

TERRACE_INLINE __m256i first_lanes(int n) {  // all ones in lanes below n; n may be < 0 or > 8
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// Partial forms: elements >= n (0 <= n <= 16) are zero, and their memory is not touched.
TERRACE_INLINE V16 load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
TERRACE_INLINE void store_n(float* p, V16 v, int n) {
    _mm256_maskstore_ps(p, first_lanes(n), v.a);
    _mm256_maskstore_ps(p + 8, first_lanes(n - 8), v.b);
}
TERRACE_INLINE V16 load_f16_n(const uint16_t* p, int n) {
    uint16_t t[16] = {};
    if (n > 0) std::memcpy(t, p, static_cast<size_t>(n) * 2);  // p may be null when n is 0
    return load_f16(t);
}
TERRACE_INLINE V16 load_bf16_n(const uint16_t* p, int n) {
    uint16_t t[16] = {};
    if (n > 0) std::memcpy(t, p, static_cast<size_t>(n) * 2);  // p may be null when n is 0
    return load_bf16(t);
}
TERRACE_INLINE void store_f16_n(uint16_t* p, V16 v, int n) {
    uint16_t t[16];
    store_f16(t, v);
    if (n > 0) std::memcpy(p, t, static_cast<size_t>(n) * 2);
}

// ---- arithmetic --------------------------------------------------------------------------------
TERRACE_INLINE V16 add(V16 x, V16 y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
TERRACE_INLINE V16 sub(V16 x, V16 y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
TERRACE_INLINE V16 mul(V16 x, V16 y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
TERRACE_INLINE V16 div(V16 x, V16 y) {
    return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
// x*y + z, one rounding.
TERRACE_INLINE V16 fma(V16 x, V16 y, V16 z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// z - x*y, one rounding.
TERRACE_INLINE V16 fnma(V16 x, V16 y, V16 z) {
    return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
TERRACE_INLINE V16 max(V16 x, V16 y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
TERRACE_INLINE V16 min(V16 x, V16 y) {
    return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
TERRACE_INLINE V16 sqrt(V16 x) {
    return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)};
}
TERRACE_INLINE V16 bit_and(V16 x, V16 y) {
    return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)};
}
TERRACE_INLINE V16 bit_xor(V16 x, V16 y) {
    return {_mm256_xor_ps(x.a, y.a), _mm256_xor_ps(x.b, y.b)};
}
// To the nearest integer, ties to even, as a float.
TERRACE_INLINE V16 round_even(V16 x) {
    return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// ---- compare, select ---------------------------------------------------------------------------
TERRACE_INLINE M16 lt(V16 x, V16 y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
TERRACE_INLINE M16 le(V16 x, V16 y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
TERRACE_INLINE M16 gt(V16 x, V16 y) {
    return lt(y, x);
}
TERRACE_INLINE M16 ge(V16 x, V16 y) {
    return le(y, x);
}
TERRACE_INLINE M16 eq(V16 x, V16 y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
}
TERRACE_INLINE M16 first_n(int n) {
    return {_mm256_castsi256_ps(first_lanes(n)), _mm256_castsi256_ps(first_lanes(n - 8))};
}
// x where m, else y.
TERRACE_INLINE V16 select(M16 m, V16 x, V16 y) {
    return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
// Bit i = element i of the mask.
TERRACE_INLINE uint32_t mask_bits(M16 m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.a)) |
           static_cast<uint32_t>(_mm256_movemask_ps(m.b)) << 8;
}

// ---- reductions: distance 8, then 4, 2, 1 ------------------------------------------------------
TERRACE_INLINE float reduce_add(V16 x) {
    const __m256 v8 = _mm256_add_ps(x.a, x.b);
    const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_shuffle_ps(v2, v2, 1)));
}
TERRACE_INLINE float reduce_max(V16 x) {
    const __m256 v8 = _mm256_max_ps(x.a, x.b);
    const __m128 v4 = _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_max_ss(v2, _mm_shuffle_ps(v2, v2, 1)));
}

// ---- partners at distance 1, 2, 4, 8: element i becomes element i ^ d
// -----------------------------
TERRACE_INLINE V16 swap1(V16 x) {
    return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
}
TERRACE_INLINE V16 swap2(V16 x) {
    return {_mm256_permute_ps(x.a, 0x4e), _mm256_permute_ps(x.b, 0x4e)};
}
TERRACE_INLINE V16 swap4(V16 x) {
    return {_mm256_permute2f128_ps(x.a, x.a, 1), _mm256_permute2f128_ps(x.b, x.b, 1)};
}
TERRACE_INLINE V16 swap8(V16 x) {
    return {x.b, x.a};
}

// ---- int32 -------------------------------------------------------------------------------------
TERRACE_INLINE N16 set1_i(int32_t v) {
    return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)};
}
TERRACE_INLINE N16 load_i(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
TERRACE_INLINE void store_i(int32_t* p, N16 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.b);
}
TERRACE_INLINE N16 add(N16 x, N16 y) {
    return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
TERRACE_INLINE N16 sub(N16 x, N16 y) {
    return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
TERRACE_INLINE N16 max(N16 x, N16 y) {
    return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
template <int kBits>
TERRACE_INLINE N16 shl(N16 x) {
    return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
}
// Nearest, ties to even; INT32_MIN for NaN and what does not fit.
TERRACE_INLINE N16 to_int(V16 x) {
    return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}
TERRACE_INLINE V16 to_float(N16 x) {
    return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
TERRACE_INLINE N16 as_int(V16 x) {
    return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
TERRACE_INLINE V16 as_float(N16 x) {
    return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
TERRACE_INLINE int32_t reduce_add_i(N16 x) {  // modulo 2^32
    const __m256i v8 = _mm256_add_epi32(x.a, x.b);
    const __m128i v4 = _mm_add_epi32(_mm256_castsi256_si128(v8), _mm256_extracti128_si256(v8, 1));
    const __m128i v2 = _mm_add_epi32(v4, _mm_shuffle_epi32(v4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(v2, _mm_shuffle_epi32(v2, 0xb1)));
}
TERRACE_INLINE int32_t reduce_max_i(N16 x) {
    const __m256i v8 = _mm256_max_epi32(x.a, x.b);
    const __m128i v4 = _mm_max_epi32(_mm256_castsi256_si128(v8), _mm256_extracti128_si256(v8, 1));
    const __m128i v2 = _mm_max_epi32(v4, _mm_shuffle_epi32(v4, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(v2, _mm_shuffle_epi32(v2, 0xb1)));
}
// Saturates to int16 and stores 16 of them.
TERRACE_INLINE void store_i16(int16_t* p, N16 v) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

}  // namespace terrace::TERRACE_ISA

#include "cpu/simd_math.h"
