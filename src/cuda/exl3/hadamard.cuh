// 128-point Hadamard transform by one warp, same bits as exl3/hadamard.h: strides ascending, then one
// multiply (EXL3 format 2.6).
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "exl3/hadamard.h"

namespace terrace::cuda {

// v[j] is element 4 * lane + j. The first sums are spelled out, so that no compiler fuses them with
// the products that made v: bits must not depend on the kernel around.
__device__ __forceinline__ void warp_fwht128(float (&v)[4], int lane) {
    const float a = __fadd_rn(v[0], v[1]), b = __fsub_rn(v[0], v[1]);
    const float c = __fadd_rn(v[2], v[3]), d = __fsub_rn(v[2], v[3]);
    v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        const float sign = lane & m ? -1.0f : 1.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            v[j] = fmaf(v[j], sign, __shfl_xor_sync(0xffffffffu, v[j], m));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
        v[j] *= kHadamardScale;
}

}  // namespace terrace::cuda
