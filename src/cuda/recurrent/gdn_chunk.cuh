// The chunk form's common ground: tile shapes in scratch, fragments of the tensor cores, and
// numbers as sums of two f16. Only for heads of 128 x 128.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include "cuda/ptx/async.cuh"

namespace terrace::cuda::chunk {

constexpr int kRows = 64;  // tokens of a chunk
constexpr int kDim = 128;

// Rows of tiles are stored as they lie in shared memory, longer than their data, so that a bulk
// copy brings a tile whole and 8 neighbouring rows meet all banks.
constexpr int kWideStride = kDim + 8;   // f16 rows of 128
constexpr int kPairStride = kRows + 8;  // rows of 64: f16 of token pairs, f32 of V^T
constexpr int kWideTile = kRows * kWideStride;
constexpr int kPairTile = kRows * kPairStride;
constexpr int kValueTile = kDim * kPairStride;
constexpr int kGates = 3 * kRows;

// What the prepare launch leaves for the walk, per tile of 64 rows of a sequence. T = (I + A)^-1.
struct Tiles {
    __half* q = nullptr;     // [tile][k head][64][kWideStride], normalised, times 1 / sqrt(128)
    __half* k = nullptr;     // the same, normalised
    __half* t = nullptr;     // [tile][v head][64][kPairStride]
    __half* p = nullptr;     // the same: <q_i, k_j> D_ij, 0 for j > i
    float* v = nullptr;      // [tile][v head][128][kPairStride]: beta V, transposed
    float* gates = nullptr;  // [tile][v head]: exp(G_i), exp(G_last - G_i), beta_i exp(G_i)
};

// Two f16 whose sum is x to 22 bits, of a pair of neighbouring numbers.
struct Split {
    uint32_t hi, lo;
};
__device__ __forceinline__ uint32_t pack(__half2 v) {
    return *reinterpret_cast<uint32_t*>(&v);
}
__device__ __forceinline__ Split split(float x, float y) {
    const __half2 hi = __floats2half2_rn(x, y);
    const float2 back = __half22float2(hi);
    return {pack(hi), pack(__floats2half2_rn(x - back.x, y - back.y))};
}

// c[16][8] += a[16][16] * b[16][8]. Lane l has c of rows l / 4 and l / 4 + 8, columns 2 (l % 4) and
// the next; so two neighbouring c tiles are an a operand.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// b operands of two column tiles: rows n of [n][k] (plain), or of [k][n] (transposed).
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const __half* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(shared_address(p))
                 : "memory");
}
__device__ __forceinline__ void load_b_transposed(uint32_t (&b)[4], const __half* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(shared_address(p))
                 : "memory");
}

}  // namespace terrace::cuda::chunk
