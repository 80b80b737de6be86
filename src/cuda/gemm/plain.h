// Products with plain weights. Internal to gemm/.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include "cuda/env.h"
#include "ops/weights.h"

namespace terrace::cuda {

// y[r][o] = unscale[r] * sum_i x[r][i] * w[o][i]; `unscale` may be null (1).
struct PlainProduct {
    PlainTensor w;  // [out][in]
    int32_t in = 0, out = 0, rows = 0;
    const __half* x = nullptr;  // [rows][x_stride], 16-byte aligned, stride a multiple of 8
    int64_t x_stride = 0;
    const float* unscale = nullptr;
    float* y = nullptr;
    int64_t y_stride = 0;
};
Status plain_product(const Launch& launch, const PlainProduct& product);

// sm_90a, f16 weights, `in` a multiple of 8.
Status plain_product_wgmma(const Launch& launch, const PlainProduct& product);

}  // namespace terrace::cuda
