// SPDX-License-Identifier: MIT
#include "cuda/attn/attn_plan.h"

#include <algorithm>

namespace terrace::cuda {

std::vector<Segments> row_segments(const StepRows& step, int32_t first_row, int32_t rows) {
    std::vector<Segments> lists;
    for (int32_t s = 0; s < step.n_seqs; ++s) {
        const SeqRows& seq = step.host_seqs[s];
        const int32_t from = std::max(seq.row0, first_row);
        const int32_t to = std::min(seq.row0 + seq.n_rows, first_row + rows);
        if (from >= to) continue;
        if (lists.empty() || lists.back().n == kMaxSegments) lists.emplace_back();
        Segments& list = lists.back();
        list.at[list.n++] = {s, from, to - from};
    }
    return lists;
}

std::vector<RowRun> runs_within(const StepRows& step, int32_t first_row, int32_t rows) {
    const RowRun whole{0, step.n_rows,
                       step.n_rows <= kDecodeRows ? RowKind::decode : RowKind::prefill};
    const RowRun* runs = step.runs.n > 0 ? step.runs.data : &whole;
    std::vector<RowRun> out;
    for (int32_t i = 0; i < std::max(step.runs.n, 1); ++i) {
        const int32_t from = std::max(runs[i].row0, first_row);
        const int32_t to = std::min(runs[i].row0 + runs[i].n_rows, first_row + rows);
        if (from >= to) continue;
        if (!out.empty() && out.back().kind == runs[i].kind)
            out.back().n_rows += to - from;
        else
            out.push_back({from, to - from, runs[i].kind});
    }
    return out;
}

}  // namespace terrace::cuda
