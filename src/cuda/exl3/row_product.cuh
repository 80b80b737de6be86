// One row's integer product in a block of sixteen warps, made for latency: the weights of the block's
// part of the inputs come into shared memory while kernels in front still run, and the loop behind
// pdl_wait() is short, in instructions and in registers, so that many warps share a multiprocessor
// and kernels stay beside each other.
//
// Units: a Hadamard block of 128 inputs (8 row tiles) times 128 outputs (8 column tiles), 128 * n16
// bytes. Teams of 16, 8 or 4 warps take the units of one column group each; a warp takes a quarter of
// the columns (two column tiles) and every kShares-th row tile.
// Planes: uint4 [unit][8 row tiles][8], the words of exl3/input.cuh with each byte repeated four
// times, as the matrix instructions want them: 1 KiB per unit.
// Sums are exact integers, so that neither cut is seen in the result.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "cuda/exl3/block_sum.cuh"
#include "cuda/exl3/product.cuh"

namespace terrace::cuda {

constexpr int kRowWarps = 16;
constexpr int kRowThreads = 32 * kRowWarps;
constexpr int kUnitPlaneBytes = 1024;
constexpr int kMaxUnitSlots = 20;

constexpr int unit_bytes(int n16) {
    return 128 * n16;
}

// A team's units on their way through a ring of slots in shared memory. The last warp of the team to
// leave a slot has it refilled.
struct UnitRing {
    uint64_t full[kMaxUnitSlots];
    uint32_t left[kMaxUnitSlots];  // warps that have left the slot

    // By one thread; a barrier of the block before the first start() and use.
    __device__ __forceinline__ void init() {
        for (int i = 0; i < kMaxUnitSlots; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + i))
                         : "memory");
            left[i] = 0;
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
};

// All fields are the same in all warps of a team.
struct UnitStream {
    UnitRing* ring;
    std::byte* slots;
    const std::byte* from;  // the first unit
    uint32_t row_bytes;     // from one row tile to the next
    int units, n_slots, n16;

    __device__ __forceinline__ void issue(int unit, int slot) const {
        const int piece = 16 * n16;
        const uint32_t barrier = shared_address(ring->full + slot);
        const uint32_t to = shared_address(slots + slot * unit_bytes(n16));
        const std::byte* at = from + static_cast<int64_t>(unit) * 8 * row_bytes;
        if (elect_lane()) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                         "r"(8 * piece)
                         : "memory");
#pragma unroll 1
            for (int r = 0; r < 8; ++r, at += row_bytes)
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                    "%2, [%3];" ::"r"(to + r * piece),
                    "l"(at), "r"(piece), "r"(barrier)
                    : "memory");
        }
    }
    // Slots [first, last) of those there are; by every warp of the team, `warp` of `warps`.
    __device__ __forceinline__ void start(int warp, int warps, int first = 0,
                                          int last = kMaxUnitSlots) const {
        for (int i = first + warp; i < min(min(n_slots, units), last); i += warps)
            issue(i, i);
    }
    __device__ __forceinline__ const uint32_t* acquire(int slot, uint32_t phase) const {
        asm volatile(
            "{\n.reg .pred p;\n"
            "wait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
            "@!p bra wait_%=;\n}\n" ::"r"(shared_address(ring->full + slot)),
            "r"(phase)
            : "memory");
        return reinterpret_cast<const uint32_t*>(slots + slot * unit_bytes(n16));
    }
    __device__ __forceinline__ void release(int unit, int slot, int lane, int warps) const {
        if (unit + n_slots >= units) return;
        __syncwarp();
        uint32_t before = 0;
        if (lane == 0) {
            __threadfence_block();
            before = atomicAdd(ring->left + slot, 1u);
        }
        if (uniform(before) + 1 < static_cast<uint32_t>(warps)) return;
        if (lane == 0) ring->left[slot] = 0;
        issue(unit + n_slots, slot);
    }
};

// Place of a warp in its team.
template <int TEAMS>
struct RowTeam {
    static constexpr int kWarps = kRowWarps / TEAMS, kShares = kWarps / 4;
    int team, warp, quarter, share;
    __device__ __forceinline__ explicit RowTeam(int block_warp)
        : team(block_warp / kWarps),
          warp(block_warp % kWarps),
          quarter(warp % 4),
          share(warp / 4) {}
};

template <int K, int SHARES>
__device__ __forceinline__ void multiply_units(const UnitStream& s, const uint4* planes,
                                               int quarter, int share, int lane, int (&acc)[2][4]) {
    const LanePlace place = K > 0 ? lane_place < K == 0 ? 1 : K > (lane) : LanePlace{};
    const int tile_words = K > 0 ? 8 * K : s.n16 / 2;
    uint4 b = make_uint4(0, 0, 0, 0);  // lanes from 8 on are the columns of absent tokens
    planes += 8 * share + lane;
    int slot = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int unit = 0; unit < s.units; ++unit) {
        const uint32_t* words = s.acquire(slot, phase) + (8 * share + 2 * quarter) * tile_words;
#pragma unroll(SHARES == 4 ? 2 : 1)
        for (int r = 0; r < 8; r += SHARES, words += 8 * SHARES * tile_words) {
            if (lane < 8) b = planes[8 * r];
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                uint32_t v[8];
                if constexpr (K > 0)
                    lane_states<K>(words + t * 8 * K, place, v);
                else
                    lane_states_any(words + t * tile_words, s.n16, lane, v);
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    v[j] *= kMul1Multiplier;
                mma(acc[t], v[0], v[4], v[1], v[5], b.x, b.y);
                mma(acc[t], v[2], v[6], v[3], v[7], b.z, b.w);
            }
        }
        planes += 64;
        s.release(unit, slot, lane, 4 * SHARES);
        if (++slot == s.n_slots) slot = 0, phase ^= 1;
    }
}

// Widths that a kernel takes: whole K, or all; the way for half-integer K takes more registers.
enum class Widths : uint8_t { whole, any };
constexpr bool is_whole(int n16) {
    return n16 % 16 == 0;
}

// Multiplies a team's units and leaves hi and lo sums, [shares][128], at `sums`.
template <Widths WIDTHS, int TEAMS>
__device__ __forceinline__ void row_sums(const UnitStream& s, const std::byte* planes,
                                         const RowTeam<TEAMS>& t, int lane, int2* sums) {
    constexpr int kShares = RowTeam<TEAMS>::kShares;
    const auto* from = reinterpret_cast<const uint4*>(planes);
    int acc[2][4] = {};
    const auto multiply = [&]<int K>() {
        multiply_units<K, kShares>(s, from, t.quarter, t.share, lane, acc);
    };
    switch (s.n16) {
        case 16:
            multiply.template operator()<1>();
            break;
        case 32:
            multiply.template operator()<2>();
            break;
        case 48:
            multiply.template operator()<3>();
            break;
        case 64:
            multiply.template operator()<4>();
            break;
        case 80:
            multiply.template operator()<5>();
            break;
        case 96:
            multiply.template operator()<6>();
            break;
        case 112:
            multiply.template operator()<7>();
            break;
        case 128:
            multiply.template operator()<8>();
            break;
        default:
            if constexpr (WIDTHS == Widths::any) multiply.template operator()<0>();
    }
    if (lane % 4 == 0) {
        int2* to = sums + 128 * t.share + 32 * t.quarter + lane / 4;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            to[16 * c] = make_int2(acc[c][0], acc[c][1]);
            to[16 * c + 8] = make_int2(acc[c][2], acc[c][3]);
        }
    }
}

template <int SHARES>
__device__ __forceinline__ long long row_total(const int2* sums, int column) {
    int hi = 0, lo = 0;
#pragma unroll
    for (int i = 0; i < SHARES; ++i) {
        const int2 v = sums[128 * i + column];
        hi += v.x, lo += v.y;
    }
    return 256LL * hi + lo;
}

// Rounds four neighbouring values of a Hadamard block, elements 4 * lane on, into the unit's planes.
// Returns the sum of their int16.
__device__ __forceinline__ int store_spread(const float4& v, float inverse, std::byte* planes,
                                            int lane) {
    const int x[4] = {to_int16(v.x, inverse), to_int16(v.y, inverse), to_int16(v.z, inverse),
                      to_int16(v.w, inverse)};
    const int j = lane % 4;
    auto* to = reinterpret_cast<uint2*>(planes + lane / 4 * 128) + 4 * (j & 1) + (j >> 1);
    const auto spread = [](int byte) { return static_cast<uint32_t>(byte & 0xff) * 0x01010101u; };
#pragma unroll
    for (int p = 0; p < 2; ++p) {
        const int a = x[2 * p], b = x[2 * p + 1];
        to[2 * p] = make_uint2(spread((a + 128) >> 8), spread((b + 128) >> 8));
        to[8 + 2 * p] = make_uint2(spread(a), spread(b));
    }
    return x[0] + x[1] + x[2] + x[3];
}

// The input of a team: transforms of blocks [first, last) as planes at `planes`, the row's top and
// the sum of the part's int16. All threads of the block pass the two barriers.
struct RowInput {
    uint32_t tops[kRowWarps];
    int sum[4];  // per team, zero before
};
constexpr int kRowHeld = 3;  // blocks per warp whose scales are loaded ahead

template <int TEAMS>
__device__ __forceinline__ Quantiser make_row_input(const float* x, int n, const f16* suh,
                                                    const InputScales<kRowHeld>& scales, int in,
                                                    int first, int last, const RowTeam<TEAMS>& t,
                                                    int lane, std::byte* planes, RowInput& input) {
    constexpr int kWarps = RowTeam<TEAMS>::kWarps;
    const uint32_t top = __reduce_max_sync(
        0xffffffffu, transform_blocks(x, n, suh, scales, in, t.warp, kWarps, first, last,
                                      reinterpret_cast<float*>(planes), kUnitPlaneBytes / 4));
    if (lane == 0) input.tops[kWarps * t.team + t.warp] = top;
    __syncthreads();
    uint32_t most = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
        most = max(most, input.tops[kWarps * t.team + w]);
    const Quantiser q = row_quantiser(Arithmetic::integer, most);
    // The warp that has made a block's transform takes it again.
    int sum = 0;
    for (int b = first + (t.warp - first % kWarps + kWarps) % kWarps; b < last; b += kWarps) {
        std::byte* at = planes + (b - first) * kUnitPlaneBytes;
        const float4 v = reinterpret_cast<const float4*>(at)[lane];
        __syncwarp();
        sum += store_spread(v, q.inverse, at, lane);
    }
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (lane == 0 && sum != 0) atomicAdd(&input.sum[t.team], sum);
    __syncthreads();
    return q;
}

}  // namespace terrace::cuda
