// Dense matrix product with row-major weights in bf16, f16 or f32 and fp32 activations.
//
// Order of the sum of one result: one V16 accumulator, element i takes k = i, i + 16, i + 32 .. by
// fma, a partial last step counts zeros; then the tree of reduce_add. So a result depends on its
// own row of weights and of x alone. Blocks of outputs and rows only share loads and conversions.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/kernels.h"
#include "cpu/simd_common.h"

namespace terrace::TERRACE_ISA {

struct Bf16Weights {
    using Element = uint16_t;
    TERRACE_INLINE V16 get(const uint16_t* p) { return load_bf16(p); }
    TERRACE_INLINE V16 get_n(const uint16_t* p, int n) { return load_bf16_n(p, n); }
};
struct F16Weights {
    using Element = uint16_t;
    TERRACE_INLINE V16 get(const uint16_t* p) { return load_f16(p); }
    TERRACE_INLINE V16 get_n(const uint16_t* p, int n) { return load_f16_n(p, n); }
};
struct F32Weights {
    using Element = float;
    TERRACE_INLINE V16 get(const float* p) { return load(p); }
    TERRACE_INLINE V16 get_n(const float* p, int n) { return load_n(p, n); }
};

// O outputs times R rows.
template <class W, int O, int R>
void dense_tile(const DenseArgs& d, int o, int r) {
    const typename W::Element* w[O];
    const float* x[R];
    for (int i = 0; i < O; ++i)
        w[i] =
            static_cast<const typename W::Element*>(d.w) + static_cast<size_t>(o + i) * d.w_stride;
    for (int j = 0; j < R; ++j)
        x[j] = d.x + static_cast<size_t>(r + j) * d.x_stride;
    V16 acc[O][R];
    for (auto& row : acc)
        for (V16& v : row)
            v = zero();
    int k = 0;
    for (; k + 16 <= d.in; k += 16) {
        V16 xs[R];
        for (int j = 0; j < R; ++j)
            xs[j] = load(x[j] + k);
        for (int i = 0; i < O; ++i) {
            const V16 wv = W::get(w[i] + k);
            for (int j = 0; j < R; ++j)
                acc[i][j] = fma(wv, xs[j], acc[i][j]);
        }
    }
    if (const int left = d.in - k; left > 0)
        for (int i = 0; i < O; ++i) {
            const V16 wv = W::get_n(w[i] + k, left);
            for (int j = 0; j < R; ++j)
                acc[i][j] = fma(wv, load_n(x[j] + k, left), acc[i][j]);
        }
    for (int j = 0; j < R; ++j)
        for (int i = 0; i < O; ++i)
            d.y[static_cast<size_t>(r + j) * d.y_stride + static_cast<size_t>(o + i)] =
                reduce_add(acc[i][j]);
}

template <class W, int R>
TERRACE_INLINE void dense_outputs(const DenseArgs& d, int r) {
    constexpr int O = R == 1 ? kDenseOutputs1 : kDenseOutputs;
    int o = d.out_begin;
    for (; o + O <= d.out_end; o += O)
        dense_tile<W, O, R>(d, o, r);
    for (; o < d.out_end; ++o)
        dense_tile<W, 1, R>(d, o, r);
}

template <class W>
void dense(const DenseArgs& all) {
    // Rows and outputs in chunks whose x and w stay in the second-level cache together.
    constexpr size_t kChunkBytes = 128 * 1024;
    const size_t in = static_cast<size_t>(all.in > 0 ? all.in : 1);
    int chunk = static_cast<int>(kChunkBytes / (in * sizeof(typename W::Element)));
    if (chunk < 4 * kDenseOutputs || all.rows <= kDenseRows) chunk = 4 * kDenseOutputs;
    for (int o = all.out_begin; o < all.out_end; o += chunk) {
        DenseArgs d = all;
        d.out_begin = o;
        d.out_end = o + chunk < all.out_end ? o + chunk : all.out_end;
        int r = 0;
        for (; r + kDenseRows <= d.rows; r += kDenseRows)
            dense_outputs<W, kDenseRows>(d, r);
        for (; r < d.rows; ++r)
            dense_outputs<W, 1>(d, r);
    }
}

constexpr DenseKernels dense_kernels() {
    DenseKernels k;
    k.bf16 = dense<Bf16Weights>;
    k.f16 = dense<F16Weights>;
    k.f32 = dense<F32Weights>;
    return k;
}

}  // namespace terrace::TERRACE_ISA
