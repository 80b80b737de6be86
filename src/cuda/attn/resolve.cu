// resolve_blocks: absent blocks of the rows' lists come from their home to spare slots of the mirror,
// while one thread block picks the spares of the next call. The rules are those of
// device/block_mirror.h; here warps ask at the same time, so which of two absent blocks gets which
// slot, or the last one, is open. A block that is unpublished by the picking block after its warp
// found it is read at home once: slower, not wrong.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_ops.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kSlotsPerThread = kMirrorWindow / kThreads;
// Of one warp: an extent of the real model, 8 KiB, all of it in flight, since an answer of the host's
// memory takes 1.5 microseconds.
constexpr int kVectors = 16;

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
                                    uint32_t epoch, const int32_t* spares, uint32_t n_spares) {
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
            const uint32_t k = atomicAdd(&m.head->asked, 1u);
            if (k < n_spares) slot = spares[k];
        }
        slot = __shfl_sync(0xffffffffu, slot, 0);
        return slot;
    });
    if (slot < 0 || lane != 0) return;
    m.owner[slot] = static_cast<int32_t>(number);
    m.used[slot] = epoch;
    *reinterpret_cast<volatile int32_t*>(entry) = slot;
}

// The picking block: see end_epoch(). A slot's age is looked up once and kept in registers.
__device__ __forceinline__ void pick_spares(const ResolveBlocksArgs& a, const MirrorHead& head,
                                            uint32_t epoch) {
    __shared__ int total[2], taken[2];
    const BlockMirror& m = a.mirror;
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31;
    const int window = min(m.n, kMirrorWindow);
    const uint32_t hand = head.hand, list = epoch % 2;
    const auto slot_at = [&](int i) {
        return static_cast<int>((hand + static_cast<uint32_t>(i)) % static_cast<uint32_t>(m.n));
    };
    const int pick =
        m.to_pick(static_cast<int32_t>(head.spares[list]), static_cast<int32_t>(head.last_asked));
    uint32_t age[kSlotsPerThread];  // 0: may not go
#pragma unroll
    for (int i = 0; i < kSlotsPerThread; ++i) {
        const int at = kThreads * i + tid;
        const uint32_t used = at < window ? __ldcg(m.used + slot_at(at)) : kSpareSlot;
        age[i] = may_go(used, epoch) ? age_of(used, epoch) : 0;
    }
    if (tid < 2) total[tid] = taken[tid] = 0;
    __syncthreads();
    uint32_t low = 1, high = kMirrorAges;
    for (int turn = 0; pick > 0 && low < high; ++turn) {
        const uint32_t middle = (low + high + 1) / 2;
        int older = 0;
#pragma unroll
        for (int i = 0; i < kSlotsPerThread; ++i)
            older += age[i] >= middle;
        older = __reduce_add_sync(0xffffffffu, older);
        if (lane == 0) atomicAdd(&total[turn % 2], older);
        __syncthreads();
        if (total[turn % 2] >= pick)
            low = middle;
        else
            high = middle - 1;
        if (tid == 0) total[(turn + 1) % 2] = 0;
        __syncthreads();
    }
    int32_t* const next = m.spare + int64_t{1 - static_cast<int>(list)} * m.spares_most();
    // All that are older, counted first, then as many of this age as are still wanted.
    if (pick > 0) {
        int older = 0;
#pragma unroll
        for (int i = 0; i < kSlotsPerThread; ++i)
            older += age[i] > low;
        older = __reduce_add_sync(0xffffffffu, older);
        if (lane == 0) atomicAdd(&taken[1], older);
        if (tid == 0) total[0] = 0;
        __syncthreads();
        const int n_older = taken[1];
#pragma unroll
        for (int i = 0; i < kSlotsPerThread; ++i) {
            if (age[i] < low || age[i] == 0) continue;
            const int to =
                age[i] > low ? atomicAdd(&taken[0], 1) : n_older + atomicAdd(&total[0], 1);
            if (to >= pick) continue;
            const int slot = slot_at(kThreads * i + tid), block = m.owner[slot];
            if (block >= 0) atomicCAS(m.slots + block, slot, kAbsent);
            atomicExch(m.used + slot, kSpareSlot);
            next[to] = slot;
        }
    }
    __syncthreads();
    // What the rows ask for in all.
    if (tid < 2) taken[tid] = 0;
    __syncthreads();
    int of_list = 0, entries = 0;
#pragma unroll
    for (int i = 0; i < kSlotsPerThread; ++i)
        of_list += age[i] != 0 && age[i] >= low;
    for (int r = tid; r < a.rows; r += kThreads) {
        const int end = place_row(a.step, a.first_row + r).pos + 1, bt = a.kv.block_tokens;
        entries += (a.counts.empty() ? end / bt : a.counts.device_pointer()[r]) + (end % bt != 0);
    }
    of_list = __reduce_add_sync(0xffffffffu, of_list);
    entries = __reduce_add_sync(0xffffffffu, entries);
    if (lane == 0) {
        atomicAdd(&taken[0], of_list);
        atomicAdd(&taken[1], entries);
    }
    __syncthreads();
    if (tid != 0) return;
    m.head->spares[1 - list] = static_cast<uint32_t>(min(pick, taken[0]));
    m.head->entries_now = static_cast<uint32_t>(taken[1]);
}

// The last block to finish: spares that were not needed stay spares, counters, the next epoch.
__device__ __forceinline__ void end_call(const ResolveBlocksArgs& a, uint32_t epoch) {
    const BlockMirror& m = a.mirror;
    MirrorHead& head = *m.head;
    const int tid = static_cast<int>(threadIdx.x);
    const uint32_t list = epoch % 2, have = head.spares[list], asked = __ldcg(&head.asked);
    const uint32_t picked = __ldcg(&head.spares[1 - list]), taken = min(asked, have);
    const int32_t* const from = m.spare + int64_t{list} * m.spares_most();
    int32_t* const to = m.spare + int64_t{1 - static_cast<int>(list)} * m.spares_most() + picked;
    for (uint32_t i = static_cast<uint32_t>(tid); i < have - taken; i += kThreads)
        to[i] = from[taken + i];
    const bool over = epoch >= kLastEpoch;
    if (over)
        for (int s = tid; s < m.n; s += kThreads)
            if (__ldcg(m.used + s) != kSpareSlot) m.used[s] = 0;
    __syncthreads();
    if (tid != 0) return;
    head.counters.calls += 1;
    head.counters.rows += static_cast<uint64_t>(a.rows);
    head.counters.entries += __ldcg(&head.entries_now);
    head.counters.copied += taken;
    head.counters.at_home += asked - taken;
    head.spares[list] = 0;
    head.spares[1 - list] = picked + have - taken;
    head.last_asked = asked;
    head.asked = head.entries_now = 0;
    if (m.n > kMirrorWindow) head.hand = (head.hand + kMirrorWindow) % static_cast<uint32_t>(m.n);
    head.epoch = over ? epoch % 2 : epoch;
}

// Computes  nothing: moves blocks to the mirror and keeps its tables.
// Grid and block  block 0 picks spares; in the others a warp has an entry of a row's list (or its
//           tail, entry number `top`) at a time.
// Shared memory   a few counters.
// Traffic   an entry of `slots` per block; 2 extents per absent block; `used` of the window.
// Numerics  none.
__global__ void __launch_bounds__(kThreads) resolve_kernel(const ResolveBlocksArgs a) {
    pdl_launch();
    pdl_wait();
    const BlockMirror& m = a.mirror;
    const uint32_t epoch = m.head->epoch + 1;
    if (blockIdx.x == 0) {
        pick_spares(a, *m.head, epoch);
    } else {
        const int warp = static_cast<int>(threadIdx.x) >> 5, bt = a.kv.block_tokens;
        const int32_t* const spares = m.spare + int64_t{epoch % 2} * m.spares_most();
        const uint32_t n_spares = m.head->spares[epoch % 2];
        const int64_t per_row = int64_t{a.top} + 1, units = a.rows * per_row;
        const int64_t step = int64_t{gridDim.x - 1} * kWarps;
        for (int64_t unit = int64_t{blockIdx.x - 1} * kWarps + warp; unit < units; unit += step) {
            const auto r = static_cast<int>(unit / per_row), i = static_cast<int>(unit % per_row);
            const RowPlace at = place_row(a.step, a.first_row + r);
            const int32_t* const table = a.step.block_tables.device_pointer() + at.seq.table_offset;
            const int complete = (at.pos + 1) / bt;
            if (i == a.top) {
                if ((at.pos + 1) % bt != 0) ask(a, table, complete, epoch, spares, n_spares);
                continue;
            }
            const int n = a.counts.empty() ? complete : a.counts.device_pointer()[r];
            const int32_t* const list =
                a.blocks.empty() ? nullptr : a.blocks.device_pointer() + int64_t{r} * a.top;
            for (int j = i; j < n; j += a.top)
                ask(a, table, list ? list[j] : j, epoch, spares, n_spares);
        }
    }
    if (last_block(&m.head->arrivals, gridDim.x)) end_call(a, epoch);
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
