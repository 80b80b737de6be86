// Inner product of EXL3 tiles with up to 16 tokens, in registers: a warp takes row tiles (16 inputs)
// of TILES column tiles from its ring, decodes each weight once, and multiplies it with all tokens.
// Weights are the A operand (16 outputs), tokens the B operand.
//
// integer: the product word state * 0x83dcd12d is four bytes whose sum is the code value up to scale
// and offset, so that words go into m16n8k32.u8.s8 as they are, against activations repeated four
// times (EXL3 format 3.10). acc[tile][group][0], [1] are hi and lo sums of output lane / 4 and token
// 4 * group + lane % 4, [2] and [3] of output lane / 4 + 8. int32 holds 16000 inputs.
// half: f16 code values into m16n8k16, f32 sums; [0], [1] are tokens 8 * group + 2 * (lane % 4) + 0, 1.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "cuda/exl3/decode.cuh"
#include "cuda/exl3/input.cuh"
#include "cuda/exl3/warp_ring.cuh"

namespace terrace::cuda {

constexpr int kMaxExactInputs = 16000;  // 16000 * 1020 * 128 < 2^31

__device__ __forceinline__ void mma(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <Arithmetic A>
struct Arith;
template <>
struct Arith<Arithmetic::integer> {
    using Acc = int;
    using Word = uint32_t;  // a lane's part of a token's planes of one row tile
    using Total = long long;
    static constexpr int kTokens = 4;  // per group
    static constexpr int kWords = 8;   // per token and row tile
    __device__ static Word none() { return 0; }
};
template <>
struct Arith<Arithmetic::half> {
    using Acc = float;
    using Word = uint2;
    using Total = float;
    static constexpr int kTokens = 8;
    static constexpr int kWords = 4;
    __device__ static Word none() { return make_uint2(0, 0); }
};

// One warp's share of a product. B's columns belong to lane / kWords of a group; from[g] is where the
// lane's words begin in `planes`, at the warp's first row tile, negative for absent tokens.
template <Arithmetic A, int GROUPS>
struct WarpWork {
    WarpRing* ring;
    int n;  // row tiles
    const typename Arith<A>::Word* planes;
    int from[GROUPS];
    int step;  // words between the warp's row tiles
    int n16;
    uint32_t multiplier, addend;  // of the codebook; half only
};

// K = 0: any n16.
template <int K, Arithmetic A, int GROUPS, int TILES>
__device__ __forceinline__ void multiply_tiles(const WarpWork<A, GROUPS>& w, int lane,
                                               typename Arith<A>::Acc (&acc)[TILES][GROUPS][4]) {
    using Word = typename Arith<A>::Word;
    const LanePlace place = K > 0 ? lane_place < K == 0 ? 1 : K > (lane) : LanePlace{};
    const int tile_words = K > 0 ? 8 * K : w.n16 / 2;
    Word next[GROUPS];
    const auto load = [&](int i) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g)
            next[g] =
                i < w.n && w.from[g] >= 0 ? w.planes[w.from[g] + i * w.step] : Arith<A>::none();
    };
    load(0);
    for (int i = 0; i < w.n;) {
        const uint32_t* words = w.ring->acquire();
        const int stop = min(i + kSlotPieces, w.n);
#pragma unroll 1
        for (; i < stop; ++i, words += TILES * tile_words) {
            uint32_t b[GROUPS][4];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                if constexpr (A == Arithmetic::integer) {
                    b[g][0] = __byte_perm(next[g], 0, 0x0000);
                    b[g][1] = __byte_perm(next[g], 0, 0x1111);
                    b[g][2] = __byte_perm(next[g], 0, 0x2222);
                    b[g][3] = __byte_perm(next[g], 0, 0x3333);
                } else {
                    b[g][0] = next[g].x, b[g][1] = next[g].y;
                }
            }
            load(i + 1);
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                uint32_t s[8];
                if constexpr (K > 0)
                    lane_states<K>(words + t * 8 * K, place, s);
                else
                    lane_states_any(words + t * tile_words, w.n16, lane, s);
                if constexpr (A == Arithmetic::integer) {
#pragma unroll
                    for (int j = 0; j < 8; ++j)
                        s[j] *= kMul1Multiplier;
#pragma unroll
                    for (int g = 0; g < GROUPS; ++g)
                        mma(acc[t][g], s[0], s[4], s[1], s[5], b[g][0], b[g][1]);
#pragma unroll
                    for (int g = 0; g < GROUPS; ++g)
                        mma(acc[t][g], s[2], s[6], s[3], s[7], b[g][2], b[g][3]);
                } else {
#pragma unroll
                    for (int j = 0; j < 8; ++j)
                        s[j] = s[j] * w.multiplier + w.addend;
                    const uint32_t a0 = xor_pair(s[0], s[1]), a1 = xor_pair(s[4], s[5]),
                                   a2 = xor_pair(s[2], s[3]), a3 = xor_pair(s[6], s[7]);
#pragma unroll
                    for (int g = 0; g < GROUPS; ++g)
                        mma(acc[t][g], a0, a1, a2, a3, b[g][0], b[g][1]);
                }
            }
        }
        w.ring->release();
    }
}

// The same for a width known at run time; uniform over the warp.
template <Arithmetic A, int GROUPS, int TILES>
__device__ __forceinline__ void multiply_warp(const WarpWork<A, GROUPS>& w, int lane,
                                              typename Arith<A>::Acc (&acc)[TILES][GROUPS][4]) {
    switch (w.n16) {
        case 16:
            return multiply_tiles<1>(w, lane, acc);
        case 32:
            return multiply_tiles<2>(w, lane, acc);
        case 48:
            return multiply_tiles<3>(w, lane, acc);
        case 64:
            return multiply_tiles<4>(w, lane, acc);
        case 80:
            return multiply_tiles<5>(w, lane, acc);
        case 96:
            return multiply_tiles<6>(w, lane, acc);
        case 112:
            return multiply_tiles<7>(w, lane, acc);
        case 128:
            return multiply_tiles<8>(w, lane, acc);
        default:
            return multiply_tiles<0>(w, lane, acc);
    }
}

}  // namespace terrace::cuda
