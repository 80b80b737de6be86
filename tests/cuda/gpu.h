// What tests of the CUDA backend share: a rig on the GPU, the reference rig, and the rule that a test
// without a GPU is skipped, and counted as skipped.
// SPDX-License-Identifier: MIT
#pragma once
#include <gtest/gtest.h>

#include "support/op_cases.h"

namespace terrace::test {

using Lists = std::vector<std::vector<float>>;

// The GPU rig of this process; null without a GPU. TERRACE_TEST_DEVICE=86 (or 80, 89, 120) makes its
// plans those of such a device; the code stays that of the build. A build for 8.0 whose PTX a 9.0 device
// runs is tested so in the room of an RTX 3090, and one for 9.0 with the clusters of an RTX 5090 (but for
// CudaAttend, whose code for 9.0 needs more room).
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
