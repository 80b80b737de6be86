// How the rows of an attention call are cut for launches: pure host functions of the sequences'
// row0 and n_rows and of the runs, so that a captured launch stays right when positions change.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <vector>

#include "ops/args.h"

namespace terrace::cuda {

// Rows of one sequence: rows [row0, row0 + n_rows) of the step.
struct Segment {
    int32_t seq = 0;
    int32_t row0 = 0;
    int32_t n_rows = 0;
};

// Segments that one launch takes as an argument.
constexpr int kMaxSegments = 64;
struct Segments {
    int32_t n = 0;
    Segment at[kMaxSegments] = {};
};

// The rows [first_row, first_row + rows) of a step by sequence, ascending, cut into as many lists as
// are needed.
std::vector<Segments> row_segments(const StepRows& step, int32_t first_row, int32_t rows);

// The runs of a step inside rows [first_row, first_row + rows), ascending, neighbours of one kind
// joined. Without runs: one, decoded up to kDecodeRows rows of the whole step.
std::vector<RowRun> runs_within(const StepRows& step, int32_t first_row, int32_t rows);

}  // namespace terrace::cuda
