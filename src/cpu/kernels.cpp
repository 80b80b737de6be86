// SPDX-License-Identifier: MIT
#include "cpu/kernels.h"

#include "base/cpu_features.h"
#include "cpu/isa_tables.h"

namespace terrace {
namespace {

const KernelTable& vbmi_table() {
    static const KernelTable table = [] {
        KernelTable t = kAvx512Kernels;
        t.name = "avx512vbmi";
        t.exl3 = kVbmiExl3Kernels;
        return t;
    }();
    return table;
}

}  // namespace

const KernelTable* select_kernels(IsaChoice choice) {
    const CpuFeatures& cpu = cpu_features();
    switch (choice) {
        case IsaChoice::avx2:
            return cpu.avx2 ? &kAvx2Kernels : nullptr;
        case IsaChoice::avx512:
            return cpu.avx512 ? &kAvx512Kernels : nullptr;
        case IsaChoice::avx512_vbmi:
            return cpu.avx512_vbmi ? &vbmi_table() : nullptr;
        case IsaChoice::auto_detect:
            break;
    }
    if (cpu.avx512_vbmi) return &vbmi_table();
    if (cpu.avx512) return &kAvx512Kernels;
    return cpu.avx2 ? &kAvx2Kernels : nullptr;
}

}  // namespace terrace
