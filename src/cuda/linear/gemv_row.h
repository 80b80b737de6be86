// EXL3 linears of one decoded row with exact integer sums (mul1), made for latency.
// SPDX-License-Identifier: MIT
#pragma once
#include <span>

#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

// True for jobs that gemv_row takes: all of one padded input, with a plan (plan_row).
bool gemv_row_serves(const Launch& launch, std::span<const LinearJob> jobs);

// Row `row` of all jobs, in one launch. Same bits as gemv_exl3. The kernel behind it may start when the
// input is complete, and not before.
Status gemv_row(const Launch& launch, const LinearArgs& args, std::span<const LinearJob> jobs,
                int row);

}  // namespace terrace::cuda
