// Kernels of the experts beside the products: grouping rows by expert, plain experts, the weighted
// sum. Internal to gemm/.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/gemm/product.h"

namespace terrace::cuda {

// Item q = row * k + j is the j-th choice of a row, item rows * k + row its shared expert. The shared
// expert's slots come first, row r at slot r, so that its products are those of a linear.
struct ExpertItems {
    const int32_t* ids = nullptr;  // [rows][k]
    int32_t rows = 0, k = 0;
    int32_t n_experts = 0;
    bool with_shared = false;
    RowTiles* tiles = nullptr;        // out
    int32_t* slot_of_item = nullptr;  // out, [rows * k]
};
__host__ __device__ inline int item_count(const ExpertItems& p) {
    return p.rows * (p.k + (p.with_shared ? 1 : 0));
}
__device__ inline int slot_of(const ExpertItems& p, int item) {
    const int n = p.rows * p.k;
    return item < n ? p.slot_of_item[item] : item - n;
}

// Most choices of one group_items(): what a block keeps in registers.
constexpr int kMaxChoices = 20 * 1024;

Status group_items(const Launch& launch, const ExpertItems& items);

// Plain projections of all items, straight from f32 activations: slow, any sizes.
struct PlainExperts {
    const float* x = nullptr;  // gate, up: [rows][stride] by row; down: [slots][stride]
    int64_t x_stride = 0;
    const ExpertItems* items = nullptr;
    const ExpertWeights* experts = nullptr;
    ExpertWeights shared;
    int32_t projection = 0;
    float* y = nullptr;  // [slots][y_stride]
    int64_t y_stride = 0;
};
Status plain_experts(const Launch& launch, const PlainExperts& args);

// y[r] = sum_j weights[r][j] * e[slot of (r, j)] (j ascending)
//      + sigmoid(<x, gate>, or gate_dot[r]) * e[shared slot of r].
struct ExpertSum {
    const float* x = nullptr;
    const float* weights = nullptr;
    const ExpertItems* items = nullptr;
    const void* e = nullptr;               // [slots][hidden] f32, or f16 with:
    const float* block_unscale = nullptr;  // [slots][hidden / 128], y 16-byte aligned
    PlainTensor gate;
    const float* gate_dot = nullptr;  // [rows], instead of `gate`
    float* y = nullptr;
    int32_t hidden = 0;
};
Status sum_experts(const Launch& launch, const ExpertSum& args);

}  // namespace terrace::cuda
