// The tables that the isa_*.cpp files define, for kernels.cpp only. Constant initialised: reading
// one runs no code of its instruction set.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/kernels.h"

namespace terrace {

extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const Exl3Kernels kVbmiExl3Kernels;

}  // namespace terrace
