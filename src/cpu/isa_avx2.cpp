// Kernels compiled for AVX2, FMA and F16C. See simd_common.h for what this file may include.
// SPDX-License-Identifier: MIT
#define TERRACE_ISA avx2
#include "cpu/isa_tables.h"
#include "cpu/simd_avx2.h"
// After the vector type: the kernels, written once.
#include "cpu/linear_dense.h"
#include "cpu/linear_exl3.h"
#include "cpu/op_table.h"
#include "cpu/trellis_ymm.h"

namespace terrace {

constinit const KernelTable kAvx2Kernels = {
    .name = "avx2",
    .exl3 = avx2::exl3_kernels<avx2::Ymm>(),
    .dense = avx2::dense_kernels(),
    .ops = avx2::kOpKernels,
};

}  // namespace terrace
