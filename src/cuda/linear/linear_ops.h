// Linears on the GPU: entry points. Decoded rows go through the matrix-vector family in groups of
// up to kDecodeRows, prefilled rows through the tiled family; see plan.h for the choice.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

size_t linear_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits);
Status linear(const Launch& launch, const LinearArgs& args);

}  // namespace terrace::cuda
