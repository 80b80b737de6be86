// Exact selection: the best blocks of a row of scores and the best experts of a row of logits.
// Included by the isa_*.cpp files only. No allocation; O(n) for any distribution.
//
// Order: higher value first, then lower index; -0 equals +0; a NaN is below everything. Floats are
// compared as monotonic 32-bit keys. Blocks: lane-wise maxima of 4096 groups give a lower bound of
// the answer's last score (`top` groups reach it, so `top` elements do); usually little more than
// `top` elements pass it, and only those are sorted out by three radix passes. When too many pass
// (ties), the radix passes read all n scores instead.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/hyper_rows.h"

namespace terrace::TERRACE_ISA {

TERRACE_INLINE uint32_t order_key(float x) {
    if (x != x) return 0;
    uint32_t u;
    const float plus = x + 0.0f;  // -0 becomes +0
    std::memcpy(&u, &plus, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
TERRACE_INLINE float key_value(uint32_t key) {
    const uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}

struct KthKey {
    uint32_t key;   // the k-th largest
    int32_t above;  // how many are larger
};

// k-th largest of key_of(0 .. n-1), 1 <= k <= n: 11, 11 and 10 bits from the top.
template <class KeyOf>
TERRACE_INLINE KthKey kth_largest(KeyOf key_of, int n, int k, uint32_t* histogram) {
    constexpr int kShift[] = {21, 10, 0};
    constexpr uint32_t kMask[] = {2047, 2047, 1023};
    uint32_t prefix = 0, known = 0;
    int32_t above = 0;
    for (int pass = 0; pass < 3; ++pass) {
        std::memset(histogram, 0, 2048 * sizeof(uint32_t));
        for (int i = 0; i < n; ++i) {
            const uint32_t key = key_of(i);
            if ((key & known) == prefix) ++histogram[key >> kShift[pass] & kMask[pass]];
        }
        auto bin = static_cast<int>(kMask[pass]);
        for (;; --bin) {
            const auto here = static_cast<int32_t>(histogram[bin]);
            if (above + here >= k) break;
            above += here;
        }
        prefix |= static_cast<uint32_t>(bin) << kShift[pass];
        known |= kMask[pass] << kShift[pass];
    }
    return {prefix, above};
}

// Ascending indices of the `top` best by key.
template <class KeyOf, class IndexOf>
TERRACE_INLINE void emit_best(KeyOf key_of, IndexOf index_of, int n, int top, uint32_t* histogram,
                              int32_t* out) {
    const KthKey kth = kth_largest(key_of, n, top, histogram);
    int ties = top - kth.above, written = 0;
    for (int i = 0; i < n && written < top; ++i) {
        const uint32_t key = key_of(i);
        if (key > kth.key || (key == kth.key && ties-- > 0)) out[written++] = index_of(i);
    }
}

static void select_task(const SelectArgs& a) {
    uint32_t* histogram = a.scratch;
    uint32_t* keys = histogram + 2048;
    uint32_t* indices = keys + kSelectCandidates;
    auto* maxima = reinterpret_cast<float*>(indices + kSelectCandidates);
    const auto all_key = [&](int i) { return order_key(a.scores[i]); };
    const auto all_index = [](int i) { return i; };
    if (a.n <= kSelectCandidates / 4 || a.top > kSelectGroups / 2)
        return emit_best(all_key, all_index, a.n, a.top, histogram, a.out);

    // Group g = lane l of the vectors of stretch s: g = 16 s + l.
    constexpr int kStretches = kSelectGroups / 16;
    const int vectors = (a.n + 15) / 16;
    int groups = 0;
    for (int s = 0; s < kStretches; ++s) {
        const int first = static_cast<int>(int64_t{vectors} * s / kStretches);
        const int last = static_cast<int>(int64_t{vectors} * (s + 1) / kStretches);
        if (first == last) continue;
        V16 most = set1(-__builtin_inff());
        for (int v = first; v < last; ++v) {
            const int left = a.n - 16 * v;
            const V16 x = load_some(a.scores + 16 * v, left);
            // max keeps its second operand when x is a NaN.
            most = left >= 16 ? max(x, most) : select(first_n(left), max(x, most), most);
        }
        store(maxima + groups, most);
        groups += 16;
    }
    const auto max_key = [&](int i) { return order_key(maxima[i]); };
    const KthKey bound = kth_largest(max_key, groups, a.top, histogram);
    const V16 least = set1(key_value(bound.key));
    int n = 0;
    for (int v = 0; v < vectors; ++v) {
        const int left = a.n - 16 * v;
        uint32_t bits = mask_bits(ge(load_some(a.scores + 16 * v, left), least));
        if (left < 16) bits &= (1u << left) - 1u;
        if (bits == 0) continue;
        if (n + 16 > kSelectCandidates)
            return emit_best(all_key, all_index, a.n, a.top, histogram, a.out);
        for (; bits; bits &= bits - 1) {
            const int i = 16 * v + __builtin_ctz(bits);
            keys[n] = order_key(a.scores[i]);
            indices[n++] = static_cast<uint32_t>(i);
        }
    }
    if (n < a.top)  // the bound was a NaN's key: fewer numbers than `top`
        return emit_best(all_key, all_index, a.n, a.top, histogram, a.out);
    emit_best([&](int i) { return keys[i]; },
              [&](int i) { return static_cast<int32_t>(indices[i]); }, n, a.top, histogram, a.out);
}

// ---- router ------------------------------------------------------------------------------------
static void route_task(const RouteTask& a) {
    // Insertion into the sorted list of the best so far; most logits fail the first compare.
    int count = 0;
    for (int e = 0; e < a.n; ++e) {
        const uint32_t key = order_key(a.logits[e]);
        if (count == a.k && key <= order_key(a.logits[a.ids[count - 1]])) continue;
        int at = count < a.k ? count++ : count - 1;
        for (; at > 0 && key > order_key(a.logits[a.ids[at - 1]]); --at)
            a.ids[at] = a.ids[at - 1];
        a.ids[at] = e;
    }
    const V16 top = set1(a.logits[a.ids[0]]);
    for (int j = 0; j < a.k; ++j)
        a.weights[j] = a.logits[a.ids[j]];
    V16 chosen = zero();
    for (int j = 0; j < a.k; j += 16) {
        V16 p = exp(load_some(a.weights + j, a.k - j) - top);
        if (a.k - j < 16) p = select(first_n(a.k - j), p, zero());
        store_some(a.weights + j, p, a.k - j);
        chosen = chosen + p;
    }
    if (!a.renormalise) {
        chosen = zero();
        for (int e = 0; e < a.n; e += 16) {
            const V16 p = exp(load_some(a.logits + e, a.n - e) - top);
            chosen = chosen + (a.n - e < 16 ? select(first_n(a.n - e), p, zero()) : p);
        }
    }
    const V16 sum = set1(reduce_add(chosen));
    for (int j = 0; j < a.k; j += 16)
        store_some(a.weights + j, load_some(a.weights + j, a.k - j) / sum, a.k - j);
}

}  // namespace terrace::TERRACE_ISA
