// SPDX-License-Identifier: MIT
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "support/support.h"

namespace terrace::test {
namespace {

StepPlan plan(const std::vector<RunState>& runs, StepBudget budget) {
    StepPlan p;
    plan_step(runs, budget, p);
    return p;
}

TEST(Scheduler, DecodingSequencesAlwaysGetTheirRow) {
    EXPECT_EQ(plan({{0, 1}, {500, 2}, {0, 3}}, {258, 256}).describe(), "0:1 2:1 1:256");
}

TEST(Scheduler, OldestPromptComesFirst) {
    EXPECT_EQ(plan({{100, 9}, {70, 4}, {500, 7}}, {260, 256}).describe(), "1:70 2:128");
}

TEST(Scheduler, PromptsAreCutAtMultiplesOf64OnlyOrAtTheirEnd) {
    EXPECT_EQ(plan({{129, 1}}, {132, 128}).describe(), "0:128");
    EXPECT_EQ(plan({{1, 1}}, {132, 128}).describe(), "0:1");
    EXPECT_EQ(plan({{65, 1}, {65, 2}}, {132, 128}).describe(), "0:65");
}

TEST(Scheduler, NothingRunsNothingPlanned) {
    EXPECT_TRUE(plan({}, {132, 128}).items.empty());
}

// Any mix of runs drains, every cut is legal, and no step exceeds its budget.
TEST(Scheduler, AnyMixDrainsWithinBudget) {
    Random random(3);
    for (int trial = 0; trial < 200; ++trial) {
        const auto n = static_cast<size_t>(1 + random.below(6));
        const StepBudget budget{static_cast<int32_t>(128 + n), 128};
        std::vector<RunState> runs;
        std::vector<int32_t> total;
        for (size_t i = 0; i < n; ++i) {
            runs.push_back({static_cast<int32_t>(1 + random.below(700)), i + 1});
            total.push_back(runs.back().prompt_left);
        }
        for (int step = 0; step < 100; ++step) {
            const StepPlan p = plan(runs, budget);
            ASSERT_LE(p.rows(), budget.rows);
            int32_t prompt_rows = 0, left = 0;
            for (const StepItem& item : p.items) {
                RunState& run = runs[static_cast<size_t>(item.run)];
                if (run.prompt_left == 0) continue;
                prompt_rows += item.rows;
                run.prompt_left -= item.rows;
                ASSERT_GE(run.prompt_left, 0);
                const int32_t done = total[static_cast<size_t>(item.run)] - run.prompt_left;
                ASSERT_TRUE(run.prompt_left == 0 || done % 64 == 0) << done;
            }
            ASSERT_LE(prompt_rows, budget.prompt_rows);
            for (const RunState& r : runs)
                left += r.prompt_left;
            if (left == 0) break;
            ASSERT_GT(prompt_rows, 0) << "no progress";
            ASSERT_LT(step, 99);
        }
    }
}

}  // namespace
}  // namespace terrace::test
