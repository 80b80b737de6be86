// Trellis tiles decoded in registers (EXL3 format 2.2 to 2.5). Lane L of a warp owns ring positions
// 8L .. 8L+7 of a 16x16 tile, which is the operand order of the matrix instructions: position j of a
// lane is input 2(L&3) + (j&1) + 8((j>>1)&1) and output (L>>2) + 8(j>>2) of the tile.
//
// Cost per lane and tile, the multiply not counted: K=2 12, K=4 11, K=8 10, others 15 to 19 integer
// instructions for eight states. Where windows of two positions lie 8 bits apart they share one
// shift, and the byte permute that picks a window also clears what is above it.
// Tiles are read from shared memory (any memory works); up to 8 bytes behind a tile may be read, and
// are not used. Values are exactly those of exl3/codebook.h.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "exl3/codebook.h"
#include "exl3/trellis.h"

namespace terrace::cuda {

// Where a lane's bits begin in a tile: word `at`, `shift` bits from its top; `before` is the word in
// front of it on the ring. Depends on K and lane only: make it once per kernel.
struct LanePlace {
    int before;
    int at;
    int shift;
};

template <int K>
__device__ __forceinline__ LanePlace lane_place(int lane) {
    const int begin = 8 * K * lane;
    const int at = begin >> 5;
    return {at == 0 ? 8 * K - 1 : at - 1, at, begin & 31};
}

// Bits 8..23 and bits 0..15.
__device__ __forceinline__ uint32_t middle_half(uint32_t v) {
    return __byte_perm(v, 0, 0x4421);
}
__device__ __forceinline__ uint32_t low_half(uint32_t v) {
    return v & 0xffffu;
}

// The lane's eight states, K = 1..8.
template <int K>
__device__ __forceinline__ void lane_states(const uint32_t* tile, const LanePlace& p,
                                            uint32_t (&s)[8]) {
    static_assert(K >= 1 && K <= 8);
    const uint32_t before = tile[p.before], first = tile[p.at];
    if constexpr (K == 1) {  // all windows lie in the 32 bits that end where the lane's bits do
        const uint32_t v = __funnelshift_lc(first, before, p.shift + 8);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            s[j] = low_half(v >> (7 - j));
    } else if constexpr (K == 2) {
        const uint32_t v = __funnelshift_lc(first, before, p.shift + 16);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            s[j] = middle_half(v >> (6 - 2 * j));
            s[j + 4] = low_half(v >> (6 - 2 * j));
        }
    } else if constexpr (K == 4) {                              // a lane's bits are one word
        const uint32_t m = __byte_perm(first, before, 0x5432);  // 16 bits before it, its upper 16
        const uint32_t m4 = m >> 4, f4 = first >> 4;
        s[0] = middle_half(m4), s[1] = middle_half(m), s[2] = low_half(m4), s[3] = first >> 16;
        s[4] = middle_half(f4), s[5] = middle_half(first), s[6] = low_half(f4);
        s[7] = low_half(first);
    } else if constexpr (K == 8) {  // two words
        const uint32_t second = tile[p.at + 1];
        const uint32_t m = __byte_perm(first, before, 0x5432);
        const uint32_t n = __byte_perm(second, first, 0x5432);
        s[0] = middle_half(m), s[1] = first >> 16;
        s[2] = middle_half(first), s[3] = low_half(first);
        s[4] = middle_half(n), s[5] = second >> 16;
        s[6] = middle_half(second), s[7] = low_half(second);
    } else {
        // b, c, d: the 32 bits before the lane's first bit, and the 64 from there.
        const uint32_t second = tile[p.at + 1];
        const uint32_t b = __funnelshift_l(first, before, p.shift);
        const uint32_t c = __funnelshift_l(second, first, p.shift);
        uint32_t d = 0;
        if constexpr (K == 5 || K == 6) d = second << p.shift;
        if constexpr (K == 7) d = __funnelshift_l(tile[p.at + 2], second, p.shift);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int end = K * (j + 1);  // of the window, in bits from the lane's first
            if (end < 16)
                s[j] = low_half(__funnelshift_r(c, b, 32 - end));
            else if (end == 16)
                s[j] = c >> 16;
            else if (end == 24)
                s[j] = middle_half(c);
            else if (end <= 32)
                s[j] = low_half(c >> (32 - end));
            else if (end < 48)
                s[j] = low_half(__funnelshift_r(d, c, 64 - end));
            else if (end == 48)
                s[j] = d >> 16;
            else if (end == 56)
                s[j] = middle_half(d);
            else
                s[j] = low_half(d >> (64 - end));
        }
    }
}

// The same for any n16, half-integer K included: about three times the instructions.
__device__ __forceinline__ void lane_states_any(const uint32_t* tile, int n16, int lane,
                                                uint32_t (&s)[8]) {
    const int words = n16 / 2;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        int begin = window_end(n16, 8 * lane + j) - 16;
        if (begin < 0) begin += ring_bits(n16);
        const int at = begin >> 5;
        const int next = at + 1 == words ? 0 : at + 1;
        s[j] = __funnelshift_l(tile[next], tile[at], begin & 31) >> 16;
    }
}

// Two mul1 values from product words: lower half of the result is x0's.
__device__ __forceinline__ uint32_t mul1_pair(uint32_t x0, uint32_t x1) {
    // 0x6400 + S is the f16 integer 1024 + S; one fused multiply-add, rounded once.
    const uint32_t n0 = __dp4a(x0, 0x01010101u, 0x6400u), n1 = __dp4a(x1, 0x01010101u, 0x6400u);
    uint32_t packed = __byte_perm(n0, n1, 0x5410), value;
    asm("fma.rn.f16x2 %0, %1, %2, %3;"
        : "=r"(value)
        : "r"(packed), "r"(0x1eee1eeeu), "r"(0xc931c931u));
    return value;
}

// Two 3inst or mcg values from product words.
__device__ __forceinline__ uint32_t xor_pair(uint32_t x0, uint32_t x1) {
    x0 = (x0 & kCodeMask) ^ kCodeXor;
    x1 = (x1 & kCodeMask) ^ kCodeXor;
    uint32_t value;
    asm("add.rn.f16x2 %0, %1, %2;"
        : "=r"(value)
        : "r"(__byte_perm(x0, x1, 0x5410)), "r"(__byte_perm(x0, x1, 0x7632)));
    return value;
}

template <Codebook C>
__device__ __forceinline__ uint32_t value_pair(uint32_t s0, uint32_t s1) {
    if constexpr (C == Codebook::mul1) return mul1_pair(s0 * kMul1Multiplier, s1 * kMul1Multiplier);
    if constexpr (C == Codebook::mcg) return xor_pair(s0 * kMcgMultiplier, s1 * kMcgMultiplier);
    return xor_pair(s0 * kThreeInstMultiplier + kThreeInstAddend,
                    s1 * kThreeInstMultiplier + kThreeInstAddend);
}

// f16 values in the order of the A operand of m16n8k16: row = output 0..15, column = input 0..15.
template <Codebook C>
__device__ __forceinline__ void a_fragment(const uint32_t (&s)[8], uint32_t (&a)[4]) {
    a[0] = value_pair<C>(s[0], s[1]);
    a[1] = value_pair<C>(s[4], s[5]);
    a[2] = value_pair<C>(s[2], s[3]);
    a[3] = value_pair<C>(s[6], s[7]);
}
template <int K, Codebook C>
__device__ __forceinline__ void decode_a_fragment(const uint32_t* tile, const LanePlace& place,
                                                  uint32_t (&a)[4]) {
    uint32_t s[8];
    lane_states<K>(tile, place, s);
    a_fragment<C>(s, a);
}
template <int K, Codebook C>
__device__ __forceinline__ void decode_a_fragment(const uint32_t* tile, int lane,
                                                  uint32_t (&a)[4]) {
    decode_a_fragment<K, C>(tile, lane_place<K>(lane), a);
}
// Any n16.
template <Codebook C>
__device__ __forceinline__ void decode_a_fragment(const uint32_t* tile, int n16, int lane,
                                                  uint32_t (&a)[4]) {
    uint32_t s[8];
    lane_states_any(tile, n16, lane, s);
    a_fragment<C>(s, a);
}

}  // namespace terrace::cuda
