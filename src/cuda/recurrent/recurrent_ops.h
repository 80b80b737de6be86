// Gated delta net and n-gram injection on the GPU: entry points.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

size_t recurrent_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits);
Status gdn(const Launch& launch, const GdnArgs& args);
Status ple_inject(const Launch& launch, const PleInjectArgs& args);

}  // namespace terrace::cuda
