// Row kernels over V16: widening, norms, gated mixing, SwiGLU, weighted sums. Included by the
// isa_*.cpp files only. Sums of squares run over four accumulators, 64 elements a turn, and are
// joined (0+1)+(2+3): the same tree for a row wherever it is.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/op_kernels.h"
#include "cpu/simd_common.h"

namespace terrace::TERRACE_ISA {

// Elements i .. i+15, or fewer with zeros behind (n < 16).
TERRACE_INLINE V16 load_typed(TypedRun w, int64_t i, int n = 16) {
    const auto* bytes = static_cast<const uint8_t*>(w.data);
    if (w.dtype == 0) {
        const auto* p = reinterpret_cast<const float*>(bytes + 4 * i);
        return n >= 16 ? load(p) : load_n(p, n);
    }
    const auto* p = reinterpret_cast<const uint16_t*>(bytes + 2 * i);
    if (w.dtype == 1) return n >= 16 ? load_f16(p) : load_f16_n(p, n);
    return n >= 16 ? load_bf16(p) : load_bf16_n(p, n);
}
TERRACE_INLINE V16 load_some(const float* p, int64_t left) {
    return left >= 16 ? load(p) : load_n(p, static_cast<int>(left));
}
TERRACE_INLINE void store_some(float* p, V16 v, int64_t left) {
    if (left >= 16)
        store(p, v);
    else
        store_n(p, v, static_cast<int>(left));
}
TERRACE_INLINE float exp1(float x) {
    return reduce_max(exp(set1(x)));
}
TERRACE_INLINE float sigmoid1(float x) {
    return reduce_max(sigmoid(set1(x)));
}

TERRACE_INLINE float sum_products(const float* x, const float* y, int64_t n) {
    V16 acc[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; ++j)
            acc[j] = fma(load(x + i + 16 * j), load(y + i + 16 * j), acc[j]);
    for (int j = 0; i < n; i += 16, ++j)
        acc[j] = fma(load_some(x + i, n - i), load_some(y + i, n - i), acc[j]);
    return reduce_add((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

TERRACE_INLINE float inverse_rms(const float* x, int64_t n, float eps) {
    const float mean = sum_products(x, x, n) / static_cast<float>(n);
    return 1.0f / __builtin_sqrtf(mean + eps);
}

static void widen_rows(const WidenArgs& a) {
    for (int64_t i = 0; i < a.n; i += 16) {
        const int left = a.n - i < 16 ? static_cast<int>(a.n - i) : 16;
        store_some(a.y + i, load_typed(a.src, a.first + i, left), left);
    }
}

static void norm_row(const NormArgs& a) {
    const V16 inv = set1(inverse_rms(a.x, a.n, a.eps)), one = set1(1.0f);
    for (int i = 0; i < a.n; i += 16) {
        const int left = a.n - i < 16 ? a.n - i : 16;
        store_some(a.y + i,
                   load_some(a.x + i, left) * inv * (one + load_typed(a.w, a.first + i, left)),
                   left);
    }
}

static void mix_row(const MixArgs& a) {
    const V16 share = set1(1.0f / static_cast<float>(a.streams));
    for (int i = 0; i < a.count; i += 16) {
        const int left = a.count - i < 16 ? a.count - i : 16;
        V16 sum = zero();
        for (int s = 0; s < a.streams; ++s) {
            const size_t at = static_cast<size_t>(s) * a.stride + static_cast<size_t>(i);
            sum = fma(sigmoid(load_some(a.g + at, left)), load_some(a.n + at, left), sum);
        }
        store_some(a.x + i, sum * share, left);
    }
}

static void unary_row(const UnaryArgs& a) {
    const V16 scale = set1(a.a);
    for (int64_t i = 0; i < a.n; i += 16) {
        const V16 x = load_some(a.x + i, a.n - i) * scale;
        const V16 y = a.op == Unary::silu ? silu(x) : set1(2.0f) * sigmoid(x);
        store_some(a.y + i, y, a.n - i);
    }
}

static void axpy_row(const AxpyArgs& a) {
    const V16 f = set1(a.a);
    for (int64_t i = 0; i < a.n; i += 16)
        store_some(a.y + i, fma(f, load_some(a.x + i, a.n - i), load_some(a.y + i, a.n - i)),
                   a.n - i);
}

static void swiglu_row(const SwigluArgs& a) {
    for (int i = 0; i < a.n; i += 16)
        store_some(a.y + i, silu(load_some(a.gate + i, a.n - i)) * load_some(a.up + i, a.n - i),
                   a.n - i);
}

static void combine_row(const CombineArgs& a) {
    for (int i = 0; i < a.n; i += 16) {
        V16 sum = zero();
        for (int j = 0; j < a.n_terms; ++j)
            sum = fma(set1(a.w[j]), load_some(a.x[j] + i, a.n - i), sum);
        store_some(a.y + i, sum, a.n - i);
    }
}

static void convert_row(const ConvertArgs& a) {
    for (int64_t i = 0; i < a.n; i += 16) {
        const V16 x = load_some(a.x + i, a.n - i);
        if (a.is_f32)
            store_some(static_cast<float*>(a.y) + i, x, a.n - i);
        else if (a.n - i >= 16)
            store_f16(static_cast<uint16_t*>(a.y) + i, x);
        else
            store_f16_n(static_cast<uint16_t*>(a.y) + i, x, static_cast<int>(a.n - i));
    }
}

}  // namespace terrace::TERRACE_ISA
