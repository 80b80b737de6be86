// Device side of product.h: which tile is the t-th, and its last step, from sums to results.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/gemm/product.h"

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
    while (col >= p.side[s].col_tiles)
        col -= p.side[s++].col_tiles;
    const ProductSide& side = p.side[s];
    const LinearWeight* w = &side.weight;
    if (p.row_tiles) {
        const ExpertWeights* e = rows.expert == p.n_experts ? &p.shared : p.experts + rows.expert;
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
    tile.y = side.y + rows.slot * side.y_stride + first;
    tile.y_stride = side.y_stride;
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

// v *= sign, plus the partner's: one stage of a Hadamard transform across lanes.
__device__ __forceinline__ float butterfly_lane(float v, int lane, int m) {
    return fmaf(lane & m ? -1.0f : 1.0f, v, __shfl_xor_sync(0xffffffffu, v, m));
}

// 256 threads: y[row0 + r][0..cols) = Hadamard(stage[r]) * svh * unscale, r = 0..63. Four lanes per
// row; lane p has elements 4(p + 4q) + i. Numerics: f32, stages 1 2 16 32 64 4 8.
__device__ __forceinline__ void finish_rows(const Tile& tile, const float* stage, int row0,
                                            int warp, int lane) {
    const int p = lane & 3, r = warp * 8 + ((lane >> 2) & 1) * 4 + (lane >> 3);
    if (row0 + warp * 8 >= tile.rows) return;  // nobody of this warp has a row
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

    const int row = row0 + r;
    if (row >= tile.rows) return;
    const float scale = tile.unscale[row];
    float* y = tile.y + row * tile.y_stride;
    const bool vectors = (tile.y_stride & 3) == 0 && (reinterpret_cast<uintptr_t>(y) & 15) == 0;
#pragma unroll
    for (int q = 0; q < 8; ++q) {
        const int c = 4 * (p + 4 * q);
        const uint2 bits = *reinterpret_cast<const uint2*>(tile.svh + c);
        const float2 s0 = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
        const float2 s1 = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
        const float4 out = {v[4 * q] * s0.x * scale, v[4 * q + 1] * s0.y * scale,
                            v[4 * q + 2] * s1.x * scale, v[4 * q + 3] * s1.y * scale};
        if (vectors && c + 4 <= tile.cols) {
            *reinterpret_cast<float4*>(y + c) = out;
        } else {
            if (c < tile.cols) y[c] = out.x;
            if (c + 1 < tile.cols) y[c + 1] = out.y;
            if (c + 2 < tile.cols) y[c + 2] = out.z;
            if (c + 3 < tile.cols) y[c + 3] = out.w;
        }
    }
}

}  // namespace terrace::cuda
