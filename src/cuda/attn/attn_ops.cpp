// Entry points that choose between the general kernels and those for the real model's shapes.
// SPDX-License-Identifier: MIT
#include "cuda/attn/attn_ops.h"

#include <cmath>

#include "cuda/attn/attn_internal.h"

namespace terrace::cuda {

size_t attn_scratch_bytes(const DeviceInfo&, const OpsLimits& limits) {
    return attend_mma_scratch_bytes(limits);
}

Status index_scores(const Launch& l, const IndexScoresArgs& a) {
    if (a.rows == 0) return {};
    const float scale = 1.0f / std::sqrt(static_cast<float>(a.index.dim));
    return index_scores_mma_takes(a) ? index_scores_mma(l, a, scale)
                                     : index_scores_any(l, a, scale);
}

Status attend(const Launch& l, const AttendArgs& a) {
    if (a.rows == 0) return {};
    return attend_mma_takes(a) ? attend_mma(l, a) : attend_any(l, a);
}

}  // namespace terrace::cuda
