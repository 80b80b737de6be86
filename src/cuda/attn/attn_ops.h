// The sparse-attention layer between its projections, on the GPU: entry points.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

size_t attn_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits);
size_t attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim);
Status qsa_prepare(const Launch& launch, const QsaPrepareArgs& args);
Status qsa_pool(const Launch& launch, const QsaPoolArgs& args);
Status index_scores(const Launch& launch, const IndexScoresArgs& args);
Status select_blocks(const Launch& launch, const SelectBlocksArgs& args);
Status resolve_blocks(const Launch& launch, const ResolveBlocksArgs& args);
Status attend(const Launch& launch, const AttendArgs& args);

}  // namespace terrace::cuda
