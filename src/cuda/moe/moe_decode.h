// Experts of few rows. The fast path takes mul1 EXL3 experts in three launches, or two for one row; the generic one
// takes any mixture of kinds, one block per (row, choice): small test models, and whatever a
// checkpoint leaves unquantised.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

size_t moe_decode_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits);

// True when every expert, the shared one too, is a mul1 EXL3 one of the same padded sizes.
bool moe_decode_is_fast(const MoeArgs& args);

// Rows [row0, row0 + rows) of `args`, at most kDecodeRows.
Status moe_decode_fast(const Launch& launch, const MoeArgs& args, int row0, int rows);
// Row `row` alone, for args that are fast.
bool moe_decode_row_serves(const Launch& launch, const MoeArgs& args);
Status moe_decode_row(const Launch& launch, const MoeArgs& args, int row);
Status moe_decode_any(const Launch& launch, const MoeArgs& args, int row0, int rows);

}  // namespace terrace::cuda
