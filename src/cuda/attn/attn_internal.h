// Between the files of this folder: the general kernels that fast paths fall back to.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/args.h"

namespace terrace::cuda {

Status index_scores_any(const Launch& launch, const IndexScoresArgs& args, float scale);
Status attend_any(const Launch& launch, const AttendArgs& args);

}  // namespace terrace::cuda
