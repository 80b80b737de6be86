// Causal depthwise convolution with SiLU over V16 channels, with its state (model spec 3.6 and
// 3.7.2). Included by the isa_*.cpp files only. Taps are summed oldest first, fused. Rows run
// inside a block of 64 channels, so that the last taps stay in L1.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/hyper_rows.h"

namespace terrace::TERRACE_ISA {

inline constexpr int kConvBlock = 64;

// taps[c][j] of up to 64 channels -> w[j][c]; channels beyond `n` are zero.
TERRACE_INLINE void transpose_taps(TypedRun taps, int64_t channel, int n, int kernel,
                                   float (&w)[kMaxTaps][kConvBlock]) {
    alignas(64) float flat[16 * kMaxTaps];
    for (int c0 = 0; c0 < n; c0 += 16) {
        const int here = n - c0 < 16 ? n - c0 : 16;
        for (int i = 0; i < 16 * kernel; i += 16) {
            const int left = here * kernel - i;
            store(flat + i,
                  left > 0 ? load_typed(taps, (channel + c0) * kernel + i, left < 16 ? left : 16)
                           : zero());
        }
        for (int j = 0; j < kernel; ++j)
            for (int c = 0; c < 16; ++c)
                w[j][c0 + c] = flat[c * kernel + j];
    }
}

static void conv_task(const ConvArgs& a) {
    const int history = (a.kernel - 1) * a.dilation;
    for (int c0 = a.begin; c0 < a.end; c0 += kConvBlock) {
        const int n = a.end - c0 < kConvBlock ? a.end - c0 : kConvBlock;
        alignas(64) float w[kMaxTaps][kConvBlock];
        transpose_taps(a.taps, c0, n, a.kernel, w);
        const auto at_time = [&](int t) {  // channels of time t, t < 0 in the state
            return t >= 0 ? a.x + static_cast<size_t>(t) * a.stride + c0
                          : a.state + static_cast<size_t>(history + t) * a.stride + c0;
        };
        for (int r = 0; r < a.rows; ++r) {
            const float* from[kMaxTaps];
            for (int j = 0; j < a.kernel; ++j)
                from[j] = at_time(r - (a.kernel - 1 - j) * a.dilation);
            // Rows are far apart (40 KiB in the real model), beyond the reach of the hardware.
            if (r + 4 < a.rows)
                for (int c = 0; c < n; c += 16)
                    _mm_prefetch(reinterpret_cast<const char*>(at_time(r + 4) + c), _MM_HINT_T0);
            for (int c = 0; c < n; c += 16) {
                const int left = n - c;
                V16 sum = zero();
                for (int j = 0; j < a.kernel; ++j)
                    sum = fma(load_some(from[j] + c, left), load(w[j] + c), sum);
                V16 y = silu(sum);
                const size_t at = static_cast<size_t>(r) * a.stride + static_cast<size_t>(c0 + c);
                if (a.add) y = (load_some(a.base + at, left) + load_some(a.add + at, left)) + y;
                store_some(a.y + at, y, left);
            }
        }
        // Ascending: a row of the state is read (index i + rows) before it is overwritten (i).
        for (int i = 0; i < history; ++i) {
            const float* from = at_time(a.rows - history + i);
            float* to = a.state + static_cast<size_t>(i) * a.stride + c0;
            for (int c = 0; c < n; c += 16)
                store_some(to + c, load_some(from + c, n - c), n - c);
        }
    }
}

static void ple_gate_row(const PleGateArgs& a) {
    const V16 inv_k = set1(inverse_rms(a.key, a.n, a.eps));
    const V16 inv_q = set1(inverse_rms(a.h, a.n, a.eps)), one = set1(1.0f);
    V16 dot = zero();
    for (int i = 0; i < a.n; i += 16) {
        const int left = a.n - i < 16 ? a.n - i : 16;
        const V16 k =
            load_some(a.key + i, left) * inv_k * (one + load_typed(a.norm_key, a.first + i, left));
        const V16 q =
            load_some(a.h + i, left) * inv_q * (one + load_typed(a.norm_query, a.first + i, left));
        dot = fma(k, q, dot);
    }
    const float s = reduce_add(dot) / __builtin_sqrtf(static_cast<float>(a.n));
    const float size = s < 0 ? -s : s;
    const float root = __builtin_sqrtf(size > 1e-6f ? size : 1e-6f);
    const V16 gate = set1(sigmoid1(s > 0 ? root : s < 0 ? -root : 0.0f));
    for (int i = 0; i < a.n; i += 16)
        store_some(a.gated + i, gate * load_some(a.value + i, a.n - i), a.n - i);
    norm_row({a.gated, a.norm_conv, a.first, a.n, a.eps, a.normed});
}

}  // namespace terrace::TERRACE_ISA
