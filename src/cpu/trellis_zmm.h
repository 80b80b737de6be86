// EXL3 tiles in 512-bit registers with VBMI and VNNI: the same steps as trellis_ymm.h, two columns
// (and their + 8) per register pair, states cut by byte permute and multishift. Layout: ZmmGroup in
// trellis_tables.h. Integer results are exact, and every f32 chain has the order of the 256-bit
// one, so the bits are equal.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/simd_common.h"
#include "cpu/trellis_tables.h"

namespace terrace::TERRACE_ISA {

struct Zmm {
    static constexpr size_t kActInt16 =
        256;                                // [8 row tiles][q][rows 2q, rows 2q + 8] pairs of int16
    static constexpr size_t kActF32 = 512;  // [8][even, odd][q][rows 2q, rows 2q + 8] f32
    static constexpr int kAccs = 128;       // 32-bit partial sums of one row and column tile
    static constexpr int kAccsF32 = 128;
    static constexpr size_t kSumBytes = 4096;
    static constexpr size_t kValueBytes = 8192;

    TERRACE_INLINE __m128i loadu128(const void* p) {
        return _mm_loadu_si128(static_cast<const __m128i*>(p));
    }
    TERRACE_INLINE __m512i table(const uint8_t* p) { return _mm512_load_si512(p); }

    // ---- packed activations ----
    TERRACE_INLINE void pack_int16(const int16_t* a, void* act) {
        auto* out = static_cast<__m128i*>(act);
        for (int kt = 0; kt < 8; ++kt) {
            const __m128i rows0 = loadu128(a + 16 * kt);
            const __m128i rows8 = loadu128(a + 16 * kt + 8);
            _mm_store_si128(out++, _mm_unpacklo_epi32(rows0, rows8));
            _mm_store_si128(out++, _mm_unpackhi_epi32(rows0, rows8));
        }
    }
    TERRACE_INLINE void pack_f32(const float* x, void* act) {
        auto* out = static_cast<float*>(act);
        for (int kt = 0; kt < 8; ++kt)
            for (int odd = 0; odd < 2; ++odd)
                for (int i = 0; i < 8; ++i)
                    *out++ = x[16 * kt + 2 * (i >> 1) + 8 * (i & 1) + odd];
    }

    // ---- state extraction ----
    template <int n16>
    TERRACE_INLINE __m512i window(const uint8_t* tile, int offset, bool wrap) {
        if constexpr (2 * n16 < 64)
            return _mm512_maskz_loadu_epi8((uint64_t{1} << (2 * n16)) - 1, tile);
        if (wrap)
            return _mm512_alignr_epi32(_mm512_loadu_si512(tile),
                                       _mm512_loadu_si512(tile + 2 * n16 - 64), 15);
        return _mm512_loadu_si512(tile + offset);
    }
    template <int n16>
    TERRACE_INLINE void states(const uint8_t* tile, const trellis::ZmmGroup& z, bool wrap,
                               __m512i& v0, __m512i& v1) {
        constexpr const trellis::ZmmTable& t = trellis::kZmm<n16>;
        static_assert(t.valid);
        const bool wraps = wrap && 2 * n16 > 64;
        const __m512i w0 =
            _mm512_permutexvar_epi8(table(z.permute[0]), window<n16>(tile, z.offset[0], wraps));
        __m512i w1 = w0;
        if constexpr (t.two_windows)
            w1 =
                _mm512_permutexvar_epi8(table(z.permute[1]), window<n16>(tile, z.offset[1], false));
        v0 = _mm512_multishift_epi64_epi8(table(z.shift[0]), w0);
        v1 = _mm512_multishift_epi64_epi8(table(z.shift[1]), w1);
    }

    TERRACE_INLINE __m512i byte_sums(__m512i s) {
        const __m512i m_lo = _mm512_set1_epi16(static_cast<int16_t>(0xd12d));
        const __m512i m_hi = _mm512_set1_epi16(static_cast<int16_t>(0x83dc));
        const __m512i ones = _mm512_set1_epi8(1);
        const __m512i lo = _mm512_mullo_epi16(s, m_lo);
        const __m512i hi =
            _mm512_add_epi16(_mm512_mulhi_epu16(s, m_lo), _mm512_mullo_epi16(s, m_hi));
        return _mm512_add_epi16(_mm512_maddubs_epi16(lo, ones), _mm512_maddubs_epi16(hi, ones));
    }
    TERRACE_INLINE __m512i act8(const uint8_t* p) {
        return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }

    template <int n16, int R>
    TERRACE_INLINE void direct_group(const uint8_t* tile, size_t stride, const uint8_t* act, int g,
                                     bool wrap, int32_t* acc) {
        const trellis::ZmmGroup& z = trellis::kZmm<n16>.group[g];
        __m512i sum[R][2];
        for (auto& row : sum)
            row[0] = row[1] = _mm512_setzero_si512();
        for (int kt = 0; kt < 8; ++kt) {
            __m512i v0, v1;
            states<n16>(tile + kt * stride, z, wrap, v0, v1);
            v0 = byte_sums(v0);
            v1 = byte_sums(v1);
            for (int r = 0; r < R; ++r) {
                const __m512i a = act8(act + r * kActInt16 + kt * 32);
                sum[r][0] = _mm512_dpwssd_epi32(sum[r][0], v0, a);
                sum[r][1] = _mm512_dpwssd_epi32(sum[r][1], v1, a);
            }
        }
        for (int r = 0; r < R; ++r) {
            _mm512_store_si512(acc + r * kAccs + 16 * g, sum[r][0]);
            _mm512_store_si512(acc + r * kAccs + 64 + 16 * g, sum[r][1]);
        }
    }
    template <int n16, int R>
    TERRACE_INLINE void direct_int16(const uint8_t* tile, size_t stride, const uint8_t* act,
                                     int32_t* acc) {
        direct_group<n16, R>(tile, stride, act, 0, true, acc);
        for (int g = 1; g < 4; ++g)
            direct_group<n16, R>(tile, stride, act, g, false, acc);
    }
    template <int n16>
    TERRACE_INLINE void decode_int16(const uint8_t* tile, size_t stride, void* out) {
        auto* to = static_cast<__m512i*>(out);  // [group][row tile][V0, V1]
        for (int g = 0; g < 4; ++g) {
            const trellis::ZmmGroup& z = trellis::kZmm<n16>.group[g];
            for (int kt = 0; kt < 8; ++kt) {
                __m512i v0, v1;
                states<n16>(tile + kt * stride, z, g == 0, v0, v1);
                _mm512_store_si512(to++, byte_sums(v0));
                _mm512_store_si512(to++, byte_sums(v1));
            }
        }
    }
    template <int R>
    TERRACE_INLINE void dot_int16(const void* sums, const uint8_t* act, int32_t* acc) {
        const auto* s = static_cast<const __m512i*>(sums);
        for (int g = 0; g < 4; g += 2, s += 32) {
            __m512i sum[R][4];
            for (auto& row : sum)
                for (__m512i& x : row)
                    x = _mm512_setzero_si512();
            for (int kt = 0; kt < 8; ++kt) {
                const __m512i w[4] = {
                    _mm512_load_si512(s + 2 * kt), _mm512_load_si512(s + 2 * kt + 1),
                    _mm512_load_si512(s + 16 + 2 * kt), _mm512_load_si512(s + 16 + 2 * kt + 1)};
                for (int r = 0; r < R; ++r) {
                    const __m512i a = act8(act + r * kActInt16 + kt * 32);
                    for (int i = 0; i < 4; ++i)
                        sum[r][i] = _mm512_dpwssd_epi32(sum[r][i], w[i], a);
                }
            }
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < 4; ++i)
                    _mm512_store_si512(acc + r * kAccs + 64 * (i & 1) + 16 * (g + i / 2),
                                       sum[r][i]);
        }
    }

    // acc: 8 vectors of [column][8 partial sums] x 2, columns ascending. Adds elements i and i + 2
    // of each 128-bit quarter, then i and i + 1, then the column's two quarters.
    TERRACE_INLINE __m512i pair32(__m512i x, __m512i y) {
        return _mm512_add_epi32(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
    }
    TERRACE_INLINE __m512i pair64(__m512i x, __m512i y) {
        return _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    }
    TERRACE_INLINE __m512i column_order() {
        // After the last addition: even columns 0 2 4 6, odd 1 3 5 7, then 8 10 12 14, 9 11 13 15.
        return _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    }
    TERRACE_INLINE void reduce_int16(const int32_t* acc, int32_t* columns) {
        __m512i v[8];
        for (int i = 0; i < 8; ++i)
            v[i] = _mm512_load_si512(acc + 16 * i);
        const __m512i lo = pair64(pair32(v[0], v[1]), pair32(v[2], v[3]));
        const __m512i hi = pair64(pair32(v[4], v[5]), pair32(v[6], v[7]));
        const __m512i sum = _mm512_add_epi32(_mm512_shuffle_i32x4(lo, hi, 0x88),
                                             _mm512_shuffle_i32x4(lo, hi, 0xdd));
        _mm512_store_si512(columns, _mm512_permutexvar_epi32(column_order(), sum));
    }

    // ---- many rows: columns in lanes ----
    // Sixteen columns side by side need no reduction per row. The transposition costs 24 shuffles
    // per row tile, once; dot_int16's reduction costs 21 per row and block: even at about 12 rows.
    static constexpr int kColumnRows = 12;
    // One row tile: v[g] and v[4 + g] of group g, [column][q, half] -> [q, half][column_order].
    TERRACE_INLINE void transpose(const __m512i (&v)[8], __m512i* out) {
        __m512i z[2][4];  // [columns below 8, above][p]: elements p | p + 4 | p | p + 4
        for (int i = 0; i < 2; ++i) {
            const __m512i* x = v + 4 * i;
            const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]);
            const __m512i b = _mm512_unpacklo_epi32(x[2], x[3]);
            const __m512i c = _mm512_unpackhi_epi32(x[0], x[1]);
            const __m512i d = _mm512_unpackhi_epi32(x[2], x[3]);
            z[i][0] = _mm512_unpacklo_epi64(a, b);
            z[i][1] = _mm512_unpackhi_epi64(a, b);
            z[i][2] = _mm512_unpacklo_epi64(c, d);
            z[i][3] = _mm512_unpackhi_epi64(c, d);
        }
        for (int p = 0; p < 4; ++p) {
            _mm512_store_si512(out + p, _mm512_shuffle_i32x4(z[0][p], z[1][p], 0x88));
            _mm512_store_si512(out + p + 4, _mm512_shuffle_i32x4(z[0][p], z[1][p], 0xdd));
        }
    }
    template <int n16>
    TERRACE_INLINE void decode_columns(const uint8_t* tile, size_t stride, void* out) {
        auto* to = static_cast<__m512i*>(out);  // [row tile][q, half][16 columns]
        for (int kt = 0; kt < 8; ++kt, to += 8) {
            __m512i v[8];
            for (int g = 0; g < 4; ++g) {
                states<n16>(tile + kt * stride, trellis::kZmm<n16>.group[g], g == 0, v[g],
                            v[4 + g]);
                v[g] = byte_sums(v[g]);
                v[4 + g] = byte_sums(v[4 + g]);
            }
            transpose(v, to);
        }
    }
    // columns [R][16]
    template <int R>
    TERRACE_INLINE void dot_columns(const void* sums, const uint8_t* act, int32_t* columns) {
        const auto* s = static_cast<const __m512i*>(sums);
        __m512i sum[R];
        for (__m512i& x : sum)
            x = _mm512_setzero_si512();
        for (int p = 0; p < 64; ++p) {
            const __m512i w = _mm512_load_si512(s + p);
            for (int r = 0; r < R; ++r) {
                int32_t pair;
                std::memcpy(&pair, act + r * kActInt16 + 4 * p, 4);
                sum[r] = _mm512_dpwssd_epi32(sum[r], w, _mm512_set1_epi32(pair));
            }
        }
        for (int r = 0; r < R; ++r)
            _mm512_store_si512(columns + 16 * r, _mm512_permutexvar_epi32(column_order(), sum[r]));
    }

    // ---- exact values ----
    TERRACE_INLINE __m512 round_half(__m512 v) {
        return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    // See trellis_ymm.h for the constants. 0x78: flip xor (x and mask).
    template <int kCodebook>
    TERRACE_INLINE __m512 half_sum(__m512i s) {
        __m512i x = _mm512_mullo_epi32(
            s, _mm512_set1_epi32(static_cast<int32_t>(kCodebook == 0 ? 0x05517c72u : 0xcbac1fedu)));
        if constexpr (kCodebook == 0) x = _mm512_add_epi32(x, _mm512_set1_epi32(0x03d45aa4));
        const __m512i mask = _mm512_set1_epi32(static_cast<int32_t>(0x81ffe000u));
        const __m512i flip = _mm512_set1_epi32(0x3f6c0000);
        const __m512i hi = _mm512_ternarylogic_epi32(flip, _mm512_srai_epi32(x, 3), mask, 0x78);
        const __m512i lo = _mm512_ternarylogic_epi32(
            flip, _mm512_srai_epi32(_mm512_slli_epi32(x, 16), 3), mask, 0x78);
        return round_half(_mm512_add_ps(_mm512_castsi512_ps(lo), _mm512_castsi512_ps(hi)));
    }
    TERRACE_INLINE __m512 affine(__m512i sum) {
        return round_half(_mm512_fmadd_ps(_mm512_cvtepi32_ps(sum),
                                          _mm512_set1_ps(0.00676727294921875f),
                                          _mm512_set1_ps(-3.453125f)));
    }
    template <int kCodebook>
    TERRACE_INLINE void values(__m512i v, __m512& even, __m512& odd) {
        if constexpr (kCodebook == 2) v = byte_sums(v);
        const __m512i e = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
        const __m512i o = _mm512_srli_epi32(v, 16);
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
        for (int g = 0; g < 4; ++g) {  // [group][row tile][V0, V1][even, odd][16]
            const trellis::ZmmGroup& z = trellis::kZmm<n16>.group[g];
            for (int kt = 0; kt < 8; ++kt) {
                __m512i v[2];
                states<n16>(tile + kt * stride, z, g == 0, v[0], v[1]);
                for (int i = 0; i < 2; ++i, out += 32) {
                    __m512 even, odd;
                    values<kCodebook>(v[i], even, odd);
                    _mm512_store_ps(out, even);
                    _mm512_store_ps(out + 16, odd);
                }
            }
        }
    }
    template <int R>
    TERRACE_INLINE void dot_f32(const float* w, const uint8_t* act, float* acc) {
        for (int g = 0; g < 4; ++g, w += 512) {
            __m512 sum[R][2];
            for (auto& row : sum)
                row[0] = row[1] = _mm512_setzero_ps();
            for (int kt = 0; kt < 8; ++kt) {
                const float* p = w + 64 * kt;
                const __m512 v[4] = {_mm512_load_ps(p), _mm512_load_ps(p + 16),
                                     _mm512_load_ps(p + 32), _mm512_load_ps(p + 48)};
                for (int r = 0; r < R; ++r) {
                    const uint8_t* a = act + r * kActF32 + kt * 64;
                    const __m512 even = _mm512_castsi512_ps(act8(a));
                    const __m512 odd = _mm512_castsi512_ps(act8(a + 32));
                    sum[r][0] = _mm512_fmadd_ps(v[0], even, sum[r][0]);
                    sum[r][0] = _mm512_fmadd_ps(v[1], odd, sum[r][0]);
                    sum[r][1] = _mm512_fmadd_ps(v[2], even, sum[r][1]);
                    sum[r][1] = _mm512_fmadd_ps(v[3], odd, sum[r][1]);
                }
            }
            for (int r = 0; r < R; ++r) {
                _mm512_store_ps(acc + r * kAccsF32 + 16 * g, sum[r][0]);
                _mm512_store_ps(acc + r * kAccsF32 + 64 + 16 * g, sum[r][1]);
            }
        }
    }
    TERRACE_INLINE __m512 pair32(__m512 x, __m512 y) {
        return _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    }
    TERRACE_INLINE __m512 pair64(__m512 x, __m512 y) {
        const __m512d a = _mm512_castps_pd(x);
        const __m512d b = _mm512_castps_pd(y);
        return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    // Quarters are [q0 v0][q0 v1][q1 v0][q1 v1]: the same tree as Ymm::reduce_f32.
    TERRACE_INLINE void reduce_f32(const float* acc, float* columns) {
        __m512 v[8];
        for (int i = 0; i < 8; ++i)
            v[i] = _mm512_load_ps(acc + 16 * i);
        const __m512 lo = pair64(pair32(v[0], v[1]), pair32(v[2], v[3]));
        const __m512 hi = pair64(pair32(v[4], v[5]), pair32(v[6], v[7]));
        const __m512 sum =
            _mm512_add_ps(_mm512_shuffle_f32x4(lo, hi, 0x88), _mm512_shuffle_f32x4(lo, hi, 0xdd));
        _mm512_store_ps(columns, _mm512_permutexvar_ps(column_order(), sum));
    }
};

}  // namespace terrace::TERRACE_ISA
