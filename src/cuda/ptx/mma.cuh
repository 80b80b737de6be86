// Warp-level matrix product (sm_80 and later).
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace terrace::cuda {

// d[16][8] += a[16][16] * b[16][8], f16 in, f32 out. Lane 4g + t: a = rows g, g+8 (words 0, 1) at
// columns 2t, 2t+1, and the same 8 columns on (words 2, 3); b = rows 2t, 2t+1 and 8 on, column g;
// d = rows g (0, 1) and g+8 (2, 3), columns 2t, 2t+1.
__device__ __forceinline__ void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace terrace::cuda
