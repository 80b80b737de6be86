// SPDX-License-Identifier: MIT
#include "cpu/dense_linear.h"

#include "base/error.h"

namespace terrace {

void dense_outputs(const KernelTable& kernels, const DenseWeight& w, int out_begin, int out_end,
                   const float* x, size_t x_stride, int rows, float* y, size_t y_stride) {
    TERRACE_CHECK(w.type == DType::bf16 || w.type == DType::f16 || w.type == DType::f32);
    if (rows <= 0 || out_begin >= out_end) return;
    const DenseArgs args{.w = w.data,
                         .w_stride = w.stride != 0 ? w.stride : static_cast<size_t>(w.in),
                         .in = w.in,
                         .out_begin = out_begin,
                         .out_end = out_end,
                         .x = x,
                         .x_stride = x_stride,
                         .rows = rows,
                         .y = y,
                         .y_stride = y_stride};
    if (w.type == DType::bf16)
        kernels.dense.bf16(args);
    else if (w.type == DType::f16)
        kernels.dense.f16(args);
    else
        kernels.dense.f32(args);
}

void dense_linear(const KernelTable& kernels, WorkerPool& pool, const DenseWeight& w,
                  const float* x, size_t x_stride, int rows, float* y, size_t y_stride) {
    // Sixteen outputs: two steps of the widest one-row kernel, and one cache line of y.
    pool.ranges(w.out, 16, [&](int64_t begin, int64_t end, int) {
        dense_outputs(kernels, w, static_cast<int>(begin), static_cast<int>(end), x, x_stride, rows,
                      y, y_stride);
    });
}

}  // namespace terrace
