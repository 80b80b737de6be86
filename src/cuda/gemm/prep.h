// Activations for the tiled products: transformed, scaled by a power of two per row, rounded to f16
// and laid out as product.h says; and row-major f16 for plain weights. Internal to gemm/.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/gemm/moe.h"

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

// Activations of grouped experts. in: x by row, for the gate and the up projection of every choice.
// down: silu(g) * u by slot, or g alone where the product already made it so.
struct PrepExperts {
    const ExpertItems* items = nullptr;
    const float* x = nullptr;  // [rows][hidden]
    int32_t hidden = 0;
    const ExpertWeights* experts = nullptr;
    ExpertWeights shared;
    int64_t slots = 0;
    __half* gate_x = nullptr;  // tiled
    __half* up_x = nullptr;
    float* gate_unscale = nullptr;  // [slots]
    float* up_unscale = nullptr;
    float* g = nullptr;        // [slots][width]; plain downs get silu(g) * u here, in f32
    const float* u = nullptr;  // [slots][width]
    bool fused = false;        // g of routed EXL3 gates is silu(g) * u
    int32_t width = 0;
    __half* down_x = nullptr;
    float* down_unscale = nullptr;
};
Status prep_experts_in(const Launch& launch, const PrepExperts& args);
Status prep_experts_down(const Launch& launch, const PrepExperts& args);

}  // namespace terrace::cuda
