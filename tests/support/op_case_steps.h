// Shared by the files of op_cases.h: inputs by row and position, and the steps that cases run in.
// SPDX-License-Identifier: MIT
#pragma once
#include "support/op_cases.h"

namespace terrace::test {

uint64_t mix(uint64_t a, uint64_t b);
void append(std::vector<float>& to, const std::vector<float>& from);

// What the rows of an endless batch or token stream hold.
std::vector<float> rows_of(uint64_t seed, uint64_t tag, int first, int rows, size_t width,
                           float scale = 1.0f);
std::vector<float> seq_rows(const std::vector<SeqCase>& seqs, uint64_t tag, size_t width,
                            float scale = 1.0f);

// Rows of `width` with the element of `s` put in.
std::vector<float> spoiled(std::vector<float> rows, const Spoil& s, size_t width);

struct Step {
    StepRows rows;
    std::vector<SeqRows> seqs;
    std::vector<RowRun> runs;
    std::vector<int32_t> table;
    int n_pages = 0;  // physical
};

// Pages of all sequences in one shuffled order, with a hole of one unused page per sequence.
Step make_step(Rig& rig, const std::vector<SeqCase>& cases, uint64_t page_seed,
               int mapped_pages = 0);

}  // namespace terrace::test
