// SPDX-License-Identifier: MIT
#include "exl3/viterbi.h"

// GCC 12 takes the deliberately undefined sources inside its own AVX-512 header for defects.
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <limits>

#include "base/cpu_features.h"
#include "base/error.h"
#include "exl3/decode.h"
#include "exl3/trellis.h"

namespace terrace {
namespace {

constexpr int kLanes = 16;  // outgoing nodes per block: one cache line of values, of costs

// One position. Edges are states s = h << (16 - out_bits) | o, from node s >> in_bits to node o.
//   next[o] = min over h of cost[s >> in_bits] + (value(s) - target)^2;  back[o] = that h, lowest
//   on ties
// Every kernel does subtract, multiply, add in this order without fusing, hence equal results.
struct Step {
    const float* cost;    // [2^(16 - in_bits)], readable for kLanes more
    const float* values;  // SearchTables::blocked(out_bits)
    float target;
    int in_bits;
    int out_bits;
    float* next;    // [2^(16 - out_bits)]
    uint8_t* back;  // [2^(16 - out_bits)]

    int blocks() const { return (1 << (16 - out_bits)) / kLanes; }
    int choices() const { return 1 << out_bits; }
    // Distance between the costs of one outgoing node for neighbouring h.
    int cost_stride() const { return 1 << (16 - out_bits - in_bits); }
};

void step_plain(const Step& s) {
    const float* values = s.values;
    for (int block = 0; block < s.blocks(); ++block) {
        float best[kLanes];
        std::fill(best, best + kLanes, std::numeric_limits<float>::infinity());
        int best_h[kLanes] = {};
        for (int h = 0; h < s.choices(); ++h, values += kLanes) {
            const float* const cost =
                s.cost + h * s.cost_stride() + ((block * kLanes) >> s.in_bits);
            for (int l = 0; l < kLanes; ++l) {
                const float d = values[l] - s.target;
                const float candidate = cost[l >> s.in_bits] + d * d;
                if (candidate < best[l]) {
                    best[l] = candidate;
                    best_h[l] = h;
                }
            }
        }
        for (int l = 0; l < kLanes; ++l) {
            s.next[block * kLanes + l] = best[l];
            s.back[block * kLanes + l] = static_cast<uint8_t>(best_h[l]);
        }
    }
}

// InBits: in_bits, or 4 for 4 and more, where all lanes of a block come from one node.
template <int InBits>
__attribute__((target("avx2"))) void step_avx2(const Step& s) {
    const __m256 target = _mm256_set1_ps(s.target);
    const __m256i pick0 = InBits == 2   ? _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)
                          : InBits == 1 ? _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)
                                        : _mm256_setzero_si256();
    const __m256i pick1 = InBits == 2   ? _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3)
                          : InBits == 1 ? _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)
                                        : _mm256_setzero_si256();
    const __m256i one = _mm256_set1_epi32(1);
    // Bytes 0, 4, 8, 12 of each half first, for packing sixteen int32 into bytes.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const int choices = s.choices();
    const int stride = s.cost_stride();
    const float* values = s.values;
    for (int block = 0; block < s.blocks(); ++block) {
        const float* cost = s.cost + ((block * kLanes) >> s.in_bits);
        __m256 best0 = _mm256_set1_ps(std::numeric_limits<float>::infinity());
        __m256 best1 = best0;
        __m256i h = _mm256_setzero_si256(), h0 = h, h1 = h;
        for (int i = 0; i < choices; ++i, values += kLanes, cost += stride) {
            __m256 c0, c1;
            if constexpr (InBits >= 4) {
                c0 = c1 = _mm256_broadcast_ss(cost);
            } else if constexpr (InBits == 3) {
                c0 = _mm256_broadcast_ss(cost);
                c1 = _mm256_broadcast_ss(cost + 1);
            } else {
                const __m256 c = _mm256_loadu_ps(cost);
                c0 = _mm256_permutevar8x32_ps(c, pick0);
                c1 = _mm256_permutevar8x32_ps(c, pick1);
            }
            const __m256 d0 = _mm256_sub_ps(_mm256_loadu_ps(values), target);
            const __m256 d1 = _mm256_sub_ps(_mm256_loadu_ps(values + 8), target);
            const __m256 e0 = _mm256_add_ps(c0, _mm256_mul_ps(d0, d0));
            const __m256 e1 = _mm256_add_ps(c1, _mm256_mul_ps(d1, d1));
            const __m256 less0 = _mm256_cmp_ps(e0, best0, _CMP_LT_OQ);
            const __m256 less1 = _mm256_cmp_ps(e1, best1, _CMP_LT_OQ);
            best0 = _mm256_min_ps(e0, best0);
            best1 = _mm256_min_ps(e1, best1);
            h0 = _mm256_blendv_epi8(h0, h, _mm256_castps_si256(less0));
            h1 = _mm256_blendv_epi8(h1, h, _mm256_castps_si256(less1));
            h = _mm256_add_epi32(h, one);
        }
        _mm256_storeu_ps(s.next + block * kLanes, best0);
        _mm256_storeu_ps(s.next + block * kLanes + 8, best1);
        const __m256i words = _mm256_packus_epi32(h0, h1);
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, words), order);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(s.back + block * kLanes),
                         _mm256_castsi256_si128(bytes));
    }
}

template <int InBits>
__attribute__((target("avx512f,avx512bw,avx512vl"))) void step_avx512(const Step& s) {
    const __m512 target = _mm512_set1_ps(s.target);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i pick = _mm512_srli_epi32(lane, InBits);
    const __m512i one = _mm512_set1_epi32(1);
    const int choices = s.choices();
    const int stride = s.cost_stride();
    const float* values = s.values;
    for (int block = 0; block < s.blocks(); ++block) {
        const float* cost = s.cost + ((block * kLanes) >> s.in_bits);
        __m512 best = _mm512_set1_ps(std::numeric_limits<float>::infinity());
        __m512i h = _mm512_setzero_si512(), best_h = h;
        for (int i = 0; i < choices; ++i, values += kLanes, cost += stride) {
            __m512 c;
            if constexpr (InBits >= 4)
                c = _mm512_set1_ps(*cost);
            else
                c = _mm512_permutexvar_ps(pick, _mm512_loadu_ps(cost));
            const __m512 d = _mm512_sub_ps(_mm512_loadu_ps(values), target);
            const __m512 e = _mm512_add_ps(c, _mm512_mul_ps(d, d));
            const __mmask16 less = _mm512_cmp_ps_mask(e, best, _CMP_LT_OQ);
            best = _mm512_min_ps(e, best);
            best_h = _mm512_mask_mov_epi32(best_h, less, h);
            h = _mm512_add_epi32(h, one);
        }
        _mm512_storeu_ps(s.next + block * kLanes, best);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(s.back + block * kLanes),
                         _mm512_cvtepi32_epi8(best_h));
    }
}

void step(SearchKernel kernel, const Step& s) {
    using Function = void (*)(const Step&);
    static constexpr Function kAvx2[] = {step_avx2<1>, step_avx2<2>, step_avx2<3>, step_avx2<4>};
    static constexpr Function kAvx512[] = {step_avx512<1>, step_avx512<2>, step_avx512<3>,
                                           step_avx512<4>};
    const int variant = std::min(s.in_bits, 4) - 1;
    switch (kernel) {
        case SearchKernel::avx512:
            return kAvx512[variant](s);
        case SearchKernel::avx2:
            return kAvx2[variant](s);
        case SearchKernel::plain:
            return step_plain(s);
    }
}

}  // namespace

SearchKernel best_search_kernel() {
    const CpuFeatures& cpu = cpu_features();
    if (cpu.avx512) return SearchKernel::avx512;
    return cpu.avx2 ? SearchKernel::avx2 : SearchKernel::plain;
}

SearchTables::SearchTables(int n16, Codebook codebook)
    : n16_(n16), codebook_(codebook), low_bits_(n16 / 16) {
    TERRACE_CHECK(n16 >= 16 && n16 <= 128 && n16 % 8 == 0);
    const uint16_t* const code = code_table(codebook);
    for (int bits = low_bits_; bits <= (n16 + 15) / 16; ++bits) {
        std::vector<float>& table = blocked_[static_cast<size_t>(bits - low_bits_)];
        table.reserve(65536);
        for (int block = 0; block < (1 << (16 - bits)); block += kLanes)
            for (int h = 0; h < (1 << bits); ++h)
                for (int l = 0; l < kLanes; ++l)
                    table.push_back(f16_to_f32(code[h << (16 - bits) | (block + l)]));
    }
}

TileSearch::TileSearch(const SearchTables& tables, int positions, SearchKernel kernel)
    : tables_(tables), positions_(positions), kernel_(kernel) {
    TERRACE_CHECK(positions >= 32 && positions % 2 == 0);
    const int n16 = tables.n16();
    // Pass 1 looks at 256 ring bits on either side of position 0. A state is 16 bits, and surviving
    // paths merge within a few state lengths, so longer windows find the same node (measured).
    half_window_ = std::min(positions / 2, (256 * 16 + n16 - 1) / n16);
    for (int t = 0; t <= positions; ++t)
        bits_.push_back(static_cast<uint8_t>(new_bits(n16, t % positions)));
    const int low = n16 / 16;
    back_stride_ = size_t{1} << (16 - low);
    cost_.resize(back_stride_ + kLanes);
    next_.resize(back_stride_ + kLanes);
    back_.resize(back_stride_ * static_cast<size_t>(positions));
}

void TileSearch::forward(const float* target, int start, int count, uint32_t first_node) {
    const float others = first_node == kAnyNode ? 0.0f : std::numeric_limits<float>::infinity();
    std::fill(cost_.begin(), cost_.end(), others);
    if (first_node != kAnyNode) cost_[first_node] = 0.0f;
    for (int i = 0; i < count; ++i) {
        const int p = (start + i) % positions_;
        const int out_bits = bits_[static_cast<size_t>(p) + 1];
        // What comes before position 0 is never walked back to: one row takes it all, in cache.
        const int row = start + i < positions_ && start != 0 ? 0 : p;
        step(kernel_,
             Step{cost_.data(), tables_.blocked(out_bits), target[p], bits_[static_cast<size_t>(p)],
                  out_bits, next_.data(), back_.data() + back_stride_ * static_cast<size_t>(row)});
        cost_.swap(next_);
    }
}

// Follows back pointers from the node after position `last` over `count` positions, storing states
// when asked; returns the node entering the earliest of them.
uint32_t TileSearch::walk_back(int last, int count, uint32_t node, uint16_t* states) const {
    for (int p = last; p > last - count; --p) {
        const auto at = static_cast<size_t>(p);
        const uint32_t dropped = back_[back_stride_ * at + node];
        const uint32_t state = dropped << (16 - bits_[at + 1]) | node;
        if (states) states[p] = static_cast<uint16_t>(state);
        node = state >> bits_[at];
    }
    return node;
}

float TileSearch::encode(const float* target, uint16_t* states) {
    // Pass 1, free at both ends, only to learn which node a good path enters position 0 through.
    forward(target, positions_ - half_window_, 2 * half_window_, kAnyNode);
    const int last = half_window_ - 1;
    const auto nodes = std::ptrdiff_t{1} << (16 - bits_[static_cast<size_t>(last) + 1]);
    const auto end = std::min_element(cost_.begin(), cost_.begin() + nodes) - cost_.begin();
    const uint32_t entry = walk_back(last, half_window_, static_cast<uint32_t>(end), nullptr);

    // Pass 2, that node forced at both ends, which makes the ring close.
    forward(target, 0, positions_, entry);
    const float error = cost_[entry];
    const uint32_t closed = walk_back(positions_ - 1, positions_, entry, states);
    TERRACE_CHECK(closed == entry);
    return error;
}

}  // namespace terrace
