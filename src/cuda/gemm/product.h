// One launch of tiled EXL3 products: which weights meet which rows, and where results go. Plain
// data, passed to kernels by value; made by gemm.cu (linears) and moe.cu (experts).
//
// Activations are "tiled": [in/64][slots][64] f16, 16-byte chunk c of slot s at chunk c ^ (s & 7), so
// that the rows of a tile at one step of k are contiguous and lie as the tensor cores want them.
// Rows were transformed by suh and the Hadamard matrix and scaled by a power of two; `unscale` undoes
// the scaling and the normalisation of both transforms.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include "cuda/env.h"
#include "cuda/gemm/shape.h"
#include "ops/args.h"

namespace terrace::cuda {

constexpr int kProductCols = 128;    // outputs of a tile: one Hadamard block
constexpr int kExpertTileRows = 64;  // most rows of an expert's tile
constexpr int kSlotAlign = 8;        // an expert's slots start at a multiple: the swizzle's period

// Slots [slot, slot + rows) of one routed expert.
struct RowTile {
    int32_t expert;
    int32_t slot;
    int32_t rows;
};

// Device memory, written by the grouping kernel.
struct RowTiles {
    int32_t n_tiles;
    RowTile tiles[1];  // [n_tiles]
};

// One activation matrix and what it is multiplied with: a linear, or one projection of all experts.
struct ProductSide {
    LinearWeight weight;             // linears only
    int32_t projection = 0;          // experts only: 0 gate, 1 up, 2 down
    int32_t col_tiles = 0;           // most tiles of kProductCols outputs
    const __half* x = nullptr;       // tiled
    const float* unscale = nullptr;  // [slots]
    float* y = nullptr;              // [slots][y_stride]
    int64_t y_stride = 0;
    // When set, y is f16 instead, times a power of two per 128 columns of a slot; this undoes it.
    float* block_unscale = nullptr;  // [slots][col_tiles]
};

constexpr int kMaxSides = kMaxLinearJobs;

struct Product {
    // Only weights of this width and codebook are multiplied; the others' tiles are skipped.
    int32_t n16 = 0;
    Codebook codebook = Codebook::mul1;
    int32_t n_sides = 0;
    int32_t col_tiles = 0;  // of all sides together
    // Sides 0 and 1 are gate and up of experts and have the same y, which becomes silu(gate) * up: a
    // block does the two tiles of the same place one after the other.
    bool gated = false;
    int64_t slots = 0;  // rows of a plane of the tiled activations
    // Linears: slots [0, rows), in tiles of tile_rows. Experts: tiles from `row_tiles`.
    int32_t rows = 0;
    int32_t tile_rows = 0;
    const RowTiles* row_tiles = nullptr;
    const ExpertWeights* experts = nullptr;  // device
    ProductSide side[kMaxSides];
};

// sm_90a: wgmma, tiles of shape_rows(shape) rows.
Status product_wgmma_mul1(const Launch& launch, const Product& product, ProductShape shape);
Status product_wgmma_xor(const Launch& launch, const Product& product, ProductShape shape);

// Any GPU from sm_80 on: mma.sync. Tiles of 64 rows.
Status product_sync(const Launch& launch, const Product& product);

}  // namespace terrace::cuda
