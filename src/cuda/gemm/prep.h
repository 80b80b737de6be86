// Activations for the tiled products: transformed, scaled by a power of two per row, rounded to f16
// and laid out as product.h says; and row-major f16 for plain weights. Internal to gemm/.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/gemm/product.h"

namespace terrace::cuda {

// Rows of one input for several weights: side i gets x * suh_i.
struct PrepSide {
    const f16* suh = nullptr;
    int32_t in_padded = 0;
    __half* to = nullptr;      // tiled
    float* unscale = nullptr;  // [slots]
};
struct PrepRows {
    const float* x = nullptr;  // [rows][x_stride]
    int64_t x_stride = 0;
    int32_t rows = 0;
    int32_t in = 0;
    int64_t slots = 0;
    int32_t n_sides = 0;
    PrepSide side[kMaxSides];
};
Status prep_rows(const Launch& launch, const PrepRows& args);

// Row-major f16 for plain weights: to[r][i] = x[r][i] * 2^e, zeros up to to_stride.
Status prep_plain(const Launch& launch, const float* x, int64_t x_stride, int rows, int in,
                  __half* to, int64_t to_stride, float* unscale);

// Slots of grouped experts. Item i = row * items_per_row + j; j == k is the shared expert.
struct PrepExperts {
    const float* x = nullptr;  // [rows][hidden]
    const int32_t* ids = nullptr;
    int32_t hidden = 0, k = 0, items_per_row = 0;
    const RowTiles* tiles = nullptr;
    const int32_t* item_of_slot = nullptr;  // -1: padding
    const ExpertWeights* experts = nullptr;
    int32_t n_experts = 0;
    ExpertWeights shared;
    int64_t slots = 0;
    // gate and up: x by item. down: silu(g) * u.
    __half* gate_x = nullptr;
    __half* up_x = nullptr;
    float* gate_unscale = nullptr;
    float* up_unscale = nullptr;
    float* g = nullptr;        // [slots][width]; plain downs get silu(g) * u here, in f32
    const float* u = nullptr;  // [slots][width]
    int32_t width = 0;
    __half* down_x = nullptr;
    float* down_unscale = nullptr;
};
Status prep_experts_in(const Launch& launch, const PrepExperts& args, int slots);
Status prep_experts_down(const Launch& launch, const PrepExperts& args, int slots);

}  // namespace terrace::cuda
