// Softmax attention of one row over the tokens of its pages (model spec 3.4.5). Included by the
// isa_*.cpp files only.
//
// One running-softmax update per page, pages ascending: scores of the page's tokens, page maximum,
// weights, then acc = acc * alpha + sum_t w_t v_t with t ascending; acc, m and l stay unnormalised
// in f32. A head's bits depend on its own query and the token list only: tiles of heads and tokens
// are a matter of registers. Traffic: K and V of the listed tokens once per task.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/attn_reduce.h"
#include "cpu/attn_rope.h"

namespace terrace::TERRACE_ISA {

// Tokens of one page and what the task keeps between pages.
struct AttendState {
    const uint8_t* k[kAttendPage];  // K of the task's KV head; V is half_bytes behind
    int n = 0;
    alignas(64) float m[kAttendHeads], l[kAttendHeads];
    float* q = nullptr;    // [heads][wide], zeros behind head_dim
    float* acc = nullptr;  // [heads][wide]
    float* w = nullptr;    // [heads][kAttendPage] scores, then weights
    int wide = 0;
};

template <bool kF32>
TERRACE_INLINE V16 load_kv(const uint8_t* p, int i, int left) {
    return load_plane(p, i, kF32 ? 1 : 0, left);
}

// <q[h0 + h], k[t0 + t]> for a tile; a pair's order is its vector lanes, then reduce_add.
template <bool kF32, int kTokens, int kHeads>
TERRACE_INLINE void dot_tile(const AttendTask& a, AttendState& s, int t0, int h0) {
    V16 acc[kTokens][kHeads];
    for (int t = 0; t < kTokens; ++t)
        for (int h = 0; h < kHeads; ++h)
            acc[t][h] = zero();
    const float* q = s.q + h0 * s.wide;
    const int full = a.head_dim / 16 * 16;
    for (int i = 0; i < full; i += 16) {
        V16 k[kTokens];
        for (int t = 0; t < kTokens; ++t)
            k[t] = load_kv<kF32>(s.k[t0 + t], i, 16);
        for (int h = 0; h < kHeads; ++h) {
            const V16 x = load(q + h * s.wide + i);
            for (int t = 0; t < kTokens; ++t)
                acc[t][h] = fma(x, k[t], acc[t][h]);
        }
    }
    if (full < a.head_dim)
        for (int t = 0; t < kTokens; ++t) {
            const V16 k = load_kv<kF32>(s.k[t0 + t], full, a.head_dim - full);
            for (int h = 0; h < kHeads; ++h)
                acc[t][h] = fma(load(q + h * s.wide + full), k, acc[t][h]);
        }
    if constexpr (kTokens == 4 && kHeads == 4) {
        V16 flat[16];
        for (int t = 0; t < 4; ++t)
            for (int h = 0; h < 4; ++h)
                flat[4 * t + h] = acc[t][h];
        alignas(64) float sums[16];  // [head][token]
        store(sums, reduce16(flat));
        for (int h = 0; h < 4; ++h)
            std::memcpy(s.w + (h0 + h) * kAttendPage + t0, sums + 4 * h, 16);
    } else {
        for (int t = 0; t < kTokens; ++t)
            for (int h = 0; h < kHeads; ++h)
                s.w[(h0 + h) * kAttendPage + t0 + t] = reduce_add(acc[t][h]);
    }
}

template <bool kF32>
TERRACE_INLINE void page_dots(const AttendTask& a, AttendState& s) {
    const int bytes = a.head_dim * (kF32 ? 4 : 2);
    for (int t = 0; t < s.n; t += kTileA) {
        // K two tiles ahead, V of this tile: V is read when the page's weights are known.
        for (int u = t; u < t + kTileA && u < s.n; ++u)
            for (int b = 0; b < bytes; b += 64) {
                _mm_prefetch(reinterpret_cast<const char*>(s.k[u] + a.half_bytes + b), _MM_HINT_T0);
                if (u + 2 * kTileA < s.n)
                    _mm_prefetch(reinterpret_cast<const char*>(s.k[u + 2 * kTileA] + b),
                                 _MM_HINT_T0);
            }
        int h = 0;
        if (t + kTileA <= s.n) {
            for (; h + kTileB <= a.n_heads; h += kTileB)
                dot_tile<kF32, kTileA, kTileB>(a, s, t, h);
            for (; h < a.n_heads; ++h)
                dot_tile<kF32, kTileA, 1>(a, s, t, h);
        } else {
            for (int u = t; u < s.n; ++u) {
                for (h = 0; h + kTileB <= a.n_heads; h += kTileB)
                    dot_tile<kF32, 1, kTileB>(a, s, u, h);
                for (; h < a.n_heads; ++h)
                    dot_tile<kF32, 1, 1>(a, s, u, h);
            }
        }
    }
}

// acc[h0..][i..] over the page's tokens for a tile of heads and 16-wide columns.
template <bool kF32, int kHeads, int kCols>
TERRACE_INLINE void value_tile(const AttendTask& a, AttendState& s, const float* alpha, int h0,
                               int i) {
    V16 acc[kHeads][kCols];
    for (int h = 0; h < kHeads; ++h)
        for (int c = 0; c < kCols; ++c)
            acc[h][c] = load(s.acc + (h0 + h) * s.wide + i + 16 * c) * set1(alpha[h0 + h]);
    const int left = a.head_dim - i;  // < 16 only in a tile of one column
    for (int t = 0; t < s.n; ++t) {
        const uint8_t* v = s.k[t] + a.half_bytes;
        V16 x[kCols];
        for (int c = 0; c < kCols; ++c)
            x[c] = load_kv<kF32>(v, i + 16 * c, kCols > 1 ? 16 : left);
        for (int h = 0; h < kHeads; ++h) {
            const V16 w = set1(s.w[(h0 + h) * kAttendPage + t]);
            for (int c = 0; c < kCols; ++c)
                acc[h][c] = fma(w, x[c], acc[h][c]);
        }
    }
    for (int h = 0; h < kHeads; ++h)
        for (int c = 0; c < kCols; ++c)
            store(s.acc + (h0 + h) * s.wide + i + 16 * c, acc[h][c]);
}

template <bool kF32>
static void attend_page(const AttendTask& a, AttendState& s) {
    if (s.n == 0) return;
    page_dots<kF32>(a, s);
    alignas(64) float alpha[kAttendHeads] = {}, page_sum[kAttendHeads] = {};
    const V16 scale = set1(a.scale);
    for (int h = 0; h < a.n_heads; ++h) {
        float* w = s.w + h * kAttendPage;
        V16 most = set1(-__builtin_inff());
        for (int t = 0; t < s.n; t += 16) {
            const V16 x = load_some(w + t, s.n - t) * scale;
            store_some(w + t, x, s.n - t);
            most = max(most, s.n - t >= 16 ? x : select(first_n(s.n - t), x, most));
        }
        const float page_max = reduce_max(most);
        const float m = s.m[h] > page_max ? s.m[h] : page_max;
        V16 sum = zero();
        for (int t = 0; t < s.n; t += 16) {
            V16 p = exp(load_some(w + t, s.n - t) - set1(m));
            if (s.n - t < 16) p = select(first_n(s.n - t), p, zero());
            store_some(w + t, p, s.n - t);
            sum = sum + p;
        }
        alpha[h] = s.m[h] - m;
        page_sum[h] = reduce_add(sum);
        s.m[h] = m;
    }
    static_assert(kAttendHeads == 16);
    const V16 keep = exp(load(alpha));  // of all heads at once
    store(alpha, keep);
    store(s.l, load(s.l) * keep + load(page_sum));
    constexpr int kCols =
        kTileB == 4 ? 4 : 1;  // 4 heads x 4 columns, or 4 x 1 with half the registers
    for (int i = 0; i < a.head_dim;) {
        const bool wide = kCols > 1 && i + 16 * kCols <= a.head_dim;
        int h = 0;
        for (; h + 4 <= a.n_heads; h += 4)
            wide ? value_tile<kF32, 4, kCols>(a, s, alpha, h, i)
                 : value_tile<kF32, 4, 1>(a, s, alpha, h, i);
        for (; h < a.n_heads; ++h)
            wide ? value_tile<kF32, 1, kCols>(a, s, alpha, h, i)
                 : value_tile<kF32, 1, 1>(a, s, alpha, h, i);
        i += wide ? 16 * kCols : 16;
    }
    s.n = 0;
}

// Where K of the task's head begins in a block of the sequence: RowSource::block, which must not be
// compiled here, with instructions that other files may not use.
TERRACE_INLINE const uint8_t* block_of(const AttendTask& a, int block) {
    const int page = block / a.blocks_per_page;
    const size_t number =
        static_cast<size_t>(a.table[page]) * static_cast<size_t>(a.blocks_per_page) +
        static_cast<size_t>(block - page * a.blocks_per_page);
    if (a.slots) {
        const int32_t slot = a.slots[number >> a.group_shift];
        if (slot >= 0) {
            const size_t group = size_t{1} << a.group_shift;
            return a.mirror + a.head_offset +
                   (static_cast<size_t>(slot) * group + number % group) * a.extent_bytes;
        }
    }
    return a.base + a.head_offset + number * a.extent_bytes;
}

template <bool kF32>
static void attend_typed(const AttendTask& a) {
    AttendState s;
    s.wide = (a.head_dim + 15) / 16 * 16;
    s.q = a.scratch;
    s.acc = s.q + kAttendHeads * s.wide;
    s.w = s.acc + kAttendHeads * s.wide;
    store(s.l, zero());
    const size_t sums = attend_sums(a.head_dim);
    for (int h = 0; h < a.n_heads; ++h) {
        const float* from = a.sums ? a.sums + static_cast<size_t>(h) * sums : nullptr;
        s.m[h] = from ? from[0] : -__builtin_inff();
        if (from) s.l[h] = from[1];
        for (int i = 0; i < s.wide; i += 16) {
            store(s.q + h * s.wide + i, load_some(a.q + h * a.head_dim + i, a.head_dim - i));
            store(s.acc + h * s.wide + i, from ? load_some(from + 2 + i, a.head_dim - i) : zero());
        }
    }
    const auto list = [&](int block, int tokens) {
        const uint8_t* at = block_of(a, block);
        for (int t = 0; t < tokens; ++t)
            s.k[s.n++] = at + static_cast<size_t>(t) * a.token_bytes;
    };
    // Selected blocks are scattered: of a long context a page has one or two. So their lines are
    // asked for some blocks ahead, into the second level: the first has too few buffers.
    const auto fetch = [&](int i) {
        const uint8_t* at = block_of(a, a.blocks[i]);
        const int bytes = a.head_dim * (kF32 ? 4 : 2);
        for (int t = 0; t < a.block_tokens; ++t, at += a.token_bytes)
            for (int b = 0; b < bytes; b += 64) {
                _mm_prefetch(reinterpret_cast<const char*>(at + b), _MM_HINT_T1);
                _mm_prefetch(reinterpret_cast<const char*>(at + a.half_bytes + b), _MM_HINT_T1);
            }
    };
    constexpr int kAhead = 4;
    if (a.blocks)
        for (int i = 0; i < kAhead && i < a.n_blocks; ++i)
            fetch(i);
    int page = -1;
    for (int i = 0; i < a.n_blocks; ++i) {
        const int block = a.blocks ? a.blocks[i] : a.first_block + i;
        if (a.blocks && i + kAhead < a.n_blocks) fetch(i + kAhead);
        if (block / a.blocks_per_page != page) {
            attend_page<kF32>(a, s);
            page = block / a.blocks_per_page;
        }
        list(block, a.block_tokens);
    }
    if (a.tail_tokens > 0) {
        if (a.tail_block / a.blocks_per_page != page) attend_page<kF32>(a, s);
        list(a.tail_block, a.tail_tokens);
    }
    attend_page<kF32>(a, s);
    if (a.sums_out) {
        for (int h = 0; h < a.n_heads; ++h) {
            float* to = a.sums_out + static_cast<size_t>(h) * sums;
            to[0] = s.m[h];
            to[1] = s.l[h];
            for (int i = 0; i < a.head_dim; i += 16)
                store_some(to + 2 + i, load(s.acc + h * s.wide + i), a.head_dim - i);
        }
        return;
    }
    for (int h = 0; h < a.n_heads; ++h) {
        const V16 inv = set1(s.l[h] > 0 ? 1.0f / s.l[h] : 0.0f);
        for (int i = 0; i < a.head_dim; i += 16) {
            const int left = a.head_dim - i;
            const V16 gate =
                sigmoid(load_some(a.gate + static_cast<size_t>(h) * a.gate_stride + i, left));
            store_some(a.out + h * a.head_dim + i, load(s.acc + h * s.wide + i) * inv * gate, left);
        }
    }
}

static void attend_task(const AttendTask& a) {
    a.is_f32 ? attend_typed<true>(a) : attend_typed<false>(a);
}

// ---- index scores ------------------------------------------------------------------------------
// Four blocks by four heads at a time; heads are padded with zero queries, whose dot is 0 and adds
// nothing. A (row, block) score has one order: lanes, reduce_add, relu, heads ascending.
template <bool kF32>
static void scores_typed(const ScoreArgs& a) {
    const int wide = (a.dim + 15) / 16 * 16, heads = (a.heads + 3) / 4 * 4;
    for (int h = 0; h < heads; ++h)
        for (int i = 0; i < wide; i += 16)
            store(a.scratch + h * wide + i,
                  h < a.heads ? load_some(a.iq + h * a.dim + i, a.dim - i) : zero());
    const size_t key_bytes = static_cast<size_t>(a.dim) * (kF32 ? 4 : 2);
    constexpr int kAtOnce = kTileB == 4 ? 4 : 1;  // blocks whose 4 head sums fit the registers
    for (int b = a.begin; b < a.end; b += 4) {
        const uint8_t* key[4];
        for (int j = 0; j < 4; ++j) {
            const int block = b + j < a.end ? b + j : a.end - 1;
            const int page = block / a.blocks_per_page;
            key[j] = a.pooled +
                     (static_cast<size_t>(a.table[page]) * static_cast<size_t>(a.blocks_per_page) +
                      static_cast<size_t>(block - page * a.blocks_per_page)) *
                         key_bytes;
            // 4 KiB ahead: 16 keys of the real model; the page after may be elsewhere, the
            // hardware then pays once per 64 blocks.
            for (size_t line = 0; line < key_bytes; line += 64)
                _mm_prefetch(reinterpret_cast<const char*>(key[j] + 4096 + line), _MM_HINT_T0);
        }
        __m128 total = _mm_setzero_ps();
        for (int h0 = 0; h0 < heads; h0 += 4) {
            const float* q = a.scratch + h0 * wide;
            V16 acc[16];
            for (int j0 = 0; j0 < 4; j0 += kAtOnce) {
                V16 sum[kAtOnce][4];
                for (int j = 0; j < kAtOnce; ++j)
                    for (int h = 0; h < 4; ++h)
                        sum[j][h] = zero();
                for (int i = 0; i < a.dim; i += 16) {
                    V16 k[kAtOnce];
                    for (int j = 0; j < kAtOnce; ++j)
                        k[j] = load_plane(key[j0 + j], i, kF32 ? 1 : 0, a.dim - i);
                    for (int h = 0; h < 4; ++h) {
                        const V16 x = load(q + h * wide + i);
                        for (int j = 0; j < kAtOnce; ++j)
                            sum[j][h] = fma(x, k[j], sum[j][h]);
                    }
                }
                for (int j = 0; j < kAtOnce; ++j)
                    for (int h = 0; h < 4; ++h)
                        acc[4 * (j0 + j) + h] = sum[j][h];
            }
            alignas(64) float dots[16];  // [head][block]
            store(dots, max(reduce16(acc), zero()));
            for (int h = 0; h < 4; ++h)
                total = _mm_add_ps(total, _mm_load_ps(dots + 4 * h));
        }
        alignas(16) float out[4];
        _mm_store_ps(out, _mm_mul_ps(total, _mm_set1_ps(a.scale)));
        for (int j = 0; j < 4 && b + j < a.end; ++j)
            a.scores[b + j] = out[j];
    }
}

static void scores_task(const ScoreArgs& a) {
    a.is_f32 ? scores_typed<true>(a) : scores_typed<false>(a);
}

}  // namespace terrace::TERRACE_ISA
