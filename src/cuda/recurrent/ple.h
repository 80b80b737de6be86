// Scratch of the n-gram injection.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>

namespace terrace::cuda {

struct PleScratch {
    float* b = nullptr;     // [R][S*H] normed gated values: the convolution's input
    float* gate = nullptr;  // [R][S]
    size_t used = 0;
};
PleScratch ple_scratch(std::byte* base, int rows, int streams, int hidden);

}  // namespace terrace::cuda
