// What this processor and its operating system offer, asked once.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>

namespace terrace {

struct CpuFeatures {
    bool avx2 = false;         // AVX2 + FMA + F16C, all three or nothing
    bool avx512 = false;       // F + BW + VL + DQ + VNNI
    bool avx512_vbmi = false;  // VBMI on top of avx512
    std::string name;          // brand string
    int physical_threads = 1;  // CPUs this process may run on
};

const CpuFeatures& cpu_features();

}  // namespace terrace
