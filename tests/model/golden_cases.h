// The golden cases of a tiny model, run through any backend with f32 planes: logits of every case
// in several chunkings, residual streams, selected positions, decode after prefill, greedy ids.
//
// Selection: where the recorded gap between the last chosen and the first rejected block lies
// between 0 and 1e-5, rounding may flip a block; rows of that case from there on are then skipped
// and counted. Exact ties (gap 0) go to the lower block and must match.
// SPDX-License-Identifier: MIT
#pragma once
#include "model/model_runner.h"

namespace terrace::test {

struct GoldenLimits {
    float logits = 2e-4f;              // absolute
    std::vector<int32_t> chunks{300};  // prefill chunk sizes to try
};

void run_golden_cases(const std::string& model, Ops& ops, const GoldenLimits& limits);

}  // namespace terrace::test
