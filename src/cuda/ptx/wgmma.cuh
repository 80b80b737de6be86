// wgmma (sm_90a): D[64][N] += A[64][16] * B[16][N], f16 in, f32 out, by one warpgroup. A warp of the
// group holds rows 16w .. 16w+15 of D, and of A where that is in registers, in the register order of
// mma.m16n8k16. In shared memory an operand is rows (of A, or columns of B) of 64 f16 values with the
// 128-byte swizzle: eight rows are 1024 bytes (aligned so), 16-byte chunk c of row r is at chunk
// c ^ (r & 7).
//
// The products of a commit group run asynchronously and read registers meanwhile: between wgmma()
// and the wait for its group neither `a` nor `d` may change. wgmma_keep() pins registers up to a wait.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace terrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Operand at a 1024-byte aligned address; plus 2 per 16 steps of k. The upper word is the same for
// all, so that counting on the lower one is 32-bit arithmetic.
__device__ __forceinline__ uint32_t wgmma_operand_low(uint32_t smem) {
    return (1u << 16) | ((smem & 0x3ffffu) >> 4);
}
__device__ __forceinline__ uint64_t wgmma_operand_of(uint32_t low) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
    return kSwizzle128 | kEightRows | low;
}
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t smem) {
    return wgmma_operand_of(wgmma_operand_low(smem));
}

// Registers per thread of the calling warpgroup, a multiple of 8; all its warps call it.
template <int R>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R));
}
template <int R>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R));
}

// Before the first wgmma() after registers were written.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most N groups are running.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int R>
__device__ __forceinline__ void wgmma_keep(float (&d)[R]) {
#pragma unroll
    for (int i = 0; i < R; ++i)
        asm volatile("" : "+f"(d[i])::"memory");
}
template <int R>
__device__ __forceinline__ void wgmma_keep(uint32_t (&a)[R][4]) {
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            asm volatile("" : "+r"(a[i][j])::"memory");
}

// Operand lists: ten register numbers, eight accumulators.
#define TERRACE_TEN(t)                                                                       \
    ", %" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t \
    "8, %" #t "9"
#define TERRACE_ACC8(i)                                                                         \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])

// clang-format off
__device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TERRACE_TEN(1) TERRACE_TEN(2)
        ", %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
        : TERRACE_ACC8(0), TERRACE_ACC8(8), TERRACE_ACC8(16), TERRACE_ACC8(24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TERRACE_TEN(1) TERRACE_TEN(2)
        TERRACE_TEN(3) TERRACE_TEN(4) TERRACE_TEN(5) ", %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
        : TERRACE_ACC8(0), TERRACE_ACC8(8), TERRACE_ACC8(16), TERRACE_ACC8(24),
          TERRACE_ACC8(32), TERRACE_ACC8(40), TERRACE_ACC8(48), TERRACE_ACC8(56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[80], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TERRACE_TEN(1) TERRACE_TEN(2)
        TERRACE_TEN(3) TERRACE_TEN(4) TERRACE_TEN(5) TERRACE_TEN(6) TERRACE_TEN(7)
        "}, {%80, %81, %82, %83}, %84, p, 1, 1, 0;\n}"
        : TERRACE_ACC8(0), TERRACE_ACC8(8), TERRACE_ACC8(16), TERRACE_ACC8(24),
          TERRACE_ACC8(32), TERRACE_ACC8(40), TERRACE_ACC8(48), TERRACE_ACC8(56),
          TERRACE_ACC8(64), TERRACE_ACC8(72)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TERRACE_TEN(1) TERRACE_TEN(2)
        TERRACE_TEN(3) TERRACE_TEN(4) TERRACE_TEN(5) TERRACE_TEN(6) TERRACE_TEN(7)
        TERRACE_TEN(8) TERRACE_TEN(9) TERRACE_TEN(10) TERRACE_TEN(11)
        ", %120, %121, %122, %123, %124, %125, %126, %127"
        "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}"
        : TERRACE_ACC8(0), TERRACE_ACC8(8), TERRACE_ACC8(16), TERRACE_ACC8(24),
          TERRACE_ACC8(32), TERRACE_ACC8(40), TERRACE_ACC8(48), TERRACE_ACC8(56),
          TERRACE_ACC8(64), TERRACE_ACC8(72), TERRACE_ACC8(80), TERRACE_ACC8(88),
          TERRACE_ACC8(96), TERRACE_ACC8(104), TERRACE_ACC8(112), TERRACE_ACC8(120)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TERRACE_TEN(1) TERRACE_TEN(2)
        ", %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;\n}"
        : TERRACE_ACC8(0), TERRACE_ACC8(8), TERRACE_ACC8(16), TERRACE_ACC8(24)
        : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TERRACE_TEN(1) TERRACE_TEN(2)
        TERRACE_TEN(3) TERRACE_TEN(4) TERRACE_TEN(5) ", %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}"
        : TERRACE_ACC8(0), TERRACE_ACC8(8), TERRACE_ACC8(16), TERRACE_ACC8(24),
          TERRACE_ACC8(32), TERRACE_ACC8(40), TERRACE_ACC8(48), TERRACE_ACC8(56)
        : "l"(a), "l"(b));
}
// clang-format on

#undef TERRACE_TEN
#undef TERRACE_ACC8
#endif

}  // namespace terrace::cuda
