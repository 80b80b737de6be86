// Shared parts of the few-row expert kernels: what they are told, how a block finds its expert and
// tokens, and how its warps multiply.
//
// Pairs: (row, choice) is row * k + choice, and the shared expert's pair of a row is rows * k + row.
// Slots: the shared expert, then the distinct experts in the order of their first pair; every block
// finds its slot from the ids by itself, so that no launch has to sort them.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/exl3/block_sum.cuh"
#include "cuda/linear/plan.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda::moe_decode {

constexpr int kWarps = kGemvWarps;
constexpr int kThreads = 32 * kWarps;
constexpr auto kInteger = Arithmetic::integer;
constexpr int kMaxTeams = 4;

struct Moe {
    const float* x;  // first row
    const int32_t* ids;
    const float* weights;
    float* y;
    const ExpertWeights* table;
    ExpertWeights shared;
    LinearWeight shared_gate;
    int32_t rows, k, hidden, width, shared_width, has_shared;
    int32_t pairs;      // rows * k
    int32_t up_groups;  // of the widest expert
    int32_t up_parts, down_groups;
    int32_t up_slots, down_slots;  // of each warp's ring
    int32_t teams;                 // of warps of a block of the second product
    std::byte* planes;             // [pairs][gate, up][hidden tiles] 32 bytes
    RowScale* scales;              // [pairs][gate, up]
    float* gates;                  // [rows] sigmoid of the shared gate
    long long* partial;            // [pairs][up_groups][up_parts][gate, up][128]
    float* h;                      // [pairs][128 * up_groups] transformed inputs of down
    uint32_t* tops;                // [pairs][up_groups] their largest absolute value's bits
    float* out;                    // [pairs][hidden] outputs times routing weight
    uint32_t* up_counters;         // [slots][up_groups]
    uint32_t* down_counters;       // [rows][down_groups]
};

struct Slot {
    int tokens;  // 0: no such slot
    int expert;  // -1: the shared one
    int pair[kDecodeRows];
};

// Fills `slot` with number `s`. Every thread calls it; ids: shared memory for the pairs' ids.
__device__ __forceinline__ void find_slot(const Moe& a, int s, int* ids, Slot& slot) {
    __shared__ int firsts[kWarps];
    const int tid = static_cast<int>(threadIdx.x);
    if (tid == 0) slot.tokens = 0, slot.expert = -1;
    if (s < a.has_shared) {
        if (tid < a.rows) slot.pair[tid] = a.pairs + tid;
        __syncthreads();
        if (tid == 0) slot.tokens = a.rows;
        __syncthreads();
        return;
    }
    s -= a.has_shared;
    for (int q = tid; q < a.pairs; q += kThreads)
        ids[q] = a.ids[q];
    __syncthreads();
    int before = 0;  // distinct experts of the pairs in front of this round
    for (int base = 0; base < a.pairs; base += kThreads) {
        const int q = base + tid;
        int earlier = 1;
        if (q < a.pairs) {
            earlier = 0;
            for (int p = 0; p < q; ++p)
                earlier += ids[p] == ids[q];
        }
        const uint32_t vote = __ballot_sync(0xffffffffu, earlier == 0);
        if (tid % 32 == 0) firsts[tid / 32] = __popc(vote);
        __syncthreads();
        int rank = before + __popc(vote & ((1u << (tid % 32)) - 1u));
        for (int w = 0; w < kWarps; ++w) {
            if (w < tid / 32) rank += firsts[w];
            before += firsts[w];
        }
        if (earlier == 0 && rank == s) slot.expert = ids[q];
        __syncthreads();
    }
    const int expert = slot.expert;
    if (expert < 0) return;
    // An expert is chosen at most once per row, so its tokens are in the order of rows.
    for (int q = tid; q < a.pairs; q += kThreads)
        if (ids[q] == expert) {
            int earlier = 0;
            for (int p = 0; p < q; ++p)
                earlier += ids[p] == expert;
            if (earlier < kDecodeRows) slot.pair[earlier] = q;
            atomicMax(&slot.tokens, min(earlier + 1, kDecodeRows));
        }
    __syncthreads();
}

__device__ __forceinline__ const ExpertWeights& expert_of(const Moe& a, const Slot& slot) {
    return slot.expert < 0 ? a.shared : a.table[slot.expert];
}

// What a warp multiplies: its tensor and its place among the warps that share the tensor.
struct Share {
    const Exl3Tensor* tensor;
    int column_group;
    int first_tile, last_tile;  // row tiles of the block
    int warp, warps;            // of the tensor
};

// Starts the ring and, when `wait_and_plan` has run, multiplies and leaves sums in shared memory:
// [shares][tokens][kSumPitch] at `sums`.
template <int GROUPS, int TILES, class Planes>
__device__ __forceinline__ void multiply_slot(const Share& s, int tokens, int slots,
                                              std::byte* ring_memory, uint64_t* barriers,
                                              int2* sums, const Planes& planes_after_wait) {
    constexpr int kHalves = 8 / TILES;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int shares = s.warps / kHalves, share = s.warp / kHalves, half = s.warp % kHalves;
    const int first = s.first_tile + share;
    const int n = max(0, (s.last_tile - first + shares - 1) / shares);
    const int n16 = s.tensor->n16, bytes = TILES * n16 * 2;
    const uint32_t row_bytes = static_cast<uint32_t>(s.tensor->out) * n16 / 8;
    WarpRing ring(
        reinterpret_cast<const std::byte*>(s.tensor->trellis) +
            static_cast<int64_t>(first) * row_bytes + (s.column_group * 8 + half * TILES) * 2 * n16,
        static_cast<uint32_t>(shares) * row_bytes, n, ring_memory, barriers, slots, bytes);
    WarpWork<kInteger, GROUPS> work;
    work.ring = &ring;
    work.n = n;
    work.planes = planes_after_wait();
    ring.fill();
    work.step = shares * 8;
    work.n16 = n16;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const int token = 4 * g + lane / 8;
        work.from[g] = token < tokens ? planes_after_wait.token(token) + first * 8 + lane % 8 : -1;
    }
    int acc[TILES][GROUPS][4] = {};
    multiply_warp<kInteger, GROUPS, TILES>(work, lane, acc);
    __syncthreads();  // rings are idle: their memory takes the sums
    store_sums<kInteger, GROUPS, TILES>(acc, sums + share * tokens * kSumPitch, half * TILES,
                                        tokens, lane);
    __syncthreads();
}

}  // namespace terrace::cuda::moe_decode
