// A row's largest logits and its mass on the GPU: entry point.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

size_t sample_scratch_bytes(const OpsLimits& limits);
Status sample_candidates(const Launch& launch, const SampleCandidatesArgs& args);

}  // namespace terrace::cuda
