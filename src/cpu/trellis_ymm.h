// EXL3 tiles in 256-bit registers: decode a column tile of one 128-wide input block (8 row tiles,
// 128 x 16 weights) to byte sums or to f32 values, and multiply. Used by the AVX2 and the plain
// AVX-512 kernels; the register layout is YmmUnit's in trellis_tables.h.
//
// Accumulators leave as one vector of 8 partial sums per unit c, [c q0][c q1][c+8 q0][c+8 q1] and
// the same for q2, q3; reduce_* adds the partials. Reads exactly the tile's bytes, at any
// alignment.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/simd_common.h"
#include "cpu/trellis_tables.h"

namespace terrace::TERRACE_ISA {

struct Ymm {
    static constexpr size_t kActInt16 = 512;   // [8 row tiles][2 vectors][16] int16
    static constexpr size_t kActF32 = 1024;    // [8][2 vectors][even, odd][8] f32
    static constexpr int kAccs = 64;           // 32-bit partial sums of one row and column tile
    static constexpr int kAccsF32 = 128;       // the two vectors keep sums of their own
    static constexpr int kColumnRows = 0;      // no column form
    static constexpr size_t kSumBytes = 4096;  // decoded column tile, byte sums
    static constexpr size_t kValueBytes = 8192;

    TERRACE_INLINE __m256i loadu(const void* p) {
        return _mm256_loadu_si256(static_cast<const __m256i*>(p));
    }
    TERRACE_INLINE __m128i loadu128(const void* p) {
        return _mm_loadu_si128(static_cast<const __m128i*>(p));
    }

    // ---- packed activations ----
    TERRACE_INLINE void pack_int16(const int16_t* a, void* act) {
        auto* out = static_cast<__m256i*>(act);
        for (int i = 0; i < 16; ++i)  // 8 rows = 4 pairs q: q0 q1 q0 q1 | q2 q3 q2 q3
            _mm256_store_si256(out + i, _mm256_permute4x64_epi64(
                                            _mm256_castsi128_si256(loadu128(a + 8 * i)), 0x50));
    }
    TERRACE_INLINE void pack_f32(const float* x, void* act) {
        auto* out = static_cast<float*>(act);
        for (int kt = 0; kt < 8; ++kt)
            for (int v = 0; v < 2; ++v)
                for (int odd = 0; odd < 2; ++odd)
                    for (int i = 0; i < 8; ++i)
                        *out++ = x[16 * kt + 8 * v + 2 * ((i & 1) + 2 * (i >> 2)) + odd];
    }

    // ---- state extraction ----
    template <int n16>
    TERRACE_INLINE __m128i window(const uint8_t* tile, int offset, bool wrap) {
        if (wrap) return _mm_alignr_epi8(loadu128(tile), loadu128(tile + 2 * n16 - 16), 12);
        return loadu128(tile + offset);
    }
    TERRACE_INLINE __m256i join(__m128i lo, __m128i hi) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
    }
    // States of unit c of one tile as V0, V1. `wrap` is c == 0, known when inlined.
    template <int n16>
    TERRACE_INLINE void states(const uint8_t* tile, const trellis::YmmUnit& u, bool wrap,
                               __m256i& v0, __m256i& v1) {
        constexpr const trellis::YmmTable& t = trellis::kYmm<n16>;
        static_assert(t.valid);
        const __m256i w0 =
            join(window<n16>(tile, u.offset[0][0], wrap), loadu128(tile + u.offset[0][1]));
        __m256i x0 = _mm256_shuffle_epi8(w0, loadu(u.shuffle[0][0]));
        __m256i x1 = x0;
        if constexpr (!t.one_shuffle) x1 = _mm256_shuffle_epi8(w0, loadu(u.shuffle[1][0]));
        if constexpr (t.two_loads) {
            const __m256i w1 =
                join(loadu128(tile + u.offset[1][0]), loadu128(tile + u.offset[1][1]));
            x0 = _mm256_or_si256(x0, _mm256_shuffle_epi8(w1, loadu(u.shuffle[0][1])));
            if constexpr (!t.one_shuffle)
                x1 = _mm256_or_si256(x1, _mm256_shuffle_epi8(w1, loadu(u.shuffle[1][1])));
            else
                x1 = x0;
        }
        if constexpr (t.uniform) {
            constexpr int r0 = t.unit[0].right[0][0];
            constexpr int l0 = t.unit[0].left[0][0];
            constexpr int r1 = t.unit[0].right[1][0];
            constexpr int l1 = t.unit[0].left[1][0];
            v0 = _mm256_blend_epi16(_mm256_srli_epi32(x0, r0), _mm256_slli_epi32(x0, l0), 0xaa);
            v1 = _mm256_blend_epi16(_mm256_srli_epi32(x1, r1), _mm256_slli_epi32(x1, l1), 0xaa);
        } else {
            v0 = _mm256_blend_epi16(_mm256_srlv_epi32(x0, loadu(u.right[0])),
                                    _mm256_sllv_epi32(x0, loadu(u.left[0])), 0xaa);
            v1 = _mm256_blend_epi16(_mm256_srlv_epi32(x1, loadu(u.right[1])),
                                    _mm256_sllv_epi32(x1, loadu(u.left[1])), 0xaa);
        }
    }

    // ---- mul1 byte sums: 16 states -> 16 integers 0..1020, modulo-2^32 product in 16-bit halves
    // ----
    TERRACE_INLINE __m256i byte_sums(__m256i s) {
        const __m256i m_lo = _mm256_set1_epi16(static_cast<int16_t>(0xd12d));
        const __m256i m_hi = _mm256_set1_epi16(static_cast<int16_t>(0x83dc));
        const __m256i ones = _mm256_set1_epi8(1);
        const __m256i lo = _mm256_mullo_epi16(s, m_lo);
        const __m256i hi =
            _mm256_add_epi16(_mm256_mulhi_epu16(s, m_lo), _mm256_mullo_epi16(s, m_hi));
        return _mm256_add_epi16(_mm256_maddubs_epi16(lo, ones), _mm256_maddubs_epi16(hi, ones));
    }
    TERRACE_INLINE __m256i mac(__m256i acc, __m256i s, __m256i a) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
        return _mm256_dpwssd_epi32(acc, s, a);
#else
        return _mm256_add_epi32(acc, _mm256_madd_epi16(s, a));
#endif
    }

    template <int n16, int R>
    TERRACE_INLINE void direct_unit(const uint8_t* tile, size_t stride, const uint8_t* act, int c,
                                    bool wrap, int32_t* acc) {
        const trellis::YmmUnit& u = trellis::kYmm<n16>.unit[c];
        __m256i sum[R];
        for (__m256i& s : sum)
            s = _mm256_setzero_si256();
        for (int kt = 0; kt < 8; ++kt) {
            __m256i v0, v1;
            states<n16>(tile + kt * stride, u, wrap, v0, v1);
            v0 = byte_sums(v0);
            v1 = byte_sums(v1);
            for (int r = 0; r < R; ++r) {
                const uint8_t* a = act + r * kActInt16 + kt * 64;
                sum[r] = mac(sum[r], v0, loadu(a));
                sum[r] = mac(sum[r], v1, loadu(a + 32));
            }
        }
        for (int r = 0; r < R; ++r)
            _mm256_store_si256(reinterpret_cast<__m256i*>(acc + r * kAccs + 8 * c), sum[r]);
    }
    // Decodes and multiplies in one pass, R rows. act rows are kActInt16 apart; acc [R][kAccs].
    template <int n16, int R>
    TERRACE_INLINE void direct_int16(const uint8_t* tile, size_t stride, const uint8_t* act,
                                     int32_t* acc) {
        direct_unit<n16, R>(tile, stride, act, 0, true, acc);
        for (int c = 1; c < 8; ++c)
            direct_unit<n16, R>(tile, stride, act, c, false, acc);
    }

    template <int n16>
    TERRACE_INLINE void decode_int16(const uint8_t* tile, size_t stride, void* out) {
        auto* to = static_cast<__m256i*>(out);  // [unit][row tile][V0, V1]
        for (int c = 0; c < 8; ++c) {
            const trellis::YmmUnit& u = trellis::kYmm<n16>.unit[c];
            for (int kt = 0; kt < 8; ++kt) {
                __m256i v0, v1;
                states<n16>(tile + kt * stride, u, c == 0, v0, v1);
                _mm256_store_si256(to++, byte_sums(v0));
                _mm256_store_si256(to++, byte_sums(v1));
            }
        }
    }
    template <int R>
    TERRACE_INLINE void dot_int16(const void* sums, const uint8_t* act, int32_t* acc) {
        const auto* s = static_cast<const __m256i*>(sums);
        for (int c = 0; c < 8; c += 2, s += 32) {
            __m256i sum[R][2];
            for (auto& row : sum)
                row[0] = row[1] = _mm256_setzero_si256();
            for (int kt = 0; kt < 8; ++kt)
                for (int v = 0; v < 2; ++v) {
                    const __m256i s0 = _mm256_load_si256(s + 2 * kt + v);
                    const __m256i s1 = _mm256_load_si256(s + 16 + 2 * kt + v);
                    for (int r = 0; r < R; ++r) {
                        const __m256i a = loadu(act + r * kActInt16 + kt * 64 + v * 32);
                        sum[r][0] = mac(sum[r][0], s0, a);
                        sum[r][1] = mac(sum[r][1], s1, a);
                    }
                }
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < 2; ++i)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(acc + r * kAccs + 8 * (c + i)),
                                       sum[r][i]);
        }
    }
    // 16 column sums of one row, modulo 2^32.
    TERRACE_INLINE void reduce_int16(const int32_t* acc, int32_t* columns) {
        const auto* p = reinterpret_cast<const __m256i*>(acc);
        __m256i t[4];
        for (int i = 0; i < 4; ++i) {
            const __m256i x = _mm256_load_si256(p + i);
            const __m256i y = _mm256_load_si256(p + i + 4);
            t[i] = _mm256_add_epi32(_mm256_permute2x128_si256(x, y, 0x20),
                                    _mm256_permute2x128_si256(x, y, 0x31));
        }
        // t[i]: c, c, c+8, c+8 for c = i | the same for c = i + 4.
        const __m256 h0 = _mm256_castsi256_ps(_mm256_hadd_epi32(t[0], t[1]));
        const __m256 h1 = _mm256_castsi256_ps(_mm256_hadd_epi32(t[2], t[3]));
        _mm256_store_ps(reinterpret_cast<float*>(columns), _mm256_shuffle_ps(h0, h1, 0x88));
        _mm256_store_ps(reinterpret_cast<float*>(columns + 8), _mm256_shuffle_ps(h0, h1, 0xdd));
    }

    // ---- exact values ----
    TERRACE_INLINE __m256 round_half(__m256 v) {
        return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    // kCodebook as in Codebook: 0 three_inst, 1 mcg. s: eight states, zero-extended.
    template <int kCodebook>
    TERRACE_INLINE __m256 half_sum(__m256i s) {
        __m256i x = _mm256_mullo_epi32(
            s, _mm256_set1_epi32(static_cast<int32_t>(kCodebook == 0 ? 0x05517c72u : 0xcbac1fedu)));
        if constexpr (kCodebook == 0) x = _mm256_add_epi32(x, _mm256_set1_epi32(0x03d45aa4));
        // A half is sign, exponent 12..15 and mantissa, never subnormal, so it widens by a shift:
        // mask, xor and the new exponent bias (112) in one and and one xor.
        const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0x81ffe000u));
        const __m256i flip = _mm256_set1_epi32(0x3f6c0000);
        const __m256i hi = _mm256_xor_si256(_mm256_and_si256(_mm256_srai_epi32(x, 3), mask), flip);
        const __m256i lo = _mm256_xor_si256(
            _mm256_and_si256(_mm256_srai_epi32(_mm256_slli_epi32(x, 16), 3), mask), flip);
        return round_half(_mm256_add_ps(_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)));
    }
    // (1024 + S) * k_inv + k_bias is exact in f32, so one rounding to f16 is the format's own.
    TERRACE_INLINE __m256 affine(__m256i sum) {
        return round_half(_mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                                          _mm256_set1_ps(0.00676727294921875f),
                                          _mm256_set1_ps(-3.453125f)));
    }
    template <int kCodebook>
    TERRACE_INLINE void values(__m256i v, __m256& even, __m256& odd) {
        if constexpr (kCodebook == 2) v = byte_sums(v);
        const __m256i e = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
        const __m256i o = _mm256_srli_epi32(v, 16);
        if constexpr (kCodebook == 2) {
            even = affine(e);
            odd = affine(o);
        } else {
            even = half_sum<kCodebook>(e);
            odd = half_sum<kCodebook>(o);
        }
    }
    template <int n16, int kCodebook>
    TERRACE_INLINE void decode_f32(const uint8_t* tile, size_t stride, float* out) {
        for (int c = 0; c < 8; ++c) {  // [unit][row tile][V0, V1][even, odd][8]
            const trellis::YmmUnit& u = trellis::kYmm<n16>.unit[c];
            for (int kt = 0; kt < 8; ++kt) {
                __m256i v[2];
                states<n16>(tile + kt * stride, u, c == 0, v[0], v[1]);
                for (int i = 0; i < 2; ++i, out += 16) {
                    __m256 even, odd;
                    values<kCodebook>(v[i], even, odd);
                    _mm256_store_ps(out, even);
                    _mm256_store_ps(out + 8, odd);
                }
            }
        }
    }
    template <int R>
    TERRACE_INLINE void dot_f32(const float* w, const uint8_t* act, float* acc) {
        for (int c = 0; c < 8; ++c, w += 256) {
            __m256 sum[R][2];
            for (auto& row : sum)
                row[0] = row[1] = _mm256_setzero_ps();
            for (int kt = 0; kt < 8; ++kt)
                for (int v = 0; v < 2; ++v) {
                    const float* p = w + 32 * kt + 16 * v;
                    const __m256 even = _mm256_load_ps(p);
                    const __m256 odd = _mm256_load_ps(p + 8);
                    for (int r = 0; r < R; ++r) {
                        const auto* a =
                            reinterpret_cast<const float*>(act + r * kActF32) + 32 * kt + 16 * v;
                        sum[r][v] = _mm256_fmadd_ps(even, _mm256_loadu_ps(a), sum[r][v]);
                        sum[r][v] = _mm256_fmadd_ps(odd, _mm256_loadu_ps(a + 8), sum[r][v]);
                    }
                }
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < 2; ++v)
                    _mm256_store_ps(acc + r * kAccsF32 + 16 * c + 8 * v, sum[r][v]);
        }
    }
    // With p(q, v) the partial sum of row pair q in vector v, a column is
    // ((p00 + p10) + (p01 + p11)) + ((p20 + p30) + (p21 + p31)).
    TERRACE_INLINE void reduce_f32(const float* acc, float* columns) {
        __m128 t[8];
        for (int c = 0; c < 8; ++c) {
            const __m256 h =
                _mm256_hadd_ps(_mm256_load_ps(acc + 16 * c), _mm256_load_ps(acc + 16 * c + 8));
            // c v0, c+8 v0, c v1, c+8 v1 | the same for q2, q3
            const __m128 lo = _mm256_castps256_ps128(h);
            const __m128 hi = _mm256_extractf128_ps(h, 1);
            t[c] = _mm_add_ps(_mm_add_ps(lo, _mm_movehl_ps(lo, lo)),
                              _mm_add_ps(hi, _mm_movehl_ps(hi, hi)));  // c, c+8, .., ..
        }
        for (int c = 0; c < 8; c += 4) {
            const __m128 a = _mm_unpacklo_ps(t[c], t[c + 1]);  // c c+1 c+8 c+9
            const __m128 b = _mm_unpacklo_ps(t[c + 2], t[c + 3]);
            _mm_store_ps(columns + c, _mm_movelh_ps(a, b));
            _mm_store_ps(columns + c + 8, _mm_movehl_ps(b, a));
        }
    }
};

}  // namespace terrace::TERRACE_ISA
