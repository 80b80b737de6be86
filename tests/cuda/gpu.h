// What tests of the CUDA backend share: a rig on the GPU, the reference rig, and the rule that a test
// without a GPU is skipped, and counted as skipped.
// SPDX-License-Identifier: MIT
#pragma once
#include <gtest/gtest.h>

#include "support/op_cases.h"

namespace terrace::test {

using Lists = std::vector<std::vector<float>>;

// The GPU rig of this process; null without a GPU.
Rig* gpu();
Rig& reference();

void expect_equal_bits(const std::vector<float>& a, const std::vector<float>& b,
                       const std::string& what);

// run(rig) on the GPU against the reference: NMSE of every output below `limit`, and the same bits
// when run again.
void conforms(const std::function<Lists(Rig&)>& run, double limit, const std::string& what);

class GpuTest : public testing::Test {
  protected:
    void SetUp() override {
        if (!gpu()) GTEST_SKIP() << "no GPU";
    }
};

}  // namespace terrace::test
