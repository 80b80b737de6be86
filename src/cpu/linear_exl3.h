// The EXL3 product around the tile decoders (EXL3 format 2.6, 2.9): input transform and packing,
// the loops over input blocks and column tiles, the output transform. Written once; `L` is Ymm or
// Zmm.
//
// int16 form, mul1 only. A code value is k_inv * S + c (before its own fp16 rounding) with S the
// byte sum, so with integer activations a the block's product is an exact integer:
//   I = sum (S - 510) a,  |I| <= 510 * 32767 * 128 < 2^31        (wrap-around arithmetic on the
//   way) y += (q k_inv) * (float(I) + r * float(sum a)),  r = c / k_inv + 510
// f32 form: fp16 code values times fp32 xh; 8 fma chains per column and block (row pair q, upper or
// lower half of a row tile), combined by a fixed tree. Both add the blocks in ascending order, so
// the bits depend neither on rows, nor on threads, nor on the instruction set.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/kernels.h"
#include "cpu/simd_common.h"

namespace terrace::TERRACE_ISA {

inline constexpr float kHadamardNorm = 0.088388347648f;      // 1 / sqrt(128)
inline constexpr float kMul1Inverse = 0.00676727294921875f;  // fp16 0x1eee = 887 / 131072
inline constexpr float kMul1Rest = -238.0f / 887.0f;         // -3.453125 / k_inv + 510
// Smaller blocks count as zero: below, scale / 32767 would lose bits to the subnormal range.
inline constexpr float kSmallestBlock = 1e-30f;

TERRACE_INLINE void hadamard_input(const Exl3TransformArgs& t, V16 (&v)[8]) {
    for (int i = 0; i < 8; ++i) {
        const int left = t.n_valid - 16 * i;
        const V16 x = left >= 16 ? load(t.x + 16 * i)
                      : left > 0 ? load_n(t.x + 16 * i, left)
                                 : zero();
        v[i] = x * load_f16(t.suh + 16 * i);
    }
    fwht128(v);
    for (V16& x : v)
        x = x * set1(kHadamardNorm);
}

template <class L>
void transform_int16(const Exl3TransformArgs& t) {
    V16 v[8];
    hadamard_input(t, v);
    // As integers, magnitudes order like floats, with infinity and then NaN on top.
    N16 top = as_int(abs(v[0]));
    for (int i = 1; i < 8; ++i)
        top = max(top, as_int(abs(v[i])));
    const int32_t bits = reduce_max_i(top);
    float largest;
    std::memcpy(&largest, &bits, 4);
    float q = 1.0f;
    if (bits >= 0x7f800000)
        q = __builtin_nanf("");  // not finite: the outputs shall say so
    else if (largest >= kSmallestBlock)
        q = largest / 32767.0f;
    alignas(64) int16_t a[128];
    N16 sum = set1_i(0);
    for (int i = 0; i < 8; ++i) {
        const V16 scaled = max(set1(-32767.0f), min(set1(32767.0f), v[i] / set1(q)));
        const N16 n = to_int(scaled);
        sum = add(sum, n);
        store_i16(a + 16 * i, n);
    }
    L::pack_int16(a, t.act);
    t.scale->scale = q;
    t.scale->sum = static_cast<float>(reduce_add_i(sum));
}

template <class L>
void transform_f32(const Exl3TransformArgs& t) {
    V16 v[8];
    hadamard_input(t, v);
    alignas(64) float x[128];
    for (int i = 0; i < 8; ++i)
        store(x + 16 * i, v[i]);
    L::pack_f32(x, t.act);
    *t.scale = ActScale{};
}

TERRACE_INLINE void exl3_finish(const Exl3FinishArgs& f) {
    V16 v[8];
    for (int i = 0; i < 8; ++i)
        v[i] = load(f.sums + 16 * i);
    fwht128(v);
    for (int i = 0; i < 8; ++i) {
        V16 y = (v[i] * set1(kHadamardNorm)) * load_f16(f.svh + 16 * i);
        if (f.bias != nullptr) y = y + load(f.bias + 16 * i);
        const int left = f.n_valid - 16 * i;
        if (left >= 16)
            store(f.y + 16 * i, y);
        else if (left > 0)
            store_n(f.y + 16 * i, y, left);
    }
}

// The tile below in the next input block: 8 row tiles, one block (16 K weights) ahead of its use.
template <int n16>
TERRACE_INLINE void prefetch_tiles(const uint8_t* tile, size_t stride) {
    for (int kt = 0; kt < 8; ++kt)
        for (int line = 0; line < 2 * n16; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(tile + kt * stride + line), _MM_HINT_T0);
}

// Calls tile(block, column tile, address, prefetch address or null) in the order of the sums.
template <int n16, class F>
TERRACE_INLINE void for_tiles(const Exl3GemmArgs& g, F tile) {
    const auto* base = reinterpret_cast<const uint8_t*>(g.trellis);
    const size_t stride = g.row_tile_stride * 2;
    for (int kb = 0; kb < g.n_blocks; ++kb) {
        const uint8_t* block = base + static_cast<size_t>(kb) * 8 * stride;
        const uint8_t* next =
            kb + 1 < g.n_blocks ? block + 8 * stride : reinterpret_cast<const uint8_t*>(g.prefetch);
        for (int b = 0; b < 8; ++b) {
            if (next != nullptr) prefetch_tiles<n16>(next + b * 2 * n16, stride);
            tile(kb, b, block + b * 2 * n16, stride);
        }
    }
}

TERRACE_INLINE void clear_sums(const Exl3GemmArgs& g) {
    std::memset(g.y, 0, static_cast<size_t>(g.rows) * 128 * sizeof(float));
}

TERRACE_INLINE void add_columns(const int32_t* columns, const ActScale& s, float* y) {
    const int32_t centre = 510 * static_cast<int32_t>(s.sum);
    const V16 exact = to_float(sub(load_i(columns), set1_i(centre)));
    const V16 block = fma(set1(kMul1Rest), set1(s.sum), exact);
    store(y, fma(set1(s.scale * kMul1Inverse), block, load(y)));
}

template <class L>
TERRACE_INLINE void add_int16(const int32_t* acc, const ActScale& s, float* y) {
    alignas(64) int32_t columns[16];
    L::reduce_int16(acc, columns);
    add_columns(columns, s, y);
}

template <class L, int n16, int R>
void gemm_direct(const Exl3GemmArgs& g) {
    clear_sums(g);
    alignas(64) int32_t acc[R * L::kAccs];
    const auto* acts = static_cast<const uint8_t*>(g.acts);
    for_tiles<n16>(g, [&](int kb, int b, const uint8_t* tile, size_t stride) {
        const size_t first = static_cast<size_t>(kb) * g.act_stride;
        L::template direct_int16<n16, R>(tile, stride, acts + first * L::kActInt16, acc);
        for (int r = 0; r < R; ++r)
            add_int16<L>(acc + r * L::kAccs, g.scales[first + static_cast<size_t>(r)],
                         g.y + r * 128 + 16 * b);
    });
}

template <class L, int R>
void dot_rows_int16(const void* sums, const uint8_t* act, const ActScale* scales, float* y) {
    alignas(64) int32_t acc[R * L::kAccs];
    L::template dot_int16<R>(sums, act, acc);
    for (int r = 0; r < R; ++r)
        add_int16<L>(acc + r * L::kAccs, scales[r], y + r * 128);
}

template <class L, int n16>
void gemm_decoded(const Exl3GemmArgs& g) {
    clear_sums(g);
    alignas(64) uint8_t sums[L::kSumBytes];
    const auto* acts = static_cast<const uint8_t*>(g.acts);
    for_tiles<n16>(g, [&](int kb, int b, const uint8_t* tile, size_t stride) {
        L::template decode_int16<n16>(tile, stride, sums);
        const size_t first = static_cast<size_t>(kb) * g.act_stride;
        const uint8_t* act = acts + first * L::kActInt16;
        const ActScale* scales = g.scales + first;
        float* y = g.y + 16 * b;
        int r = 0;
        for (; r + 4 <= g.rows; r += 4)
            dot_rows_int16<L, 4>(sums, act + r * L::kActInt16, scales + r, y + r * 128);
        act += r * L::kActInt16;
        if (g.rows - r == 3) dot_rows_int16<L, 3>(sums, act, scales + r, y + r * 128);
        if (g.rows - r == 2) dot_rows_int16<L, 2>(sums, act, scales + r, y + r * 128);
        if (g.rows - r == 1) dot_rows_int16<L, 1>(sums, act, scales + r, y + r * 128);
    });
}

// The same integers with a column per lane, for many rows.
template <class L, int R>
void dot_rows_columns(const void* sums, const uint8_t* act, const ActScale* scales, float* y) {
    alignas(64) int32_t columns[R * 16];
    L::template dot_columns<R>(sums, act, columns);
    for (int r = 0; r < R; ++r)
        add_columns(columns + 16 * r, scales[r], y + r * 128);
}

template <class L, int n16>
void gemm_columns(const Exl3GemmArgs& g) {
    clear_sums(g);
    alignas(64) uint8_t sums[L::kSumBytes];
    const auto* acts = static_cast<const uint8_t*>(g.acts);
    for_tiles<n16>(g, [&](int kb, int b, const uint8_t* tile, size_t stride) {
        L::template decode_columns<n16>(tile, stride, sums);
        const size_t first = static_cast<size_t>(kb) * g.act_stride;
        const uint8_t* act = acts + first * L::kActInt16;
        const ActScale* scales = g.scales + first;
        float* y = g.y + 16 * b;
        int r = 0;
        for (; r + 8 <= g.rows; r += 8)
            dot_rows_columns<L, 8>(sums, act + r * L::kActInt16, scales + r, y + r * 128);
        for (; r + 4 <= g.rows; r += 4)
            dot_rows_columns<L, 4>(sums, act + r * L::kActInt16, scales + r, y + r * 128);
        for (; r < g.rows; ++r)
            dot_rows_columns<L, 1>(sums, act + r * L::kActInt16, scales + r, y + r * 128);
    });
}

template <class L, int R>
void dot_rows_f32(const float* values, const uint8_t* act, float* y) {
    alignas(64) float acc[R * L::kAccsF32];
    alignas(64) float columns[16];
    L::template dot_f32<R>(values, act, acc);
    for (int r = 0; r < R; ++r) {
        L::reduce_f32(acc + r * L::kAccsF32, columns);
        store(y + r * 128, load(y + r * 128) + load(columns));
    }
}

template <class L, int n16, int kCodebook>
void gemm_values(const Exl3GemmArgs& g) {
    clear_sums(g);
    alignas(64) float values[L::kValueBytes / sizeof(float)];
    const auto* acts = static_cast<const uint8_t*>(g.acts);
    for_tiles<n16>(g, [&](int kb, int b, const uint8_t* tile, size_t stride) {
        L::template decode_f32<n16, kCodebook>(tile, stride, values);
        const uint8_t* act = acts + static_cast<size_t>(kb) * g.act_stride * L::kActF32;
        float* y = g.y + 16 * b;
        int r = 0;
        for (; r + 4 <= g.rows; r += 4)
            dot_rows_f32<L, 4>(values, act + r * L::kActF32, y + r * 128);
        act += r * L::kActF32;
        if (g.rows - r == 3) dot_rows_f32<L, 3>(values, act, y + r * 128);
        if (g.rows - r == 2) dot_rows_f32<L, 2>(values, act, y + r * 128);
        if (g.rows - r == 1) dot_rows_f32<L, 1>(values, act, y + r * 128);
    });
}

// ---- choice of the instance
// ----------------------------------------------------------------------
using GemmFn = void (*)(const Exl3GemmArgs&);

template <class L, int n16>
TERRACE_INLINE GemmFn pick_int16(int rows) {
    if constexpr (L::kColumnRows > 0)
        if (rows >= L::kColumnRows) return gemm_columns<L, n16>;
    if constexpr (n16 % 16 == 0) {  // half-integer K is rare: one instance each
        switch (rows) {
            case 1:
                return gemm_direct<L, n16, 1>;
            case 2:
                return gemm_direct<L, n16, 2>;
            case 3:
                return gemm_direct<L, n16, 3>;
            case 4:
                return gemm_direct<L, n16, 4>;
            default:
                break;
        }
    }
    return gemm_decoded<L, n16>;
}
template <class L, int n16>
TERRACE_INLINE GemmFn pick_f32(int codebook) {
    if constexpr (n16 % 16 == 0) {  // half-integer K exists for mul1 only
        if (codebook == 0) return gemm_values<L, n16, 0>;
        if (codebook == 1) return gemm_values<L, n16, 1>;
    }
    return gemm_values<L, n16, 2>;
}

#define TERRACE_FOR_N16(X) \
    X(16) X(24) X(32) X(40) X(48) X(56) X(64) X(72) X(80) X(88) X(96) X(104) X(112) X(120) X(128)

template <class L>
void gemm_int16(const Exl3GemmArgs& g) {
    GemmFn fn = nullptr;
    switch (g.n16) {
#define TERRACE_CASE(n)                \
    case n:                            \
        fn = pick_int16<L, n>(g.rows); \
        break;
        TERRACE_FOR_N16(TERRACE_CASE)
#undef TERRACE_CASE
        default:
            return;
    }
    fn(g);
}
template <class L>
void gemm_f32(const Exl3GemmArgs& g) {
    GemmFn fn = nullptr;
    switch (g.n16) {
#define TERRACE_CASE(n)                  \
    case n:                              \
        fn = pick_f32<L, n>(g.codebook); \
        break;
        TERRACE_FOR_N16(TERRACE_CASE)
#undef TERRACE_CASE
        default:
            return;
    }
    fn(g);
}

inline void finish_block(const Exl3FinishArgs& f) {
    exl3_finish(f);
}

template <class L>
const char* path_int16(int n16, int rows) {
    if (L::kColumnRows > 0 && rows >= L::kColumnRows) return "int16, decoded to columns";
    if (n16 % 16 == 0 && rows <= 4) return "int16, decoded into the product";
    return "int16, decoded to a buffer";
}
inline const char* path_f32(int, int) {
    return "f32, decoded to a buffer";
}

template <class L>
constexpr Exl3Kernels exl3_kernels() {
    Exl3Kernels k;
    k.act_bytes_int16 = L::kActInt16;
    k.act_bytes_f32 = L::kActF32;
    k.transform_int16 = transform_int16<L>;
    k.transform_f32 = transform_f32<L>;
    k.gemm_int16 = gemm_int16<L>;
    k.gemm_f32 = gemm_f32<L>;
    k.finish = finish_block;
    k.path_int16 = path_int16<L>;
    k.path_f32 = path_f32;
    return k;
}

}  // namespace terrace::TERRACE_ISA
