// SPDX-License-Identifier: MIT
#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/args.h"

namespace terrace {

int32_t StepPlan::rows() const {
    int32_t sum = 0;
    for (const StepItem& i : items)
        sum += i.rows;
    return sum;
}

std::string StepPlan::describe() const {
    std::string out;
    for (const StepItem& i : items)
        out += fmt::format("{}{}:{}", out.empty() ? "" : " ", i.run, i.rows);
    return out;
}

void plan_step(std::span<const RunState> runs, const StepBudget& budget, StepPlan& plan) {
    plan.items.clear();
    int32_t left = budget.rows;
    for (size_t i = 0; i < runs.size() && left > 0; ++i)
        if (runs[i].prompt_left == 0) {
            plan.items.push_back({static_cast<int32_t>(i), 1});
            --left;
        }
    int32_t prompt = std::min(left, budget.prompt_rows);
    // Few runs: a scan per pick needs no memory, and keeps the oldest first.
    uint64_t after = 0;
    for (bool first = true; prompt > 0; first = false) {
        size_t best = runs.size();
        for (size_t i = 0; i < runs.size(); ++i)
            if (runs[i].prompt_left > 0 && (first || runs[i].order > after) &&
                (best == runs.size() || runs[i].order < runs[best].order))
                best = i;
        if (best == runs.size()) break;
        after = runs[best].order;
        const int32_t want = runs[best].prompt_left;
        const int32_t rows = want <= prompt ? want : prompt / kGdnChunk * kGdnChunk;
        if (rows == 0) break;
        plan.items.push_back({static_cast<int32_t>(best), rows});
        prompt -= rows;
    }
}

}  // namespace terrace
