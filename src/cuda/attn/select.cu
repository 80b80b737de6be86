// select_blocks: the exact best `top` blocks of each row, ties to the lower block, ascending.
//
// Keys are the scores' bits in an order-preserving unsigned form (-0 as +0, NaN below everything).
// 1. Bound: every warp of the row contributes its c-th largest lane maximum, c = ceil(top / warps).
//    The least of them has at least `top` keys at or above it. Threads hold interleaved runs of 8
//    keys, so neighbours with high scores are spread out, and few keys are above the bound.
// 2. The keys above the bound are listed in shared memory, and the top-th largest key is found by
//    counting digits of the listed ones. Fewer than `top`: the bound itself is that key. Too many
//    for the list (scores of few values): bisection on all keys.
// 3. Everything above that key and the first of its equals are written in block order.
// A row shared by a cluster has a shorter way (select_shared), which any block can refuse.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_ops.h"
#include "cuda/ptx/cluster.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxCluster = 16, kMinCluster = 8;
constexpr int kPerThread = 4;  // listed keys
constexpr int kListKeys = kPerThread * kThreads;
constexpr int kKept = 16;  // keys a thread keeps in registers, in quads of neighbours
constexpr int kDigitBits = 11;
constexpr int kTies = 1 << (kDigitBits - 1);  // equals at the cut that a cluster sorts out
// Rows of fewer blocks are done by the first block of the cluster: its barriers would cost more.
constexpr int kAloneBlocks = 12 * kThreads;

__device__ __forceinline__ uint32_t key_of(float x) {
    if (x != x) return 1;
    const uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct Shared {
    uint32_t list[kListKeys];
    uint32_t digits[1 << kDigitBits];
    uint2 slots[kListKeys / kMinCluster];  // (key, block), of this block of a cluster
    uint32_t warp_a[2][kWarps], warp_b[kWarps];
    uint32_t slot_a[2][kMaxCluster], slot_b[kMaxCluster];
    uint32_t chosen_above[kMaxCluster], chosen_equal[kMaxCluster];
    uint32_t bound, high, listed, n_chosen, n_own, n_ties;
    uint32_t digit, n_above, n_digit;
};

__device__ __forceinline__ int lane_id() {
    return static_cast<int>(threadIdx.x) & 31;
}
__device__ __forceinline__ int warp_id() {
    return static_cast<int>(threadIdx.x) >> 5;
}

// One row's work as a block sees it: which keys are its own, and sums over the row's blocks.
struct Row {
    const float* scores;
    int n;        // keys
    int members;  // blocks that share the row
    int rank;
    bool kept;     // own keys are in registers
    bool aligned;  // scores are, to 16 bytes
    Shared* s;

    __device__ __forceinline__ uint32_t key(int i) const { return i < n ? key_of(scores[i]) : 0; }
    // Keys i .. i + 3 of a thread.
    __device__ __forceinline__ void load4(int i, uint32_t* k) const {
        if (aligned && i + 3 < n) {
            const float4 v = *reinterpret_cast<const float4*>(scores + i);
            k[0] = key_of(v.x);
            k[1] = key_of(v.y);
            k[2] = key_of(v.z);
            k[3] = key_of(v.w);
            return;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e)
            k[e] = key(i + e);
    }
    // Keys of a round: four per thread of the row's blocks.
    __device__ __forceinline__ int round() const { return 4 * members * kThreads; }
    // Index of this thread's first key in the first round.
    __device__ __forceinline__ int own() const {
        const int run = lane_id() / 2 * members * kWarps + warp_id() * members + rank;
        return run * 8 + lane_id() % 2 * 4;
    }
    __device__ __forceinline__ void barrier() const {
        if (members > 1) {
            cluster_arrive();
            cluster_wait();
        } else {
            __syncthreads();
        }
    }
    // f(key, index) for the block's interleaved share; every lane makes the same number of calls.
    template <class F>
    __device__ __forceinline__ void each(const uint32_t (&keys)[kKept], F f) const {
        if (kept) {
#pragma unroll
            for (int j = 0; j < kKept; ++j)
                if (j / 4 * round() < n) f(keys[j], own() + j / 4 * round() + j % 4);
            return;
        }
        constexpr int kAhead = 2;
        for (int i = own(), from = 0; from < n; from += kAhead * round(), i += kAhead * round()) {
            uint32_t k[4 * kAhead];
#pragma unroll
            for (int j = 0; j < kAhead; ++j)
                load4(i + j * round(), k + 4 * j);
#pragma unroll
            for (int j = 0; j < 4 * kAhead; ++j)
                f(k[j], i + j / 4 * round() + j % 4);
        }
    }
    // Sum over the threads of one block; `turn` alternates between calls.
    __device__ __forceinline__ uint32_t block_total(uint32_t v, int turn) const {
        v = __reduce_add_sync(0xffffffffu, v);
        if (lane_id() == 0) s->warp_a[turn][warp_id()] = v;
        __syncthreads();
        return __reduce_add_sync(0xffffffffu, s->warp_a[turn][lane_id()]);
    }
    __device__ __forceinline__ uint32_t row_total(uint32_t v, int turn) const {
        v = block_total(v, turn);
        if (members == 1) return v;
        if (static_cast<int>(threadIdx.x) < members)
            cluster_store(cluster_address(&s->slot_a[turn][rank], static_cast<int>(threadIdx.x)),
                          v);
        barrier();
        uint32_t sum = 0;
        for (int m = 0; m < members; ++m)
            sum += s->slot_a[turn][m];
        return sum;
    }
};

struct Cut {
    uint32_t key;   // everything above is chosen,
    uint32_t need;  // and so many of its equals, lowest first
};

// The largest key that `top` keys reach. count(k) = number of keys >= k in [low + 1, high]; `low` is
// reached by at least `top`, and none is above `high`.
template <class Count>
__device__ __forceinline__ Cut bisect(uint32_t low, uint32_t high, uint32_t top, Count count) {
    uint32_t beyond = high + 1, n_beyond = 0;
    for (int turn = 0; beyond - low > 1; turn ^= 1) {
        const uint32_t middle = low + (beyond - low) / 2, n = count(middle, turn);
        if (n == top) return {middle - 1, 0};
        if (n > top) {
            low = middle;
        } else {
            beyond = middle;
            n_beyond = n;
        }
    }
    return {low, top - n_beyond};
}

// The same for keys held by the threads of one block, 0 for none; the others are in (low, high] and
// at least `top`. Digits of 11 bits from the highest one in which the keys can differ.
__device__ __forceinline__ Cut count_digits(Shared& s, const uint32_t (&keys)[kPerThread],
                                            uint32_t low, uint32_t high, uint32_t top) {
    const int tid = static_cast<int>(threadIdx.x);
    int shift = max(0, 32 - __clz(static_cast<int>((high - low - 1) | 1)) - kDigitBits);
    int width = kDigitBits;
    uint32_t found = 0;  // digits so far: the key is low + 1 + (found << shift) or a little more
    for (bool first = true;; first = false) {
        s.digits[2 * tid] = s.digits[2 * tid + 1] = 0;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
            const uint32_t v = (keys[j] - low - 1) >> shift;
            if (keys[j] > low && (first || v >> width == found))
                atomicAdd(&s.digits[first ? v : v & ((1u << width) - 1)], 1u);
        }
        __syncthreads();
        // Thread t counts the t-th highest pair of digits.
        const int digit = (1 << kDigitBits) - 1 - 2 * tid;
        const uint32_t n0 = s.digits[digit], n1 = s.digits[digit - 1];
        uint32_t upto = n0 + n1;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const uint32_t v = __shfl_up_sync(0xffffffffu, upto, d);
            if (lane_id() >= d) upto += v;
        }
        if (lane_id() == 31) s.warp_b[warp_id()] = upto;
        __syncthreads();
        upto += __reduce_add_sync(0xffffffffu, lane_id() < warp_id() ? s.warp_b[lane_id()] : 0);
        const uint32_t before = upto - n0 - n1;
        if (before < top && top <= upto) {
            const bool is_first = top <= before + n0;
            s.digit = static_cast<uint32_t>(is_first ? digit : digit - 1);
            s.n_above = is_first ? before : before + n0;
            s.n_digit = is_first ? n0 : n1;
        }
        __syncthreads();
        found = first ? s.digit : found << width | s.digit;
        top -= s.n_above;
        if (s.n_digit == top) return {low + (found << shift), 0};
        if (shift == 0) return {low + 1 + found, top};
        width = min(shift, kDigitBits);
        shift -= width;
    }
}

// The c-th largest of a warp's values, every one counted.
__device__ __forceinline__ uint32_t nth_largest(uint32_t v, int c) {
    if (c == 1) return __reduce_max_sync(0xffffffffu, v);
#pragma unroll
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll
        for (int d = size / 2; d > 0; d /= 2) {
            const uint32_t o = __shfl_xor_sync(0xffffffffu, v, d);
            const bool lower = ((lane_id() & d) == 0) == ((lane_id() & size) == 0);
            v = lower ? min(v, o) : max(v, o);
        }
    return __shfl_sync(0xffffffffu, v, 32 - c);
}

struct Range {
    uint32_t bound, high;  // nothing is above `high`
};
// Of this block's share of the keys.
__device__ __forceinline__ Range block_range(const Row& row, const uint32_t (&keys)[kKept],
                                             uint32_t top) {
    Shared& s = *row.s;
    uint32_t most = 0;
    row.each(keys, [&](uint32_t k, int) { most = max(most, k); });
    const auto warps = static_cast<uint32_t>(row.members * kWarps);
    const auto c = static_cast<int>((top + warps - 1) / warps);
    const uint32_t bound = c <= 32 ? nth_largest(most, c) : 0;
    const uint32_t high = __reduce_max_sync(0xffffffffu, most);
    __syncthreads();
    if (lane_id() == 0) {
        s.warp_a[0][warp_id()] = bound;
        s.warp_b[warp_id()] = high;
    }
    if (threadIdx.x == 0) s.listed = s.n_chosen = s.n_own = s.n_ties = 0;
    __syncthreads();
    return {__reduce_min_sync(0xffffffffu, s.warp_a[0][lane_id()]),
            __reduce_max_sync(0xffffffffu, s.warp_b[lane_id()])};
}

// One slot for each lane that wants one; the order is any.
__device__ __forceinline__ uint32_t take_slot(uint32_t* counter, bool wants) {
    const uint32_t all = __ballot_sync(0xffffffffu, wants);
    if (all == 0) return 0;
    uint32_t at = 0;
    if (lane_id() == 0) at = atomicAdd(counter, static_cast<uint32_t>(__popc(all)));
    return __shfl_sync(0xffffffffu, at, 0) +
           static_cast<uint32_t>(__popc(all & ((1u << lane_id()) - 1)));
}

// put(slot, key, index) for every key of the block's share above `bound`; slots are counted in
// `counter`, in any order.
template <class Put>
__device__ __forceinline__ void list_above(const Row& row, const uint32_t (&keys)[kKept],
                                           uint32_t bound, uint32_t* counter, Put put) {
    if (!row.kept) {
        row.each(keys, [&](uint32_t k, int i) {
            const uint32_t at = take_slot(counter, k > bound);
            if (k > bound) put(at, k, i);
        });
        return;
    }
    uint32_t n = 0;
#pragma unroll
    for (uint32_t k : keys)
        n += k > bound;
    uint32_t upto = n;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t v = __shfl_up_sync(0xffffffffu, upto, d);
        if (lane_id() >= d) upto += v;
    }
    uint32_t at = 0;
    if (lane_id() == 31 && upto > 0) at = atomicAdd(counter, upto);
    at = __shfl_sync(0xffffffffu, at, 31) + upto - n;
    row.each(keys, [&](uint32_t k, int i) {
        if (k > bound) put(at++, k, i);
    });
}

// Raises the first `need` of the keys equal to the cut above it. False, in all threads, if there are
// more equals than there is room for.
__device__ __forceinline__ bool take_first_ties(Shared& s, uint2 (&seen)[kPerThread], Cut cut) {
#pragma unroll
    for (uint2& x : seen) {
        const uint32_t at = take_slot(&s.n_ties, x.x == cut.key);
        if (x.x == cut.key && at < kTies) s.digits[at] = x.y;
    }
    __syncthreads();
    if (s.n_ties > kTies) return false;
#pragma unroll
    for (uint2& x : seen) {
        if (x.x != cut.key) continue;
        uint32_t lower = 0;
        for (uint32_t i = 0; i < s.n_ties; ++i)
            lower += s.digits[i] < x.y;
        if (lower < cut.need) ++x.x;
    }
    return true;
}

// A cluster's short way. Each block lists what is above its own bound and sees all lists; the result
// is exact if no block's bound is above the cut, as everything else is below the bounds. Then each
// block finds the places of its own chosen keys by counting lower ones. False, in all blocks, where
// a list is too long, the lists hold too little, or too many are equal at the cut.
__device__ bool select_shared(const Row& row, const uint32_t (&keys)[kKept], uint32_t top,
                              int32_t* out) {
    Shared& s = *row.s;
    const int tid = static_cast<int>(threadIdx.x), slots = kListKeys / row.members;
    for (int i = tid; i < slots; i += kThreads)
        s.slots[i] = make_uint2(0, 0);
    const Range own = block_range(row, keys, top);
    list_above(row, keys, own.bound, &s.listed, [&](uint32_t at, uint32_t k, int i) {
        if (at < static_cast<uint32_t>(slots))
            s.slots[at] = make_uint2(k, static_cast<uint32_t>(i));
    });
    if (tid == 0) {
        s.bound = own.bound;
        s.high = own.high;
    }
    row.barrier();
    uint2 seen[kPerThread];
    uint32_t listed[kPerThread];
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
        const int i = tid + j * kThreads;
        seen[j] = cluster_load2(cluster_address(&s.slots[i % slots], i / slots));
        listed[j] = seen[j].x;
    }
    if (tid < row.members) {
        s.slot_a[0][tid] = cluster_load(cluster_address(&s.bound, tid));
        s.slot_a[1][tid] = cluster_load(cluster_address(&s.high, tid));
        s.slot_b[tid] = cluster_load(cluster_address(&s.listed, tid));
    }
    __syncthreads();
    cluster_arrive();  // this block has read what it wants of the others
    uint32_t low = 0xffffffffu, bound = 0, high = 0, total = 0, longest = 0;
    for (int m = 0; m < row.members; ++m) {
        low = min(low, s.slot_a[0][m]);
        bound = max(bound, s.slot_a[0][m]);
        high = max(high, s.slot_a[1][m]);
        total += s.slot_b[m];
        longest = max(longest, s.slot_b[m]);
    }
    bool good = longest <= static_cast<uint32_t>(slots) && total >= top;
    if (good) {
        const Cut cut = count_digits(s, listed, low, high, top);
        good = cut.need == 0 ? cut.key >= bound : cut.key > bound;
        if (good && cut.need > 0) good = take_first_ties(s, seen, cut);
        if (good) {
#pragma unroll
            for (int j = 0; j < kPerThread; ++j) {
                const bool chosen = seen[j].x > cut.key;
                const uint32_t at = take_slot(&s.n_chosen, chosen);
                if (chosen) s.list[at] = seen[j].y;
                const bool mine = chosen && (tid + j * kThreads) / slots == row.rank;
                const uint32_t place = take_slot(&s.n_own, mine);
                if (mine) s.digits[kTies + place] = seen[j].y;
            }
            __syncthreads();
            for (auto i = static_cast<uint32_t>(warp_id()); i < s.n_own; i += kWarps) {
                const uint32_t block = s.digits[kTies + i];
                uint32_t lower = 0;
                for (auto j = static_cast<uint32_t>(lane_id()); j < top; j += 32)
                    lower += s.list[j] < block;
                lower = __reduce_add_sync(0xffffffffu, lower);
                if (lane_id() == 0) out[lower] = static_cast<int32_t>(block);
            }
        }
    }
    cluster_wait();
    return good;
}

// The cut of a row of up to four keys per thread of one block: the lowest key is the bound.
__device__ Cut find_cut_of_few(const Row& row, const uint32_t (&keys)[kKept], uint32_t top) {
    Shared& s = *row.s;
    uint32_t least = 0xffffffffu, most = 0;
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
        most = max(most, keys[j]);
        if (keys[j] > 0) least = min(least, keys[j]);
    }
    least = __reduce_min_sync(0xffffffffu, least);
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane_id() == 0) {
        s.warp_a[0][warp_id()] = least;
        s.warp_b[warp_id()] = most;
    }
    __syncthreads();
    least = __reduce_min_sync(0xffffffffu, s.warp_a[0][lane_id()]);
    most = __reduce_max_sync(0xffffffffu, s.warp_b[lane_id()]);
    uint32_t n = 0, few[kPerThread];
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
        few[j] = keys[j];
        n += keys[j] > least;
    }
    n = row.block_total(n, 1);
    if (n <= top) return {least, top - n};
    return count_digits(s, few, least, most, top);
}

// The cut of any row.
__device__ Cut find_cut(const Row& row, const uint32_t (&keys)[kKept], uint32_t top) {
    Shared& s = *row.s;
    const int tid = static_cast<int>(threadIdx.x);
    if (row.members == 1 && row.n <= kListKeys) return find_cut_of_few(row, keys, top);
    Range range = block_range(row, keys, top);
    if (row.members > 1) {
        row.barrier();
        if (tid < row.members) {
            cluster_store(cluster_address(&s.slot_a[0][row.rank], tid), range.bound);
            cluster_store(cluster_address(&s.slot_b[row.rank], tid), range.high);
        }
        row.barrier();
        for (int m = 0; m < row.members; ++m) {
            range.bound = min(range.bound, s.slot_a[0][m]);
            range.high = max(range.high, s.slot_b[m]);
        }
    }
    list_above(row, keys, range.bound, &s.listed, [&](uint32_t at, uint32_t k, int) {
        if (at < kListKeys) s.list[at] = k;
    });
    row.barrier();
    uint32_t listed = s.listed;
    if (row.members > 1) {
        // Lists of several blocks are only counted: the short way has been tried.
        listed = 0;
        for (int m = 0; m < row.members; ++m)
            listed += cluster_load(cluster_address(&s.listed, m));
        row.barrier();
    }
    if (listed <= top) return {range.bound, top - listed};
    if (row.members == 1 && listed <= kListKeys) {
        uint32_t own[kPerThread];
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
            const auto i = static_cast<uint32_t>(tid + j * kThreads);
            own[j] = i < listed ? s.list[i] : 0;
        }
        return count_digits(s, own, range.bound, range.high, top);
    }
    return bisect(range.bound, range.high, top, [&](uint32_t k, int turn) {
        uint32_t n = 0;
        row.each(keys, [&](uint32_t x, int) { n += x >= k; });
        return row.row_total(n, turn);
    });
}

// Keys above and at the cut among `tiles` (up to 32) tiles of 32 keys from `first`: lane j holds
// tile j's bits.
struct Words {
    uint32_t above = 0, equal = 0;
};
__device__ __forceinline__ Words words_of(const Row& row, int first, int tiles, uint32_t cut) {
    Words w;
#pragma unroll 8
    for (int j = 0; j < tiles; ++j) {
        const uint32_t k = row.key(first + 32 * j + lane_id());
        const uint32_t above = __ballot_sync(0xffffffffu, k > cut);
        const uint32_t equal = __ballot_sync(0xffffffffu, k == cut);
        if (lane_id() == j) w = {above, equal};
    }
    return w;
}

// Writes the chosen blocks. Each warp has neighbouring tiles of 32 keys, warps in block order.
__device__ void write_chosen(const Row& row, Cut cut, int32_t* out) {
    Shared& s = *row.s;
    const int tid = static_cast<int>(threadIdx.x), lane = lane_id(), warp = warp_id();
    const int tiles = (row.n + 31) / 32, warps = row.members * kWarps;
    const int each = (tiles + warps - 1) / warps;
    const int first = min((row.rank * kWarps + warp) * each, tiles);
    const int last = min(first + each, tiles);
    Words w;
    uint32_t above = 0, equal = 0;
    for (int t = first; t < last; t += 32) {
        w = words_of(row, 32 * t, min(32, last - t), cut.key);
        above += static_cast<uint32_t>(__popc(w.above));
        equal += static_cast<uint32_t>(__popc(w.equal));
    }
    above = __reduce_add_sync(0xffffffffu, above);
    equal = __reduce_add_sync(0xffffffffu, equal);
    __syncthreads();
    if (lane == 0) {
        s.warp_a[0][warp] = above;
        s.warp_b[warp] = equal;
    }
    __syncthreads();
    above = __reduce_add_sync(0xffffffffu, lane < warp ? s.warp_a[0][lane] : 0);
    equal = __reduce_add_sync(0xffffffffu, lane < warp ? s.warp_b[lane] : 0);
    if (row.members > 1) {
        const uint32_t all_above = __reduce_add_sync(0xffffffffu, s.warp_a[0][lane]);
        const uint32_t all_equal = __reduce_add_sync(0xffffffffu, s.warp_b[lane]);
        if (tid < row.members) {
            cluster_store(cluster_address(&s.chosen_above[row.rank], tid), all_above);
            cluster_store(cluster_address(&s.chosen_equal[row.rank], tid), all_equal);
        }
        row.barrier();
        for (int m = 0; m < row.rank; ++m) {
            above += s.chosen_above[m];
            equal += s.chosen_equal[m];
        }
    }
    for (int t = first; t < last; t += 32) {
        if (last - first > 32) w = words_of(row, 32 * t, min(32, last - t), cut.key);
        // Inclusive sums over the lanes, both counts in one word: each is at most 1024.
        const auto own = static_cast<uint32_t>(__popc(w.above) | __popc(w.equal) << 16);
        uint32_t upto = own;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const uint32_t v = __shfl_up_sync(0xffffffffu, upto, d);
            if (lane >= d) upto += v;
        }
        const uint32_t above_before = above + ((upto - own) & 0xffffu);
        const uint32_t equal_before = equal + ((upto - own) >> 16);
        const uint32_t left = cut.need > equal_before ? cut.need - equal_before : 0;
        uint32_t ties = w.equal;
        while (static_cast<uint32_t>(__popc(ties)) > left)
            ties &= ~(0x80000000u >> __clz(static_cast<int>(ties)));
        uint32_t at = above_before + min(equal_before, cut.need);
        for (uint32_t bits = w.above | ties; bits; bits &= bits - 1)
            out[at++] = 32 * (t + lane) + __ffs(static_cast<int>(bits)) - 1;
        const uint32_t all = __shfl_sync(0xffffffffu, upto, 31);
        above += all & 0xffffu;
        equal += all >> 16;
    }
}

// Computes  the row's `top` best complete blocks, exactly, whatever the scores are.
// Grid and block  rows x cluster, 1024 threads; a cluster shares a long row.
// Shared memory   29 KiB: lists, digits.
// Traffic   the row's scores once from L2, and once more where ties or a single block write them.
// Numerics  integer keys: the result does not depend on any order.
__global__ void __launch_bounds__(kThreads) select_kernel(const SelectBlocksArgs a, int cluster) {
    __shared__ Shared shared;
    pdl_launch();
    const int tid = static_cast<int>(threadIdx.x), r = static_cast<int>(blockIdx.x) / cluster;
    const RowPlace at = place_row(a.step, a.first_row + r);
    Row row;
    row.scores = a.scores.device_pointer() + r * a.stride;
    row.n = (at.pos + 1) / a.block_tokens;
    row.members = row.n <= kAloneBlocks ? 1 : cluster;
    row.rank = cluster > 1 ? cluster_rank() : 0;
    row.kept = row.n <= row.round() * (kKept / 4);
    row.aligned = (reinterpret_cast<uint64_t>(row.scores) & 15) == 0;
    row.s = &shared;
    pdl_wait();
    if (row.rank >= row.members) return;
    int32_t* out = a.blocks.device_pointer() + int64_t{r} * a.top;
    if (tid == 0 && row.rank == 0) a.counts.device_pointer()[r] = min(row.n, a.top);
    if (row.n <= a.top) {
        for (int b = row.rank * kThreads + tid; b < row.n; b += row.members * kThreads)
            out[b] = b;
        return;
    }
    uint32_t keys[kKept] = {};
    if (row.kept) {
#pragma unroll
        for (int j = 0; j < kKept / 4; ++j)
            row.load4(row.own() + j * row.round(), keys + 4 * j);
    }
    const auto top = static_cast<uint32_t>(a.top);
    if (row.members > 1 && select_shared(row, keys, top, out)) return;
    write_chosen(row, find_cut(row, keys, top), out);
}

}  // namespace

Status select_blocks(const Launch& l, const SelectBlocksArgs& a) {
    if (a.rows == 0) return {};
    // Few rows: more blocks for each, as far as they fit on the device side by side.
    const int wanted = a.rows <= 4 ? kMaxCluster : a.rows <= 16 ? kMinCluster : 1;
    const int most = l.info->code.most_cluster, cluster = std::min(wanted, most);
    return start_clusters(l, "select_blocks", select_kernel,
                          dim3(static_cast<unsigned>(a.rows) * static_cast<unsigned>(cluster)),
                          dim3(kThreads), static_cast<unsigned>(cluster), 0, Start::overlapping, a,
                          cluster);
}

}  // namespace terrace::cuda
