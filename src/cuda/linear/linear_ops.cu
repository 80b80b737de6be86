// SPDX-License-Identifier: MIT
#include "cuda/linear/linear_ops.h"

#include <algorithm>
#include <array>
#include <span>

#include "cuda/gemm/gemm.h"
#include "cuda/linear/gemv_exl3.h"
#include "cuda/linear/gemv_plain.h"
#include "cuda/linear/gemv_row.h"

namespace terrace::cuda {
namespace {

Status decode_rows(const Launch& launch, const LinearArgs& args, int row0, int rows) {
    std::array<LinearJob, kMaxLinearJobs> exl3, plain;
    size_t n_exl3 = 0, n_plain = 0;
    for (int j = 0; j < args.n_jobs; ++j)
        (args.jobs[j].weight->kind == LinearKind::exl3 ? exl3[n_exl3++] : plain[n_plain++]) =
            args.jobs[j];
    Input input = Input::of_previous;
    if (n_exl3 > 0) {
        const std::span<const LinearJob> list(exl3.data(), n_exl3);
        if (rows == 1 && gemv_row_serves(launch, list)) {
            TERRACE_TRY(gemv_row(launch, args, list, row0));
            input = Input::ready;
        } else {
            TERRACE_TRY(gemv_exl3(launch, args, list, row0, rows));
        }
    }
    if (n_plain > 0)
        TERRACE_TRY(gemv_plain(launch, args, {plain.data(), n_plain}, row0, rows, input));
    return {};
}

}  // namespace

size_t linear_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits) {
    const int32_t widest = std::max(limits.widest, limits.hidden);
    return gemv_exl3_scratch_bytes(info, widest, std::max(limits.vocab, kMaxLinearJobs * widest));
}

Status linear(const Launch& launch, const LinearArgs& args) {
    const RowRun whole{0, args.rows, args.rows <= kDecodeRows ? RowKind::decode : RowKind::prefill};
    const RowRun* runs = args.runs.n > 0 ? args.runs.data : &whole;
    for (int i = 0; i < std::max(args.runs.n, 1); ++i) {
        const RowRun& run = runs[i];
        if (run.kind == RowKind::prefill) {
            TERRACE_TRY(gemm_linear(launch, args, run.row0, run.n_rows));
            continue;
        }
        for (int r = 0; r < run.n_rows; r += kDecodeRows)
            TERRACE_TRY(
                decode_rows(launch, args, run.row0 + r, std::min(kDecodeRows, run.n_rows - r)));
    }
    return {};
}

}  // namespace terrace::cuda
