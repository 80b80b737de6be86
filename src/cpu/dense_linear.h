// Dense linear layers on the CPU: y[r][o] = sum over k of w[o][k] * x[r][k], weights as stored
// (bf16, f16 or f32), activations and results fp32. For routers, heads and layers that a checkpoint
// leaves unquantised. Called by the pool's own caller; allocates nothing.
//
// A result's bits depend on its row of w and its row of x only (linear_dense.h gives the order).
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>

#include "base/types.h"
#include "base/worker_pool.h"
#include "cpu/kernels.h"

namespace terrace {

struct DenseWeight {
    const void* data = nullptr;  // [out][stride], 16-bit types at any even address
    DType type = DType::bf16;    // bf16, f16 or f32; anything else stops the process
    int in = 0;                  // any positive size, no padding is read
    int out = 0;
    size_t stride = 0;  // elements from one output to the next; 0 = in
};

void dense_linear(const KernelTable& kernels, WorkerPool& pool, const DenseWeight& w,
                  const float* x, size_t x_stride, int rows, float* y, size_t y_stride);

// The outputs [out_begin, out_end) only, on the calling thread.
void dense_outputs(const KernelTable& kernels, const DenseWeight& w, int out_begin, int out_end,
                   const float* x, size_t x_stride, int rows, float* y, size_t y_stride);

}  // namespace terrace
