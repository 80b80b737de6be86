// Kernels of the experts beside the products: grouping rows by expert, plain experts, the weighted
// sum. Internal to gemm/.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/gemm/product.h"

namespace terrace::cuda {

// Item i = row * items_per_row + j is the j-th choice of a row; j == k is the shared expert.
struct ExpertItems {
    const int32_t* ids = nullptr;  // [rows][k]
    int32_t rows = 0, k = 0, items_per_row = 0;
    int32_t n_experts = 0;
    RowTiles* tiles = nullptr;        // out
    int32_t* item_of_slot = nullptr;  // out; -1: padding
    int32_t* slot_of_item = nullptr;  // out
};
Status group_items(const Launch& launch, const ExpertItems& items);

// Plain projections of a slot, straight from f32 activations: slow, any sizes.
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
Status plain_experts(const Launch& launch, const PlainExperts& args, int slots);

// y[r] = sum_j weights[r][j] * e[slot of (r, j)] (j ascending)
//      + sigmoid(<x, gate>, or gate_dot[r]) * e[slot of (r, k)].
struct ExpertSum {
    const float* x = nullptr;
    const float* weights = nullptr;
    const int32_t* slot_of_item = nullptr;
    const float* e = nullptr;  // [slots][hidden]
    PlainTensor gate;
    const float* gate_dot = nullptr;  // [rows], instead of `gate`
    float* y = nullptr;
    int32_t rows = 0, hidden = 0, k = 0, items_per_row = 0;
};
Status sum_experts(const Launch& launch, const ExpertSum& args);

}  // namespace terrace::cuda
