// Products with plain weights. Internal to gemm/.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include "cuda/env.h"
#include "ops/args.h"

namespace terrace::cuda {

struct PlainJob {
    PlainTensor w;  // [out][in]
    int32_t out = 0;
    float* y = nullptr;
    int64_t y_stride = 0;
};

// Of every job: y[r][o] = unscale[r] * sum_i x[r][i] * w[o][i]; `unscale` may be null (1).
struct PlainProduct {
    int32_t in = 0, rows = 0;
    const __half* x = nullptr;  // [rows][x_stride], 16-byte aligned, stride a multiple of 8
    int64_t x_stride = 0;
    const float* unscale = nullptr;
    int32_t n_jobs = 0;
    PlainJob jobs[kMaxLinearJobs];
};
Status plain_product(const Launch& launch, const PlainProduct& product);

// Few outputs over many inputs would not fill a GPU: the inputs are shared by eight blocks.
constexpr bool shares_inputs(int in, int out) {
    return in >= 4096 ? out <= 1024 : in >= 2048 && out <= 64;
}
// sm_90a, all jobs f16 with the same answer of shares_inputs(), `in` a multiple of 8.
Status plain_product_wgmma(const Launch& launch, const PlainProduct& product);

}  // namespace terrace::cuda
