// Entry points that choose between the general kernels and those for the real model's shapes.
// SPDX-License-Identifier: MIT
#include "cuda/attn/attn_ops.h"

#include <cmath>

#include "cuda/attn/attn_internal.h"
#include "cuda/attn/attn_plan.h"

namespace terrace::cuda {

size_t attn_scratch_bytes(const DeviceInfo&, const OpsLimits& limits) {
    return attend_mma_scratch_bytes(limits);
}

size_t attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim) {
    return static_cast<size_t>(rows) * static_cast<size_t>(heads) *
           static_cast<size_t>(attend_sums(head_dim)) * sizeof(float);
}

Status index_scores(const Launch& l, const IndexScoresArgs& a) {
    if (a.rows == 0) return {};
    const float scale = 1.0f / std::sqrt(static_cast<float>(a.index.dim));
    return index_scores_mma_takes(a) ? index_scores_mma(l, a, scale)
                                     : index_scores_any(l, a, scale);
}

Status attend(const Launch& l, const AttendArgs& a) {
    if (a.rows == 0) return {};
    if (!a.first_pass() || !a.last_pass())
        for (const RowRun& run : runs_within(a.step, a.first_row, a.rows))
            if (run.kind == RowKind::decode)
                return Error{Code::unsupported, "attend: passes are for prefilled rows"};
    return attend_mma_takes(a) ? attend_mma(l, a) : attend_any(l, a);
}

}  // namespace terrace::cuda
