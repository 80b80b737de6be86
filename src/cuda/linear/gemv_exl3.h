// Few-row products with EXL3 weights, several weights of one input in one launch.
// SPDX-License-Identifier: MIT
#pragma once
#include <span>

#include "cuda/env.h"
#include "ops/args.h"

namespace terrace::cuda {

// For up to kMaxLinearJobs weights of `widest` inputs and `outputs` outputs in all.
size_t gemv_exl3_scratch_bytes(const DeviceInfo& info, int32_t widest, int32_t outputs);

// Rows [row0, row0 + rows) of x, at most kDecodeRows, times each job's weight; all jobs are EXL3.
Status gemv_exl3(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                 int row0, int rows);

}  // namespace terrace::cuda
