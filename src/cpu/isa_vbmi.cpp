// EXL3 kernels compiled for AVX-512 with VBMI and VNNI; everything else of that machine's table
// comes from isa_avx512.cpp. See simd_common.h for what this file may include.
// SPDX-License-Identifier: MIT
#define TERRACE_ISA avx512vbmi
#include "cpu/isa_tables.h"
#include "cpu/simd_avx512.h"
// After the vector type: the kernels, written once.
#include "cpu/linear_exl3.h"
#include "cpu/trellis_zmm.h"

namespace terrace {

constinit const Exl3Kernels kVbmiExl3Kernels = avx512vbmi::exl3_kernels<avx512vbmi::Zmm>();

}  // namespace terrace
