// resolve_blocks: absent blocks of the rows' lists come from their home to spare slots of the mirror,
// while one thread block picks the spares of the next call. The rules are those of
// device/block_mirror.h; here warps ask at the same time, so which of two absent blocks gets which
// slot, or the last one, is open. A block that is unpublished by the picking block after its warp
// found it is read at home once: slower, not wrong.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_ops.h"
#include "cuda/util/common.cuh"
#include "ops/mirror_args.h"

namespace terrace::cuda {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kSlotsPerThread = kMirrorWindow / kThreads;
// Of one warp: an extent of the real model, 8 KiB, all of it in flight, since an answer of the host's
// memory takes 1.5 microseconds.
constexpr int kVectors = 16;

// MirrorHead::running in a call: absent blocks in the low bits, then picked spares, then arrivals of
// thread blocks. In one word, because additions to one word have one order: who arrives last has all
// counts in hand without a fence.
constexpr int kPickedAt = 24, kArrivalsAt = 44;
constexpr unsigned long long kAskedMask = (1ull << kPickedAt) - 1;
constexpr unsigned long long kPickedMask = (1ull << (kArrivalsAt - kPickedAt)) - 1;
__device__ __forceinline__ unsigned long long add_running(const BlockMirror& m,
                                                          unsigned long long n) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(&m.head->running), n);
}

__device__ __forceinline__ int32_t load_entry(const int32_t* p) {
    return __ldcg(p);
}

// One warp moves an extent; `slot` is known only after `claim`, which runs while the first bytes are
// on their way.
template <class Claim>
__device__ __forceinline__ void bring(const RowSource& kv, const std::byte* home, Claim claim) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const size_t bytes = 2 * kv.half_extent_bytes();
    if (bytes % 16 != 0) {
        const int slot = claim();
        if (slot < 0) return;
        const auto* from = reinterpret_cast<const uint16_t*>(home);
        auto* to = reinterpret_cast<uint16_t*>(kv.mirror + static_cast<size_t>(slot) * bytes);
        for (size_t i = static_cast<size_t>(lane); i < bytes / 2; i += 32)
            to[i] = from[i];
        return;
    }
    const auto n = static_cast<int>(bytes / 16);
    const auto* from = reinterpret_cast<const uint4*>(home);
    uint4 v[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
        if (32 * i + lane < n) v[i] = __ldcs(from + 32 * i + lane);
    const int slot = claim();
    if (slot < 0) return;
    auto* to = reinterpret_cast<uint4*>(kv.mirror + static_cast<size_t>(slot) * bytes);
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
        if (32 * i + lane < n) to[32 * i + lane] = v[i];
    for (int i = 32 * kVectors + lane; i < n; i += 32)
        to[i] = __ldcs(from + i);
}

// A warp asks for a block.
__device__ __forceinline__ void ask(const ResolveBlocksArgs& a, const int32_t* table, int block,
                                    uint32_t epoch, uint32_t n_spares) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const BlockMirror& m = a.mirror;
    const int pos = block * a.kv.block_tokens;
    const int page = table[pos / kPageTokens], in_page = pos % kPageTokens / a.kv.block_tokens;
    const int64_t number = a.kv.number(page, in_page);
    int32_t* const entry = m.slots + number;
    const int32_t seen = load_entry(entry);
    if (seen >= 0) {
        // The maximum, because the slot may have become a spare since.
        if (lane == 0) atomicMax(m.used + seen, epoch);
        return;
    }
    const int32_t mark = absent_mark(epoch);
    if (seen == mark) return;
    int slot = -1;
    bring(a.kv, a.kv.home(page, in_page), [&] {
        // Of all warps that want the block, the one that sets the mark brings it.
        if (lane == 0 && atomicCAS(entry, seen, mark) == seen) {
            const auto k = static_cast<uint32_t>(add_running(m, 1) & kAskedMask);
            if (k < n_spares) slot = m.spares_of(epoch)[n_spares - 1 - k];
        }
        slot = __shfl_sync(0xffffffffu, slot, 0);
        return slot;
    });
    if (slot < 0 || lane != 0) return;
    m.owner[slot] = static_cast<int32_t>(number);
    m.used[slot] = epoch;
    *reinterpret_cast<volatile int32_t*>(entry) = slot;
}

// The picking block: see end_epoch(). A slot's age is looked up once and kept in registers. Gives, in
// thread 0, how many slots it picked.
__device__ __forceinline__ int pick_spares(const BlockMirror& m) {
    __shared__ int count[2], older_all, of_age;
    const MirrorHead& head = *m.head;
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
    const int window = min(m.n, kMirrorWindow);
    const uint32_t epoch = head.epoch + 1, hand = head.hand;
    const auto have = static_cast<int>(head.spares[epoch % 2]);
    const int pick = m.to_pick(have, static_cast<int32_t>(head.last_asked));
    const auto slot_at = [&](int i) {
        return static_cast<int>((hand + static_cast<uint32_t>(i)) % static_cast<uint32_t>(m.n));
    };
    uint32_t age[kSlotsPerThread];  // 0: may not go
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kSlotsPerThread; ++i) {
        const int at = kThreads * i + tid;
        const uint32_t used = at < window ? __ldcg(m.used + slot_at(at)) : kSpareSlot;
        age[i] = may_go(used, epoch) ? age_of(used, epoch) : 0;
        mine += age[i] > 0;
    }
    if (tid < 2) count[tid] = 0;
    if (tid == 0) older_all = of_age = 0;
    __syncthreads();
    uint32_t low = 1, high = kMirrorAges;
    for (int turn = 0; pick > 0 && low < high; ++turn) {
        const uint32_t middle = (low + high + 1) / 2;
        int older = 0;
#pragma unroll
        for (int i = 0; i < kSlotsPerThread; ++i)
            older += age[i] >= middle;
        older = __reduce_add_sync(0xffffffffu, older);
        if (lane == 0) atomicAdd(&count[turn % 2], older);
        __syncthreads();
        if (count[turn % 2] >= pick)
            low = middle;
        else
            high = middle - 1;
        __syncthreads();
        if (tid == 0) count[turn % 2] = 0;
    }
    __syncthreads();
    // All that are older, counted first, then as many of this age as are still wanted.
    int older = 0;
#pragma unroll
    for (int i = 0; i < kSlotsPerThread; ++i)
        older += age[i] > low;
    older = __reduce_add_sync(0xffffffffu, older);
    mine = __reduce_add_sync(0xffffffffu, mine);
    if (lane == 0) {
        atomicAdd(&older_all, older);
        atomicAdd(&count[1], mine);
    }
    if (tid == 0) count[0] = 0;
    __syncthreads();
    const int n_older = older_all, picked = min(pick, count[1]);
    int32_t* const next = m.spares_of(epoch + 1);
#pragma unroll
    for (int i = 0; i < kSlotsPerThread; ++i) {
        if (pick == 0 || age[i] < low || age[i] == 0) continue;
        const int to = age[i] > low ? atomicAdd(&of_age, 1) : n_older + atomicAdd(&count[0], 1);
        if (to >= pick) continue;
        const int slot = slot_at(kThreads * i + tid), block = m.owner[slot];
        if (block >= 0) atomicCAS(m.slots + block, slot, kAbsent);
        atomicExch(m.used + slot, kSpareSlot);
        next[to] = slot;
    }
    // Behind them what this call may take from, of which the first part will be left.
    const int32_t* const now = m.spares_of(epoch);
    for (int i = tid; i < have; i += kThreads)
        next[picked + i] = now[i];
    return picked;
}

// Blocks that all rows ask for; in thread 0.
__device__ __forceinline__ int count_entries(const ResolveBlocksArgs& a) {
    __shared__ int all;
    const int tid = static_cast<int>(threadIdx.x), bt = a.kv.block_tokens;
    if (tid == 0) all = 0;
    __syncthreads();
    int entries = 0;
    for (int r = tid; r < a.rows; r += kThreads) {
        const int end = place_row(a.step, a.first_row + r).pos + 1;
        entries += (a.counts.empty() ? end / bt : a.counts.device_pointer()[r]) + (end % bt != 0);
    }
    entries = __reduce_add_sync(0xffffffffu, entries);
    if ((tid & 31) == 0 && entries > 0) atomicAdd(&all, entries);
    __syncthreads();
    return all;
}

// A thread block is done. The last one ends the call: spares that were not needed stay spares, the
// absent are counted, the next epoch begins. Called by all threads; `picked` counts in thread 0.
__device__ __forceinline__ void arrive(const ResolveBlocksArgs& a, uint32_t epoch, int picked) {
    __shared__ bool over;
    const BlockMirror& m = a.mirror;
    MirrorHead& head = *m.head;
    __syncthreads();
    if (threadIdx.x == 0) {
        over = false;
        const auto before = add_running(
            m, (1ull << kArrivalsAt) | (static_cast<unsigned long long>(picked) << kPickedAt));
        if (before >> kArrivalsAt == gridDim.x - 1) {
            const auto asked = static_cast<uint32_t>(before & kAskedMask);
            const auto all_picked = static_cast<uint32_t>(before >> kPickedAt & kPickedMask) +
                                    static_cast<uint32_t>(picked);
            const uint32_t list = epoch % 2, have = head.spares[list], taken = min(asked, have);
            over = epoch >= kLastEpoch;
            head.counters.copied += taken;
            head.counters.at_home += asked - taken;
            head.spares[list] = 0;
            head.spares[1 - list] = all_picked + have - taken;
            head.last_asked = asked;
            head.running = 0;
            if (m.n > kMirrorWindow)
                head.hand = (head.hand + kMirrorWindow) % static_cast<uint32_t>(m.n);
            head.epoch = over ? epoch % 2 : epoch;
        }
    }
    __syncthreads();
    if (!over) return;
    __threadfence();
    for (int s = static_cast<int>(threadIdx.x); s < m.n; s += kThreads)
        if (__ldcg(m.used + s) != kSpareSlot) m.used[s] = 0;
}

// Computes  nothing: moves blocks to the mirror and keeps its tables.
// Grid and block  block 0 picks spares, before it waits for the operation before where it may; in the
//           others a warp has an entry of a row's list (or its tail, entry number `top`) at a time.
// Shared memory   a few counters.
// Traffic   an entry of `slots` per block; 2 extents per absent block; `used` of the window.
// Numerics  none.
__global__ void __launch_bounds__(kThreads) resolve_kernel(const ResolveBlocksArgs a) {
    pdl_launch();
    const BlockMirror& m = a.mirror;
    if (blockIdx.x == 0) {
        if (a.call == MirrorCall::later) pdl_wait();
        const int picked = pick_spares(m);
        if (a.call != MirrorCall::later) pdl_wait();
        const int entries = count_entries(a);
        if (threadIdx.x == 0) {
            m.head->counters.calls += 1;
            m.head->counters.rows += static_cast<uint64_t>(a.rows);
            m.head->counters.entries += static_cast<uint64_t>(entries);
        }
        arrive(a, m.head->epoch + 1, picked);
        return;
    }
    const int warp = static_cast<int>(threadIdx.x) >> 5, bt = a.kv.block_tokens;
    const int64_t per_row = int64_t{a.top} + 1, units = a.rows * per_row;
    const int64_t step = int64_t{gridDim.x - 1} * kWarps;
    const int64_t first = int64_t{blockIdx.x - 1} * kWarps + warp;
    // Where rows are is known before the wait.
    RowPlace at =
        place_row(a.step, a.first_row + static_cast<int>(min(first, units - 1) / per_row));
    pdl_wait();
    const uint32_t epoch = m.head->epoch + 1, n_spares = m.head->spares[epoch % 2];
    for (int64_t unit = first; unit < units; unit += step) {
        const auto r = static_cast<int>(unit / per_row), i = static_cast<int>(unit % per_row);
        if (unit != first) at = place_row(a.step, a.first_row + r);
        const int32_t* const table = a.step.block_tables.device_pointer() + at.seq.table_offset;
        const int complete = (at.pos + 1) / bt;
        if (i == a.top) {
            if ((at.pos + 1) % bt != 0) ask(a, table, complete, epoch, n_spares);
            continue;
        }
        const int32_t* const list =
            a.blocks.empty() ? nullptr : a.blocks.device_pointer() + int64_t{r} * a.top;
        // Asked for together with the length of the list.
        int block = list ? list[i] : i;
        const int n = a.counts.empty() ? complete : a.counts.device_pointer()[r];
        for (int j = i; j < n; j += a.top, block = j)
            ask(a, table, block, epoch, n_spares);
    }
    arrive(a, epoch, 0);
}

}  // namespace

Status resolve_blocks(const Launch& l, const ResolveBlocksArgs& a) {
    if (a.rows == 0) return {};
    const int64_t entries = a.rows * (int64_t{a.top} + 1);
    const auto blocks = static_cast<unsigned>(
        std::min<int64_t>((entries + kWarps - 1) / kWarps, 4 * int64_t{l.info->sms}));
    return start(l, "resolve_blocks", resolve_kernel, dim3(1 + blocks), dim3(kThreads), 0,
                 Start::overlapping, a);
}

}  // namespace terrace::cuda
