// select_blocks: the exact best `top` blocks of each row, ties to the lower block, ascending.
//
// Keys are the scores' bits in an order-preserving unsigned form (-0 as +0, NaN below everything).
// 1. Bound: every warp of the row contributes its c-th largest lane maximum, c = ceil(top / warps).
//    The least of them has at least `top` keys at or above it. Lanes and warps hold interleaved
//    blocks, so neighbours with high scores are spread out, and few keys are above the bound.
// 2. The keys above the bound are listed in shared memory, and the top-th largest key is found by
//    bisection on the list. Fewer than `top`: the bound itself is that key. Too many for the list
//    (scores of few values): bisection on all keys.
// 3. Everything above that key and the first of its equals are written in block order.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_ops.h"
#include "cuda/attn/attn_plan.h"
#include "cuda/attn/cluster.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxCluster = 16;
constexpr int kListKeys = 4 * kThreads;
// Rows of fewer blocks are done by the first block of the cluster: its barriers would cost more.
constexpr int kAloneBlocks = 12 * kThreads;

__device__ __forceinline__ uint32_t key_of(float x) {
    if (x != x) return 1;
    const uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct Shared {
    uint32_t list[kListKeys];
    uint32_t warp_a[2][kWarps], warp_b[kWarps];
    uint32_t slot_a[2][kMaxCluster], slot_b[kMaxCluster];
    uint32_t chosen_above[kMaxCluster], chosen_equal[kMaxCluster];
    uint32_t listed;
};

// One row's work as a block sees it: which keys are its own, and sums over the row's blocks.
struct Row {
    const float* scores;
    int n;        // keys
    int members;  // blocks that share the row
    int rank;
    Shared* s;

    __device__ __forceinline__ uint32_t key(int i) const { return i < n ? key_of(scores[i]) : 0; }
    __device__ __forceinline__ void barrier() const {
        if (members > 1) {
            cluster_arrive();
            cluster_wait();
        } else {
            __syncthreads();
        }
    }
    // f(key) for the block's interleaved share of the keys; a warp sees 32 neighbours at a time, and
    // every lane the same number of calls.
    template <class F>
    __device__ __forceinline__ void each(F f) const {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        const int warp = static_cast<int>(threadIdx.x) >> 5, step = members * kWarps * 32;
        constexpr int kAhead = 8;
        for (int i = (warp * members + rank) * 32; i < n; i += kAhead * step) {
            uint32_t k[kAhead];
#pragma unroll
            for (int j = 0; j < kAhead; ++j)
                k[j] = key(i + j * step + lane);
#pragma unroll
            for (int j = 0; j < kAhead; ++j)
                f(k[j]);
        }
    }
    // Sum over the threads of one block; `turn` alternates between calls.
    __device__ __forceinline__ uint32_t block_total(uint32_t v, int turn) const {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        const int warp = static_cast<int>(threadIdx.x) >> 5;
        v = __reduce_add_sync(0xffffffffu, v);
        if (lane == 0) s->warp_a[turn][warp] = v;
        __syncthreads();
        return __reduce_add_sync(0xffffffffu, s->warp_a[turn][lane]);
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
        if (n == top) return {middle, 0xffffffffu};
        if (n > top) {
            low = middle;
        } else {
            beyond = middle;
            n_beyond = n;
        }
    }
    return {low, top - n_beyond};
}

__device__ Cut find_cut(const Row& row, uint32_t top) {
    Shared& s = *row.s;
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    uint32_t most = 0;
    row.each([&](uint32_t k) { most = max(most, k); });
    uint32_t bound = 0, high = __reduce_max_sync(0xffffffffu, most);
    const int per_warp =
        (static_cast<int>(top) + row.members * kWarps - 1) / (row.members * kWarps);
    if (per_warp <= 32) {
        for (int i = 0; i < per_warp; ++i) {
            bound = __reduce_max_sync(0xffffffffu, most);
            const uint32_t holders = __ballot_sync(0xffffffffu, most == bound);
            if (lane == __ffs(static_cast<int>(holders)) - 1) most = 0;
        }
    }
    if (lane == 0) {
        s.warp_a[0][warp] = bound;
        s.warp_b[warp] = high;
    }
    if (tid == 0) s.listed = 0;
    __syncthreads();
    bound = __reduce_min_sync(0xffffffffu, s.warp_a[0][lane]);
    high = __reduce_max_sync(0xffffffffu, s.warp_b[lane]);
    if (row.members > 1) {
        cluster_wait();  // of the arrival at the kernel's start: all blocks are there
        if (tid < row.members) {
            cluster_store(cluster_address(&s.slot_a[0][row.rank], tid), bound);
            cluster_store(cluster_address(&s.slot_b[row.rank], tid), high);
        }
        row.barrier();
        for (int m = 0; m < row.members; ++m) {
            bound = min(bound, s.slot_a[0][m]);
            high = max(high, s.slot_b[m]);
        }
    }

    row.each([&](uint32_t k) {
        const uint32_t chosen = __ballot_sync(0xffffffffu, k > bound);
        if (chosen == 0) return;
        uint32_t at = 0;
        if (lane == 0) at = atomicAdd(&s.listed, static_cast<uint32_t>(__popc(chosen)));
        at = __shfl_sync(0xffffffffu, at, 0) +
             static_cast<uint32_t>(__popc(chosen & ((1u << lane) - 1)));
        if (k > bound && at < kListKeys) s.list[at] = k;
    });
    row.barrier();
    uint32_t listed = s.listed;
    uint32_t keys[kListKeys / kThreads];
    if (row.members == 1) {
#pragma unroll
        for (int j = 0; j < kListKeys / kThreads; ++j) {
            const auto i = static_cast<uint32_t>(tid + j * kThreads);
            keys[j] = i < min(listed, uint32_t{kListKeys}) ? s.list[i] : 0;
        }
    } else {
        if (tid < row.members) s.slot_b[tid] = cluster_load(cluster_address(&s.listed, tid));
        __syncthreads();
        listed = 0;
        for (int m = 0; m < row.members; ++m)
            listed += s.slot_b[m];
#pragma unroll
        for (int j = 0; j < kListKeys / kThreads; ++j) {
            auto i = static_cast<uint32_t>(tid + j * kThreads);
            keys[j] = 0;
            if (i >= listed || listed > kListKeys) continue;
            int m = 0;
            for (; i >= s.slot_b[m]; ++m)
                i -= s.slot_b[m];
            keys[j] = cluster_load(cluster_address(&s.list[i], m));
        }
    }
    if (listed <= top) return {bound, top - listed};
    if (listed <= kListKeys)
        return bisect(bound, high, top, [&](uint32_t k, int turn) {
            uint32_t n = 0;
#pragma unroll
            for (int j = 0; j < kListKeys / kThreads; ++j)
                n += keys[j] >= k;
            return row.block_total(n, turn);
        });
    return bisect(bound, high, top, [&](uint32_t k, int turn) {
        uint32_t n = 0;
        row.each([&](uint32_t x) { n += x >= k; });
        return row.row_total(n, turn);
    });
}

// Keys above and at the cut among 32 tiles of 32 keys from `first`: lane j holds tile j's bits.
struct Words {
    uint32_t above = 0, equal = 0;
};
__device__ __forceinline__ Words words_of(const Row& row, int first, uint32_t cut) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    Words w;
#pragma unroll 8
    for (int j = 0; j < 32; ++j) {
        const uint32_t k = row.key(first + 32 * j + lane);
        const uint32_t above = __ballot_sync(0xffffffffu, k > cut);
        const uint32_t equal = __ballot_sync(0xffffffffu, k == cut);
        if (lane == j) w = {above, equal};
    }
    return w;
}

// Writes the chosen blocks. Each warp has neighbouring runs of 1024 keys, warps in block order.
__device__ void write_chosen(const Row& row, Cut cut, int32_t* out) {
    Shared& s = *row.s;
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int warps = row.members * kWarps, runs = ((row.n + 1023) / 1024 + warps - 1) / warps;
    const int first = (row.rank * kWarps + warp) * runs * 1024;
    Words w;
    uint32_t above = 0, equal = 0;
    for (int i = 0; i < runs && first + i * 1024 < row.n; ++i) {
        w = words_of(row, first + i * 1024, cut.key);
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
    for (int i = 0; i < runs && first + i * 1024 < row.n; ++i) {
        if (runs > 1) w = words_of(row, first + i * 1024, cut.key);
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
            out[at++] = first + i * 1024 + 32 * lane + __ffs(static_cast<int>(bits)) - 1;
        const uint32_t all = __shfl_sync(0xffffffffu, upto, 31);
        above += all & 0xffffu;
        equal += all >> 16;
    }
}

// Computes  the row's `top` best complete blocks, exactly, whatever the scores are.
// Grid and block  rows x cluster, 1024 threads; a cluster shares a long row.
// Shared memory   16 KiB of listed keys.
// Traffic   the row's scores twice from L2, the other looks are in L1.
// Numerics  integer keys: the result does not depend on any order.
__global__ void __launch_bounds__(kThreads) select_kernel(const SelectBlocksArgs a, int cluster) {
    __shared__ Shared shared;
    pdl_launch();
    if (cluster > 1) cluster_arrive();
    const int tid = static_cast<int>(threadIdx.x), r = static_cast<int>(blockIdx.x) / cluster;
    const RowPlace at = place_row(a.step, a.first_row + r);
    Row row;
    row.scores = a.scores.device_pointer() + r * a.stride;
    row.n = (at.pos + 1) / a.block_tokens;
    row.members = row.n <= kAloneBlocks ? 1 : cluster;
    row.rank = cluster > 1 ? cluster_rank() : 0;
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
    write_chosen(row, find_cut(row, static_cast<uint32_t>(a.top)), out);
}

}  // namespace

Status select_blocks(const Launch& l, const SelectBlocksArgs& a) {
    if (a.rows == 0) return {};
    // Few rows: more blocks for each, as far as they fit on the device side by side.
    const int cluster = a.rows <= 4 ? 16 : a.rows <= 16 ? 8 : 1;
    return start_clusters(l, "select_blocks", select_kernel, cluster,
                          dim3(static_cast<unsigned>(a.rows) * static_cast<unsigned>(cluster)),
                          dim3(kThreads), 0, a, cluster);
}

}  // namespace terrace::cuda
