// Router and experts on the GPU: entry points.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

size_t moe_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits);
Status route(const Launch& launch, const RouteArgs& args);
Status moe(const Launch& launch, const MoeArgs& args);

}  // namespace terrace::cuda
