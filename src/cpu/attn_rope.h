// Norm and rotary embedding of one head vector, and the block mean of raw index keys (model spec
// 3.2, 3.4.1, 3.4.2). Included by the isa_*.cpp files only. Angles come from the caller, computed
// in double once per row.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/hyper_rows.h"

namespace terrace::TERRACE_ISA {

static void rope_row(const RopeArgs& a) {
    float* y = a.scratch;
    norm_row({a.x, a.norm, 0, a.n, a.eps, y});
    const int half = a.rope_dims / 2;
    for (int i = 0; i < half; i += 16) {
        const int left = half - i < 16 ? half - i : 16;
        const V16 c = load_some(a.cos_sin + i, left), s = load_some(a.cos_sin + half + i, left);
        const V16 x0 = load_some(y + i, left), x1 = load_some(y + half + i, left);
        store_some(y + i, fnma(x1, s, x0 * c), left);
        store_some(y + half + i, fma(x0, s, x1 * c), left);
    }
    convert_row({y, a.y, a.n, a.is_f32});
}

TERRACE_INLINE V16 load_plane(const void* p, int64_t i, int is_f32, int left) {
    if (is_f32) return load_some(static_cast<const float*>(p) + i, left);
    const auto* h = static_cast<const uint16_t*>(p) + i;
    return left >= 16 ? load_f16(h) : load_f16_n(h, left);
}

static void plane_mean_row(const PlaneMeanArgs& a) {
    const V16 share = set1(1.0f / static_cast<float>(a.rows));
    for (int i = 0; i < a.n; i += 16) {
        const int left = a.n - i < 16 ? a.n - i : 16;
        V16 sum = zero();
        for (int r = 0; r < a.rows; ++r)
            sum = sum + load_plane(a.x, int64_t{r} * a.n + i, a.is_f32, left);
        store_some(a.y + i, sum * share, left);
    }
}

}  // namespace terrace::TERRACE_ISA
