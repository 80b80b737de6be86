// Device side of product.h: which tile is the t-th, and its last step, from sums to results.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/gemm/product.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {

// A tile: 128 outputs of one weight for up to tile_rows rows.
struct Tile {
    const uint16_t* trellis;  // at the tile's first column
    int64_t row_words;        // 16-bit words from one row of trellis tiles to the next
    const __half* svh;        // at the tile's first column
    const __half* x;          // plane 0, at the tile's first slot
    const float* unscale;     // at the tile's first slot
    float* y;                 // at the tile's first slot and column
    int64_t y_stride;
    float* block_unscale;  // at the tile's first slot and column block; null: y is f32
    int block_stride;
    int gated;    // y holds the gate: multiply by its silu
    int k_steps;  // of 64 inputs, an even number
    int rows;
    int cols;  // of 128 that exist in y
};

__device__ __forceinline__ int row_tile_count(const Product& p) {
    return p.row_tiles ? p.row_tiles->n_tiles : (p.rows + p.tile_rows - 1) / p.tile_rows;
}
__device__ __forceinline__ int tile_count(const Product& p) {
    return row_tile_count(p) * p.col_tiles;
}

// The i-th tile of a block; tile_count() and more: there is none.
__device__ __forceinline__ int tile_of_block(const Product& p, int i) {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    return p.gated ? 2 * (block + (i >> 1) * blocks) + (i & 1) : block + i * blocks;
}

// False when tile t has no work in this launch. Linears: the row tiles of a column one after the
// other, so that they meet in L2. Experts: all columns of an expert one after the other.
__device__ __forceinline__ bool find_tile(const Product& p, int t, Tile& tile) {
    RowTile rows;
    int col;
    if (p.row_tiles) {
        rows = p.row_tiles->tiles[t / p.col_tiles];
        col = t % p.col_tiles;
    } else {
        const int n = row_tile_count(p);
        const int slot = (t % n) * p.tile_rows;
        rows = {0, slot, min(p.tile_rows, p.rows - slot)};
        col = t / n;
    }
    int s = 0;
    if (p.gated) {
        s = col & 1;
        col >>= 1;
    }
    while (col >= p.side[s].col_tiles)
        col -= p.side[s++].col_tiles;
    const ProductSide& side = p.side[s];
    const LinearWeight* w = &side.weight;
    if (p.row_tiles) {
        const ExpertWeights* e = p.experts + rows.expert;
        w = side.projection == 0 ? &e->gate : side.projection == 1 ? &e->up : &e->down;
    }
    const int first = col * kProductCols;
    if (w->kind != LinearKind::exl3 || w->exl3.n16 != p.n16 || w->exl3.codebook != p.codebook ||
        first >= w->out)
        return false;
    tile.trellis = w->exl3.trellis + static_cast<int64_t>(col) * 8 * p.n16;
    tile.row_words = static_cast<int64_t>(w->exl3.out / 16) * p.n16;
    tile.svh = reinterpret_cast<const __half*>(w->exl3.svh) + first;
    tile.x = side.x + static_cast<int64_t>(rows.slot) * 64;
    tile.unscale = side.unscale + rows.slot;
    tile.y_stride = side.y_stride;
    const int64_t at = rows.slot * side.y_stride + first;
    tile.block_unscale = nullptr;
    tile.y = side.y + at;
    if (side.block_unscale) {
        tile.y = reinterpret_cast<float*>(reinterpret_cast<__half*>(side.y) + at);
        tile.block_unscale =
            side.block_unscale + static_cast<int64_t>(rows.slot) * side.col_tiles + col;
    }
    tile.block_stride = side.col_tiles;
    tile.gated = p.gated && s == 1;
    tile.k_steps = w->exl3.in / 64;
    tile.rows = rows.rows;
    tile.cols = min(kProductCols, w->out - first);
    return true;
}

// Sums of up to 64 rows wait for their output transform in shared memory, [64][kStageStride] f32.
// 132 = 4 mod 32: writers (8 neighbouring outputs of rows 0, 2, 4, 6) and readers (four lanes, 16
// bytes each, of rows r and r + 4) both meet 32 different banks.
constexpr int kStageStride = 132;
constexpr int kStageFloats = 64 * kStageStride;

// Scale of a group of numbers for f16: the largest magnitude goes to [2^top, 2^(top + 1)). The
// exponent; its negative undoes it. All zeros, or one that is not finite, stay as they are.
__device__ __forceinline__ int scale_exponent(float largest, int top) {
    const int e = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    if (largest == 0.0f || e == 128) return 0;
    return top - max(e, -100);
}
__device__ __forceinline__ float power_of_two(int e) {
    return __uint_as_float(static_cast<uint32_t>(e + 127) << 23);
}

// v *= sign, plus the partner's: one stage of a Hadamard transform across lanes.
__device__ __forceinline__ float butterfly_lane(float v, int lane, int m) {
    return fmaf(lane & m ? -1.0f : 1.0f, v, __shfl_xor_sync(0xffffffffu, v, m));
}

// Writes four lanes' row: v[4q + i] is column 4(p + 4q) + i.
__device__ __forceinline__ void store_row(const Tile& tile, float (&v)[32], int row, int p) {
    if (tile.block_unscale) {
        constexpr int kTop = 13;
        float largest = 0.0f;
#pragma unroll
        for (const float e : v)
            largest = fmaxf(largest, fabsf(e));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        if (row >= tile.rows) return;
        const int e = scale_exponent(largest, kTop);
        const float scale = power_of_two(e);
        auto* y = reinterpret_cast<__half*>(tile.y) + row * tile.y_stride;
#pragma unroll
        for (int q = 0; q < 8; ++q) {
            const __half2 h[2] = {__floats2half2_rn(v[4 * q] * scale, v[4 * q + 1] * scale),
                                  __floats2half2_rn(v[4 * q + 2] * scale, v[4 * q + 3] * scale)};
            *reinterpret_cast<uint2*>(y + 4 * (p + 4 * q)) = *reinterpret_cast<const uint2*>(h);
        }
        if (p == 0)
            tile.block_unscale[static_cast<int64_t>(row) * tile.block_stride] = power_of_two(-e);
        return;
    }
    if (row >= tile.rows) return;
    float* y = tile.y + row * tile.y_stride;
    const bool vectors = (tile.y_stride & 3) == 0 && (reinterpret_cast<uintptr_t>(y) & 15) == 0 &&
                         tile.cols == kProductCols;
    if (vectors) {
#pragma unroll
        for (int half = 0; half < 32; half += 16) {
            if (tile.gated) {
                float4 g[4];
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    g[q] = *reinterpret_cast<const float4*>(y + 4 * p + 16 * q + 4 * half);
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    v[half + 4 * q] *= siluf(g[q].x), v[half + 4 * q + 1] *= siluf(g[q].y);
                    v[half + 4 * q + 2] *= siluf(g[q].z), v[half + 4 * q + 3] *= siluf(g[q].w);
                }
            }
#pragma unroll
            for (int q = 0; q < 4; ++q)
                *reinterpret_cast<float4*>(y + 4 * p + 16 * q + 4 * half) = make_float4(
                    v[half + 4 * q], v[half + 4 * q + 1], v[half + 4 * q + 2], v[half + 4 * q + 3]);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 32; ++j) {
        const int c = 4 * (p + 4 * (j >> 2)) + (j & 3);
        if (c < tile.cols) y[c] = tile.gated ? siluf(y[c]) * v[j] : v[j];
    }
}

// 256 threads: y[row0 + r][0..cols) = Hadamard(stage[r]) * svh * unscale, r = 0..63. Four lanes per
// row; lane p has elements 4(p + 4q) + i. Numerics: f32, stages 1 2 16 32 64 4 8.
__device__ __forceinline__ void finish_rows(const Tile& tile, const float* stage, int row0,
                                            int warp, int lane) {
    const int p = lane & 3, r = warp * 8 + ((lane >> 2) & 1) * 4 + (lane >> 3);
    if (row0 + warp * 8 >= tile.rows) return;  // nobody of this warp has a row
    uint2 svh[8];                              // f16; asked for early, used late
#pragma unroll
    for (int q = 0; q < 8; ++q)
        svh[q] = __ldg(reinterpret_cast<const uint2*>(tile.svh + 4 * (p + 4 * q)));
    const float scale = row0 + r < tile.rows ? tile.unscale[row0 + r] : 0.0f;
    float v[32];
#pragma unroll
    for (int q = 0; q < 8; ++q) {
        const float4 f =
            *reinterpret_cast<const float4*>(stage + r * kStageStride + 4 * (p + 4 * q));
        const float a = f.x + f.y, b = f.x - f.y, c = f.z + f.w, d = f.z - f.w;
        v[4 * q] = a + c, v[4 * q + 1] = b + d, v[4 * q + 2] = a - c, v[4 * q + 3] = b - d;
    }
#pragma unroll
    for (int m = 4; m < 32; m *= 2)
#pragma unroll
        for (int i = 0; i < 32; ++i)
            if (!(i & m)) {
                const float a = v[i], b = v[i + m];
                v[i] = a + b;
                v[i + m] = a - b;
            }
#pragma unroll
    for (int m = 1; m < 4; m *= 2)
#pragma unroll
        for (int i = 0; i < 32; ++i)
            v[i] = butterfly_lane(v[i], lane, m);
#pragma unroll
    for (int q = 0; q < 8; ++q) {
        const float2 s0 = __half22float2(*reinterpret_cast<const __half2*>(&svh[q].x));
        const float2 s1 = __half22float2(*reinterpret_cast<const __half2*>(&svh[q].y));
        v[4 * q] *= s0.x * scale, v[4 * q + 1] *= s0.y * scale;
        v[4 * q + 2] *= s1.x * scale, v[4 * q + 3] *= s1.y * scale;
    }
    store_row(tile, v, row0 + r, p);
}

}  // namespace terrace::cuda
