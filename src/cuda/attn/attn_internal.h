// Between the files of this folder: the kernels for the real model's shapes, what they take, and the
// general kernels for everything else.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

bool index_scores_mma_takes(const IndexScoresArgs& args);
Status index_scores_mma(const Launch& launch, const IndexScoresArgs& args, float scale);
Status index_scores_any(const Launch& launch, const IndexScoresArgs& args, float scale);

// What a pass leaves of a (row, head) to the next, in floats: maximum, padding, four partial totals,
// padding, then the sums [head_dim].
constexpr int kAttendTotals = 4;
constexpr int attend_sums(int head_dim) {
    return 8 + head_dim;
}

size_t attend_mma_scratch_bytes(const OpsLimits& limits);
bool attend_mma_takes(const AttendArgs& args);
Status attend_mma(const Launch& launch, const AttendArgs& args);
Status attend_any(const Launch& launch, const AttendArgs& args);

}  // namespace terrace::cuda
