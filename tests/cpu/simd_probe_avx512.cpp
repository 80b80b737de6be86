// SPDX-License-Identifier: MIT
#define TERRACE_ISA avx512_probe
#include "cpu/simd_avx512.h"
// After the vector type.
#include "cpu/simd_probe_body.h"

namespace terrace::test {

constinit const SimdProbe kAvx512Probe = avx512_probe::make_probe();

}  // namespace terrace::test
