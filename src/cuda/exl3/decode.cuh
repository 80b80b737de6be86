// Trellis tiles decoded in registers (EXL3 format 2.2 to 2.5). Lane L of a warp owns ring positions
// 8L .. 8L+7 of a 16x16 tile, which is the operand order of the matrix instructions: position j of a
// lane is input 2(L&3) + (j&1) + 8((j>>1)&1) and output (L>>2) + 8(j>>2) of the tile.
//
// Cost per lane and tile for eight states: 9 to 13 instructions of the integer pipe, and up to 8
// shifts written as multiplications, which the pipe of the codebook's multiplications takes. A window
// of 16 bits is moved to the top of a word by such a shift and brought down by a byte permute, which
// also clears what is above it; windows 8 bits apart share the shift.
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

// v << n on the multiplier's pipe.
template <int N>
__device__ __forceinline__ uint32_t shift_up(uint32_t v) {
    if constexpr (N == 0) return v;
    uint32_t r;
    asm("mul.lo.u32 %0, %1, %2;" : "=r"(r) : "r"(v), "n"(1u << N));
    return r;
}
// The 16 bits of v that begin N bits below its top, N = 0..16.
template <int N>
__device__ __forceinline__ uint32_t window(uint32_t v) {
    if constexpr (N == 8) return __byte_perm(v, 0, 0x4421);
    if constexpr (N == 16) return v & 0xffffu;
    return __byte_perm(shift_up<N % 16>(v), 0, 0x4432);
}
// The low half of a above the high half of b: 32 bits around the border of two words.
__device__ __forceinline__ uint32_t across(uint32_t a, uint32_t b) {
    return __byte_perm(b, a, 0x5432);
}

// The lane's eight states, K = 1..8. In the comments bit 0 is the lane's first, and state j is the
// window that ends at bit K (j + 1).
template <int K>
__device__ __forceinline__ void lane_states(const uint32_t* tile, const LanePlace& p,
                                            uint32_t (&s)[8]) {
    static_assert(K >= 1 && K <= 8);
    const uint32_t before = tile[p.before], first = tile[p.at];
    if constexpr (K == 1) {
        const uint32_t v = __funnelshift_lc(first, before, p.shift + 8);  // bits -24 .. 7
        s[0] = window<9>(v), s[1] = window<10>(v), s[2] = window<11>(v), s[3] = window<12>(v);
        s[4] = window<13>(v), s[5] = window<14>(v), s[6] = window<15>(v), s[7] = window<16>(v);
    } else if constexpr (K == 2) {
        const uint32_t v = __funnelshift_lc(first, before, p.shift + 16);  // bits -16 .. 15
        const uint32_t v2 = shift_up<2>(v), v4 = shift_up<4>(v), v6 = shift_up<6>(v);
        s[0] = window<0>(v2), s[1] = window<0>(v4), s[2] = window<0>(v6), s[3] = window<8>(v);
        s[4] = window<8>(v2), s[5] = window<8>(v4), s[6] = window<8>(v6), s[7] = window<16>(v);
    } else if constexpr (K == 4) {  // a lane's bits are one word
        const uint32_t m = across(before, first);
        const uint32_t m4 = shift_up<4>(m), f4 = shift_up<4>(first);
        s[0] = window<0>(m4), s[1] = window<8>(m), s[2] = window<8>(m4), s[3] = window<0>(first);
        s[4] = window<0>(f4), s[5] = window<8>(first), s[6] = window<8>(f4);
        s[7] = window<16>(first);
    } else if constexpr (K == 6) {  // begins at the top or in the middle of a word
        const uint32_t second = tile[p.at + 1];
        const uint32_t m = __byte_perm(first, before, p.shift ? 0x3210 : 0x5432);  // bits -16 .. 15
        const uint32_t c = __byte_perm(second, first, p.shift ? 0x5432 : 0x7654);  // 0 .. 31
        const uint32_t n = __byte_perm(second, first, p.shift ? 0x3210 : 0x5432);  // 16 .. 47
        s[0] = window<6>(m), s[1] = window<12>(m), s[2] = window<2>(c), s[3] = window<8>(c);
        s[4] = window<14>(c), s[5] = window<4>(n), s[6] = window<10>(n), s[7] = window<16>(n);
    } else if constexpr (K == 8) {  // two words
        const uint32_t second = tile[p.at + 1];
        const uint32_t m = across(before, first), n = across(first, second);
        s[0] = window<8>(m), s[1] = window<0>(first);
        s[2] = window<8>(first), s[3] = window<16>(first);
        s[4] = window<8>(n), s[5] = window<0>(second);
        s[6] = window<8>(second), s[7] = window<16>(second);
    } else {
        const uint32_t second = tile[p.at + 1];
        const uint32_t b = __funnelshift_l(first, before, p.shift);  // bits -32 .. -1
        const uint32_t c = __funnelshift_l(second, first, p.shift);  // 0 .. 31
        const uint32_t m = across(b, c);                             // -16 .. 15
        if constexpr (K == 3) {
            s[0] = window<3>(m), s[1] = window<6>(m), s[2] = window<9>(m), s[3] = window<12>(m);
            s[4] = window<15>(m), s[5] = window<2>(c), s[6] = window<5>(c), s[7] = window<8>(c);
        } else if constexpr (K == 5) {
            const uint32_t n = __byte_perm(second << p.shift, c, 0x6543);  // 8 .. 39
            s[0] = window<5>(m), s[1] = window<10>(m), s[2] = window<15>(m), s[3] = window<4>(c);
            s[4] = window<9>(c), s[5] = window<14>(c), s[6] = window<11>(n), s[7] = window<16>(n);
        } else {
            const uint32_t d = __funnelshift_l(tile[p.at + 2], second, p.shift);  // 32 .. 63
            const uint32_t n = across(c, d);                                      // 16 .. 47
            s[0] = window<7>(m), s[1] = window<14>(m), s[2] = window<5>(c), s[3] = window<12>(c);
            s[4] = window<3>(n), s[5] = window<10>(n), s[6] = window<1>(d), s[7] = window<8>(d);
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
