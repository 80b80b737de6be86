// Few-row products with plain weights (f32, f16, bf16), several weights of one input in one launch.
// SPDX-License-Identifier: MIT
#pragma once
#include <span>

#include "cuda/env.h"
#include "ops/args.h"

namespace terrace::cuda {

// ready: the kernel in front only lets this one start when the input is complete, and does not write
// it, so that the two run side by side.
enum class Input : uint8_t { of_previous, ready };

// Rows [row0, row0 + rows) of x, at most kDecodeRows, times each job's weight; all jobs are plain.
Status gemv_plain(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                  int row0, int rows, Input input = Input::of_previous);

}  // namespace terrace::cuda
