// Matrix instructions and copies that the attention kernels use: thin wrappers.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/ptx/async.cuh"

namespace terrace::cuda {

// c += a * b, m16n8k16, f16 in, f32 sums. With g = lane / 4 and t = lane % 4:
//   a[0], a[2]: row g, columns 2t and 2t + 8 (two each); a[1], a[3]: row g + 8, the same columns;
//   b0, b1: column g, rows 2t and 2t + 8 (two each); c[0..1]: row g, columns 2t; c[2..3]: row g + 8.
__device__ __forceinline__ void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void store8_shared(uint32_t to, uint32_t low, uint32_t high) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(low), "r"(high) : "memory");
}

// 16 bytes that this SM will not look at again.
__device__ __forceinline__ uint4 load16_once(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

// Asks for `bytes` (a multiple of 128) to be brought to L2; called by all lanes of a warp.
__device__ __forceinline__ void prefetch_l2_warp(const std::byte* p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    if ((threadIdx.x & 31) == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#else
    for (uint32_t i = (threadIdx.x & 31) * 128; i < bytes; i += 32 * 128)
        prefetch_l2(p + i);
#endif
}

// 2^x, 2 ulp; results below the normal range are 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    const __half2 h = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&h);
}

}  // namespace terrace::cuda
