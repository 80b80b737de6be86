// Kernels compiled for AVX-512 F, BW, VL, DQ and VNNI. EXL3 tiles are decoded in 256-bit registers
// here: cutting states out of a 512-bit one needs VBMI (isa_vbmi.cpp). See simd_common.h for what
// this file may include.
// SPDX-License-Identifier: MIT
#define TERRACE_ISA avx512
#include "cpu/isa_tables.h"
#include "cpu/simd_avx512.h"
// After the vector type: the kernels, written once.
#include "cpu/linear_dense.h"
#include "cpu/linear_exl3.h"
#include "cpu/op_table.h"
#include "cpu/trellis_ymm.h"

namespace terrace {

constinit const KernelTable kAvx512Kernels = {
    .name = "avx512",
    .exl3 = avx512::exl3_kernels<avx512::Ymm>(),
    .dense = avx512::dense_kernels(),
    .ops = avx512::kOpKernels,
};

}  // namespace terrace
