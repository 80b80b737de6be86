// SPDX-License-Identifier: MIT
#include "base/cpu_features.h"

#include <cpuid.h>
#include <sched.h>

#include <cstring>

namespace terrace {
namespace {

CpuFeatures detect() {
    CpuFeatures f;
    // __builtin_cpu_supports also asks XGETBV whether the system saves the wide registers.
    __builtin_cpu_init();
    f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
    f.avx512_vbmi = f.avx512 && __builtin_cpu_supports("avx512vbmi");
    unsigned regs[12] = {};
    for (unsigned i = 0; i < 3; ++i)
        __get_cpuid(0x80000002u + i, &regs[4 * i], &regs[4 * i + 1], &regs[4 * i + 2],
                    &regs[4 * i + 3]);
    char brand[49] = {};
    std::memcpy(brand, regs, 48);
    f.name = brand;
    while (!f.name.empty() && f.name.back() == ' ')
        f.name.pop_back();
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) f.physical_threads = CPU_COUNT(&set);
    return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
    static const CpuFeatures features = detect();
    return features;
}

}  // namespace terrace
