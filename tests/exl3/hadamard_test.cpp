// SPDX-License-Identifier: MIT
#include "exl3/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "support/support.h"

namespace terrace {
namespace {

TEST(Hadamard, IsTheSylvesterMatrixAndOrthonormal) {
    for (int i = 0; i < 128; ++i) {
        float x[128] = {};
        x[i] = 1.0f;
        fwht128(x);
        for (int j = 0; j < 128; ++j) {
            const bool odd = std::popcount(static_cast<unsigned>(i & j)) % 2 != 0;
            // A column of the matrix; its signs and common magnitude make it orthonormal.
            ASSERT_EQ(x[j], odd ? -kHadamardScale : kHadamardScale);
        }
    }
    EXPECT_NEAR(128.0 * static_cast<double>(kHadamardScale) * static_cast<double>(kHadamardScale),
                1.0, 1e-7);
}

TEST(Hadamard, TwiceIsTheIdentityAndLengthIsKept) {
    test::Random random(3);
    const std::vector<float> x = random.normals(128);
    std::vector<float> y = x;
    fwht128(y.data());
    double before = 0, after = 0;
    for (size_t i = 0; i < 128; ++i) {
        before += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        after += static_cast<double>(y[i]) * static_cast<double>(y[i]);
    }
    EXPECT_NEAR(after / before, 1.0, 1e-6);
    fwht128(y.data());
    for (size_t i = 0; i < 128; ++i)
        EXPECT_NEAR(x[i], y[i], 2e-6);
}

TEST(Hadamard, StagesRunFromStrideOneUp) {
    // Only in this order does the huge pair cancel before the small value meets it.
    float x[128] = {};
    x[0] = 1e8f;
    x[1] = -1e8f;
    x[2] = 1.0f;
    butterflies128(x);
    EXPECT_EQ(x[0], 1.0f);   // (1e8 - 1e8) + 1
    EXPECT_EQ(x[1], 2e8f);   // (1e8 + 1e8) + 1 loses the one
    EXPECT_EQ(x[2], -1.0f);  // (1e8 - 1e8) - 1
}

TEST(Hadamard, StridedColumnsEqualContiguousRows) {
    test::Random random(4);
    const std::vector<float> x = random.normals(128);
    std::vector<float> row = x, column(128 * 3, 7.0f);
    for (size_t i = 0; i < 128; ++i)
        column[3 * i + 1] = x[i];
    butterflies128(row.data());
    butterflies128(column.data() + 1, 3);
    for (size_t i = 0; i < 128; ++i) {
        ASSERT_EQ(column[3 * i + 1], row[i]);
        ASSERT_EQ(column[3 * i], 7.0f);
    }
}

TEST(Hadamard, RunsAtCompileTime) {
    constexpr float first = [] {
        float x[128] = {};
        for (float& v : x)
            v = 1.0f;
        butterflies128(x);
        return x[0];
    }();
    static_assert(first == 128.0f);
    EXPECT_EQ(first, 128.0f);
}

}  // namespace
}  // namespace terrace
