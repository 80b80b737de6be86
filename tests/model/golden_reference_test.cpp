// The scalar reference backend against the activations of an independent float32 implementation.
// SPDX-License-Identifier: MIT
#include "model/golden_cases.h"

namespace terrace::test {
namespace {

TEST(GoldenReference, TinyBf16MatchesWithinTwoTenThousandths) {
    const auto ops = make_reference_ops();
    run_golden_cases("tiny-bf16", *ops, GoldenLimits{2e-4f, {300}});
}

TEST(GoldenReference, TinyExl3MatchesWithinOneThousandth) {
    const auto ops = make_reference_ops();
    run_golden_cases("tiny-exl3", *ops, GoldenLimits{1e-3f, {300}});
}

}  // namespace
}  // namespace terrace::test
