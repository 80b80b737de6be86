// Tiled products for many rows (RowKind::prefill): weights are the A operand of the tensor cores,
// decoded in registers once per tile of rows. A row's bits depend on its own input and the weight's
// shape only: rows are padded, never regrouped, and k runs in one fixed order.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

size_t gemm_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits);

// Rows [row0, row0 + n_rows) of every job of `args`, EXL3 and plain.
Status gemm_linear(const Launch& launch, const LinearArgs& args, int row0, int n_rows);

// y[r][o] = sum_i x[r][i] * w[o][i]; x is f16 with a stride of a multiple of 8 elements and a 16-byte
// aligned base, w of any dtype (rounded to f16), y f32. Uses no scratch.
Status gemm_plain(const Launch& launch, const PlainTensor& w, int in, int out, const __half* x,
                  int64_t x_stride, int rows, float* y, int64_t y_stride);

// Rows [row0, row0 + n_rows) of `args`: all experts, any number of rows each, the shared one too.
Status moe_prefill(const Launch& launch, const MoeArgs& args, int row0, int n_rows);

}  // namespace terrace::cuda
