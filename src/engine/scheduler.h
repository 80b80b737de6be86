// What the next step computes: a pure function of the running sequences, printable, tested without
// a model. Every sequence that decodes gets its one row; then prompts get what is left of the
// budget, oldest first.
//
// A prompt is cut only at multiples of 64 rows from where its prefill began (kGdnChunk), unless the
// cut is its end: so a sequence's logits do not depend on the chunk size or on who else is there.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace terrace {

struct RunState {
    int32_t prompt_left = 0;  // prompt tokens not yet computed; 0: it decodes
    uint64_t order = 0;       // of arrival
};

struct StepItem {
    int32_t run = 0;   // index of the RunState
    int32_t rows = 0;  // 1 for a decoding sequence
};

struct StepPlan {
    std::vector<StepItem> items;
    int32_t rows() const;
    std::string describe() const;
};

struct StepBudget {
    int32_t rows = 0;         // of the whole step
    int32_t prompt_rows = 0;  // of prompts among them, a multiple of 64
};

// Fills `plan` (its capacity is kept). Runs are given in any order.
void plan_step(std::span<const RunState> runs, const StepBudget& budget, StepPlan& plan);

}  // namespace terrace
