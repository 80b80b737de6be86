// SPDX-License-Identifier: MIT
#include "cuda/moe/moe_ops.h"

#include <algorithm>

#include "cuda/gemm/gemm.h"
#include "cuda/moe/moe_decode.h"

namespace terrace::cuda {

size_t moe_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits) {
    return moe_decode_scratch_bytes(info, limits);
}

Status moe(const Launch& launch, const MoeArgs& args) {
    const RowRun whole{0, args.rows, args.rows <= kDecodeRows ? RowKind::decode : RowKind::prefill};
    const RowRun* runs = args.runs.n > 0 ? args.runs.data : &whole;
    bool checked = false, fast = false;
    for (int i = 0; i < std::max(args.runs.n, 1); ++i) {
        const RowRun& run = runs[i];
        if (run.kind == RowKind::prefill) {
            TERRACE_TRY(moe_prefill(launch, args, run.row0, run.n_rows));
            continue;
        }
        if (!checked) fast = moe_decode_is_fast(args);
        checked = true;
        for (int r = 0; r < run.n_rows; r += kDecodeRows) {
            const int rows = std::min(kDecodeRows, run.n_rows - r);
            TERRACE_TRY(fast && rows == 1 && moe_decode_row_serves(launch, args)
                            ? moe_decode_row(launch, args, run.row0 + r)
                        : fast ? moe_decode_fast(launch, args, run.row0 + r, rows)
                               : moe_decode_any(launch, args, run.row0 + r, rows));
        }
    }
    return {};
}

}  // namespace terrace::cuda
