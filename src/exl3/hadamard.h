// 128-point Walsh-Hadamard transform in natural (Sylvester) order, scalar (EXL3 format 2.6). Any
// thread, host and device, compile time. The vector versions of the backends must give these bits:
// the stage order is part of the contract, each output being one fixed tree of adds and subtracts.
// SPDX-License-Identifier: MIT
#pragma once
#include "base/half.h"

namespace terrace {

inline constexpr int kHadamardSize = 128;
inline constexpr float kHadamardScale = 0.088388347648f;  // 1 / sqrt(128)

// Unnormalised, in place: strides 1, 2, 4 .. 64, (a, b) -> (a + b, a - b). Element i of the vector
// is x[i * step], so that columns of a matrix can be transformed where they lie.
template <class T>
TERRACE_HD constexpr void butterflies128(T* x, int step = 1) {
    for (int stride = 1; stride < kHadamardSize; stride *= 2)
        for (int base = 0; base < kHadamardSize; base += 2 * stride)
            for (int i = base; i < base + stride; ++i) {
                const T a = x[i * step];
                const T b = x[(i + stride) * step];
                x[i * step] = a + b;
                x[(i + stride) * step] = a - b;
            }
}

// Orthonormal, in place on 128 floats: butterflies, then one multiply per element. Its own inverse
// up to rounding.
TERRACE_HD constexpr void fwht128(float* x) {
    butterflies128(x);
    for (int i = 0; i < kHadamardSize; ++i)
        x[i] *= kHadamardScale;
}

}  // namespace terrace
