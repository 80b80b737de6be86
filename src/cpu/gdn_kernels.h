// The gated delta rule of one head (model spec 3.6): recurrent form for single rows, chunk form for
// prefill. Included by the isa_*.cpp files only.
//
// Chunk form: V' is solved directly from (I + A) V' = beta (V - exp(G) K S), one triangular solve
// instead of two, since chunks of a head run in order anyway. G is summed in double and only
// differences G_i - G_j <= 0 are exponentiated. Every product element has one k-ascending order;
// tiles are a matter of registers.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/attn_reduce.h"
#include "cpu/hyper_rows.h"

namespace terrace::TERRACE_ISA {

// Per-head RMS norm with a plain scale, times sigmoid(z).
TERRACE_INLINE void gdn_output(const GdnTask& a, const float* o, int row) {
    const V16 inv = set1(inverse_rms(o, a.v_dim, a.eps));
    const size_t at = static_cast<size_t>(row) * a.z_stride;
    for (int j = 0; j < a.v_dim; j += 16) {
        const int left = a.v_dim - j < 16 ? a.v_dim - j : 16;
        store_some(a.out + at + j,
                   load_some(o + j, left) * inv * load_typed(a.norm, j, left) *
                       sigmoid(load_some(a.z + at + j, left)),
                   left);
    }
}

// y = x / sqrt(sum x^2 + eps) * factor, zeros up to a multiple of 16.
TERRACE_INLINE void l2_row(const float* x, int n, float eps, float factor, float* y) {
    const V16 inv = set1(factor / __builtin_sqrtf(sum_products(x, x, n) + eps));
    for (int i = 0; i < n; i += 16)
        store(y + i, load_some(x + i, n - i) * inv);
}

template <int kCols>
TERRACE_INLINE void step_columns(const GdnTask& a, const float* q, const float* k, const float* v,
                                 float decay, float beta, int j, float* o) {
    const int left = a.v_dim - j;  // < 16 only with one column
    const auto get = [&](const float* p) { return kCols > 1 ? load(p) : load_some(p, left); };
    V16 dot[kCols], out[kCols];
    for (int c = 0; c < kCols; ++c)
        dot[c] = out[c] = zero();
    for (int i = 0; i < a.k_dim; ++i) {
        const V16 x = set1(k[i]);
        const float* s = a.state + static_cast<size_t>(i) * static_cast<size_t>(a.v_dim) + j;
        for (int c = 0; c < kCols; ++c)
            dot[c] = fma(x, get(s + 16 * c), dot[c]);
    }
    const V16 keep = set1(decay), rate = set1(beta);
    for (int c = 0; c < kCols; ++c)
        dot[c] = rate * fnma(keep, dot[c], get(v + j + 16 * c));
    for (int i = 0; i < a.k_dim; ++i) {
        const V16 x = set1(k[i]), y = set1(q[i]);
        float* s = a.state + static_cast<size_t>(i) * static_cast<size_t>(a.v_dim) + j;
        for (int c = 0; c < kCols; ++c) {
            const V16 next = fma(x, dot[c], get(s + 16 * c) * keep);
            if (kCols > 1)
                store(s + 16 * c, next);
            else
                store_some(s, next, left);
            out[c] = fma(y, next, out[c]);
        }
    }
    for (int c = 0; c < kCols; ++c)
        kCols > 1 ? store(o + j + 16 * c, out[c]) : store_some(o + j, out[c], left);
}

static void gdn_step_task(const GdnTask& a) {
    constexpr int kCols = kTileB == 4 ? 8 : 2;
    const int wide = (a.k_dim + 15) / 16 * 16;
    float* q = a.scratch;
    float* k = q + wide;
    float* o = k + wide;
    for (int r = 0; r < a.rows; ++r) {
        const size_t at = static_cast<size_t>(r) * a.stride;
        l2_row(a.q + at, a.k_dim, a.eps, 1.0f / __builtin_sqrtf(static_cast<float>(a.k_dim)), q);
        l2_row(a.k + at, a.k_dim, a.eps, 1.0f, k);
        const float decay = exp1(a.g[static_cast<size_t>(r) * a.g_stride]);
        const float beta = a.beta[static_cast<size_t>(r) * a.g_stride];
        int j = 0;
        for (; j + 16 * kCols <= a.v_dim; j += 16 * kCols)
            step_columns<kCols>(a, q, k, a.v + at, decay, beta, j, o);
        for (; j < a.v_dim; j += 16)
            step_columns<1>(a, q, k, a.v + at, decay, beta, j, o);
        gdn_output(a, o, r);
    }
}

// ---- small matrix product
// ------------------------------------------------------------------------ c[i][j] = c_scale[i] *
// c[i][j] + sum_k a(i,k) b[k][j]; a(i,k) = a[i*a_row + k*a_k]. Null c_scale: c starts from zero. n
// is a multiple of 16.
struct SmallProduct {
    const float* a;
    size_t a_row, a_k;
    const float* b;
    size_t b_row;
    float* c;
    size_t c_row;
    const float* c_scale;
};

template <int kRows, int kCols>
TERRACE_INLINE void product_tile(const SmallProduct& p, int i, int j, int depth) {
    V16 acc[kRows][kCols];
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kCols; ++c) {
            const float* from = p.c + static_cast<size_t>(i + r) * p.c_row + j + 16 * c;
            acc[r][c] = p.c_scale ? set1(p.c_scale[i + r]) * load(from) : zero();
        }
    const float* a = p.a + static_cast<size_t>(i) * p.a_row;
    const float* b = p.b + j;
    for (int k = 0; k < depth; ++k, a += p.a_k, b += p.b_row) {
        V16 x[kCols];
        for (int c = 0; c < kCols; ++c)
            x[c] = load(b + 16 * c);
        for (int r = 0; r < kRows; ++r) {
            const V16 w = set1(a[static_cast<size_t>(r) * p.a_row]);
            for (int c = 0; c < kCols; ++c)
                acc[r][c] = fma(w, x[c], acc[r][c]);
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kCols; ++c)
            store(p.c + static_cast<size_t>(i + r) * p.c_row + j + 16 * c, acc[r][c]);
}

// One panel of 16 * kCols columns from j for all rows: the panel of b (32 KiB for a state of 128 x
// 128) stays in L1 while the rows pass; rows outermost read it from L2 at half the speed.
template <int kCols, class Columns, class Depth>
TERRACE_INLINE void product_panel(const SmallProduct& p, int rows, int j, Columns columns,
                                  Depth depth) {
    constexpr int kRows = kTileA;
    int i = 0;
    for (; i + kRows <= rows; i += kRows)
        if (j < columns(i + kRows)) product_tile<kRows, kCols>(p, i, j, depth(i + kRows));
    for (; i < rows; ++i)
        if (j < columns(i + 1)) product_tile<1, kCols>(p, i, j, depth(i + 1));
}

// columns(i_end) and depth(i_end) bound the work of a row tile that ends before i_end: triangles
// skip what is zero. Columns up to the end of a panel may be computed beyond that.
template <class Columns, class Depth>
TERRACE_INLINE void product(const SmallProduct& p, int rows, Columns columns, Depth depth) {
    constexpr int kCols = kTileB;
    const int n = columns(rows);
    int j = 0;
    for (; j + 16 * kCols <= n; j += 16 * kCols)
        product_panel<kCols>(p, rows, j, columns, depth);
    for (; j < n; j += 16)
        product_panel<1>(p, rows, j, columns, depth);
}

static void gdn_chunk_task(const GdnTask& a) {
    constexpr int C = kGdnRows;
    const int kw = (a.k_dim + 15) / 16 * 16, vw = (a.v_dim + 15) / 16 * 16;
    const auto skw = static_cast<size_t>(kw), svw = static_cast<size_t>(vw);
    float* q = a.scratch;         // [C][kw] normalised
    float* k = q + C * skw;       // [C][kw]
    float* kd = k + C * skw;      // [C][kw] k times the decay to the chunk's end
    float* kt = kd + C * skw;     // [kw][C]
    float* u = kt + C * skw;      // [C][vw] right-hand side, then V'
    float* o = u + C * svw;       // [C][vw]
    float* ks = o + C * svw;      // [C][vw]
    float* s = ks + C * svw;      // [kw][vw] the state
    float* kk = s + skw * svw;    // [C][C] A
    float* qk = kk + C * C;       // [C][C] P
    float* decay = qk + C * C;    // [C] exp(G_i)
    float* diff = decay + C;      // [C]
    float* end_scale = diff + C;  // [C] broadcast of exp(G_C), for rows of the state
    for (int i = 0; i < kw; ++i)
        for (int j = 0; j < vw; j += 16)
            store(
                s + static_cast<size_t>(i) * svw + j,
                i < a.k_dim
                    ? load_some(a.state + static_cast<size_t>(i) * static_cast<size_t>(a.v_dim) + j,
                                a.v_dim - j)
                    : zero());
    const float q_factor = 1.0f / __builtin_sqrtf(static_cast<float>(a.k_dim));
    for (int r0 = 0; r0 < a.rows; r0 += C) {
        const int n = a.rows - r0 < C ? a.rows - r0 : C;
        double G[C];
        double sum = 0;
        std::memset(kt, 0, C * skw * sizeof(float));
        for (int i = 0; i < n; ++i) {
            const size_t at = static_cast<size_t>(r0 + i) * a.stride, row = static_cast<size_t>(i);
            l2_row(a.q + at, a.k_dim, a.eps, q_factor, q + row * skw);
            l2_row(a.k + at, a.k_dim, a.eps, 1.0f, k + row * skw);
            for (int d = 0; d < a.k_dim; ++d)
                kt[d * C + i] = k[row * skw + static_cast<size_t>(d)];
            sum += static_cast<double>(a.g[static_cast<size_t>(r0 + i) * a.g_stride]);
            G[i] = sum;
            diff[i] = static_cast<float>(sum);
        }
        for (int i = 0; i < n; i += 16)
            store_some(decay + i, exp(load_some(diff + i, n - i)), n - i);

        const auto lower = [](int i_end) { return (i_end + 15) / 16 * 16; };
        const auto inner = [&](int) { return a.k_dim; };
        const auto across = [&](int) { return vw; };
        product({k, skw, 1, kt, C, kk, C, nullptr}, n, lower, inner);
        product({q, skw, 1, kt, C, qk, C, nullptr}, n, lower, inner);
        product({k, skw, 1, s, svw, ks, svw, nullptr}, n, across, inner);
        product({q, skw, 1, s, svw, o, svw, nullptr}, n, across, inner);

        for (int i = 0; i < n; ++i) {
            const float beta = a.beta[static_cast<size_t>(r0 + i) * a.g_stride];
            for (int j = 0; j <= i; ++j)
                diff[j] = static_cast<float>(G[i] - G[j]);
            float* kk_row = kk + i * C;
            float* qk_row = qk + i * C;
            for (int j = 0; j < lower(i + 1); j += 16) {
                const V16 d = exp(load_some(diff + j, i + 1 - j));
                const int strict = i - j < 0 ? 0 : i - j < 16 ? i - j : 16;
                const int with = i + 1 - j < 16 ? i + 1 - j : 16;
                store(kk_row + j,
                      select(first_n(strict), set1(beta) * load(kk_row + j) * d, zero()));
                store(qk_row + j, select(first_n(with), load(qk_row + j) * d, zero()));
            }
            // V'_i = beta (v_i - exp(G_i) k_i S) - sum_{j<i} A_ij V'_j, four columns at a time.
            const float* v = a.v + static_cast<size_t>(r0 + i) * a.stride;
            const auto row = static_cast<size_t>(i);
            for (int c0 = 0; c0 < vw; c0 += 64) {
                V16 acc[4];
                const int cols = (vw - c0) / 16 < 4 ? (vw - c0) / 16 : 4;
                for (int c = 0; c < cols; ++c) {
                    const int at = c0 + 16 * c;
                    acc[c] = set1(beta) * fnma(set1(decay[i]),
                                               load(ks + row * svw + static_cast<size_t>(at)),
                                               load_some(v + at, a.v_dim - at));
                }
                if (cols == 4)
                    for (int j = 0; j < i; ++j) {
                        const V16 w = set1(kk_row[j]);
                        const float* from = u + static_cast<size_t>(j) * svw + c0;
                        for (int c = 0; c < 4; ++c)
                            acc[c] = fnma(w, load(from + 16 * c), acc[c]);
                    }
                else
                    for (int c = 0; c < cols; ++c)
                        for (int j = 0; j < i; ++j)
                            acc[c] =
                                fnma(set1(kk_row[j]),
                                     load(u + static_cast<size_t>(j) * svw + c0 + 16 * c), acc[c]);
                for (int c = 0; c < cols; ++c)
                    store(u + row * svw + static_cast<size_t>(c0 + 16 * c), acc[c]);
            }
        }
        product({qk, C, 1, u, svw, o, svw, decay}, n, across, [](int i_end) { return i_end; });

        for (int j = 0; j < n; ++j)
            diff[j] = static_cast<float>(G[n - 1] - G[j]);
        for (int j = 0; j < n; ++j) {
            const V16 d = set1(exp1(diff[j]));
            for (int i = 0; i < kw; i += 16) {
                const size_t at = static_cast<size_t>(j) * skw + static_cast<size_t>(i);
                store(kd + at, load(k + at) * d);
            }
        }
        for (int i = 0; i < kTileA; ++i)
            end_scale[i] = decay[n - 1];
        for (int i = 0; i < a.k_dim; i += kTileA) {  // the same scale for every row of the state
            const int rows = a.k_dim - i < kTileA ? a.k_dim - i : kTileA;
            product({kd + i, 1, skw, u, svw, s + static_cast<size_t>(i) * svw, svw, end_scale},
                    rows, across, [&](int) { return n; });
        }
        for (int i = 0; i < n; ++i)
            gdn_output(a, o + static_cast<size_t>(i) * svw, r0 + i);
    }
    for (int i = 0; i < a.k_dim; ++i)
        for (int j = 0; j < a.v_dim; j += 16)
            store_some(a.state + static_cast<size_t>(i) * static_cast<size_t>(a.v_dim) + j,
                       load(s + static_cast<size_t>(i) * svw + j), a.v_dim - j);
}

}  // namespace terrace::TERRACE_ISA
