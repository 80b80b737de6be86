// SPDX-License-Identifier: MIT
#define TERRACE_ISA avx2_probe
#include "cpu/simd_avx2.h"
// After the vector type.
#include "cpu/simd_probe_body.h"

namespace terrace::test {

constinit const SimdProbe kAvx2Probe = avx2_probe::make_probe();

}  // namespace terrace::test
