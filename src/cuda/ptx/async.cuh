// Copies into shared memory and their barriers: cp.async (sm_80), mbarrier, bulk copies by the copy
// engine (sm_90), and the fences between them; loads and hints. Thin: one function per instruction,
// shared-memory addresses as uint32_t.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace terrace::cuda {

// Whether this code has bulk copies. Without them the threads copy, 16 bytes each.
#if __CUDA_ARCH__ >= 900
constexpr bool kCopyEngine = true;
#else
constexpr bool kCopyEngine = false;
#endif

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// cp.async: 16 bytes, bypassing L1. Many small pieces come faster so than as bulk copies.
__device__ __forceinline__ void cp_async16(uint32_t smem, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(global) : "memory");
}
// The same, or zeros when `bytes` is 0.
__device__ __forceinline__ void cp_async16(uint32_t smem, const void* global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(global),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// At most N of the thread's own groups are on their way; those of others: behind a barrier.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
// Arrives at `bar` when all copies of the thread so far are there.
__device__ __forceinline__ void cp_async_arrive(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}

// Barriers among some warps of a block.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void mbarrier_init(uint32_t bar, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred p;\n"
        "wait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra wait_%=;\n}" ::"r"(bar),
        "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n.reg .pred p;\n"
        "wait_%=:\nmbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n"
        "@!p bra wait_%=;\n}" ::"r"(bar),
        "r"(parity)
        : "memory");
#endif
}

// True in one lane of a converged warp. Unlike a test of the lane's number it tells the compiler that
// the lane is alone, so that addresses of copies need no loop over lanes.
__device__ __forceinline__ bool elect_lane() {
#if __CUDA_ARCH__ >= 900
    uint32_t elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(elected));
    return elected != 0;
#else
    return (threadIdx.x & 31) == 0;
#endif
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Announces bytes without arriving: for copies that are issued before the arrival, which then stands
// for "everything of this phase is on its way" (checkers of races understand no other order).
__device__ __forceinline__ void mbarrier_announce(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
// Arrives and makes the phase wait for `bytes` of copies.
__device__ __forceinline__ void mbarrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
// Contiguous bytes, a multiple of 16, both addresses 16-byte aligned; completes on `bar`.
__device__ __forceinline__ void bulk_load(uint32_t smem, const void* global, uint32_t bytes,
                                          uint32_t bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(smem),
        "l"(global), "r"(bytes), "r"(bar)
        : "memory");
}
#else
// Named in kernels that are not started there.
__device__ __forceinline__ void mbarrier_expect(uint32_t, uint32_t) {
    __trap();
}
#endif

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Orders ordinary writes to shared memory before later reads by the tensor cores or the copy engine.
__device__ __forceinline__ void async_proxy_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Pieces copied by a whole block, complete on one barrier: by the copy engine, which one thread tells,
// or by all threads. Every thread makes the same calls: expect() with the bytes of all pieces, the
// pieces, done(). The barrier is made for arrivals() arrivals.
struct BlockCopies {
    uint32_t bar;
    __device__ static int arrivals() { return kCopyEngine ? 1 : static_cast<int>(blockDim.x); }
    __device__ __forceinline__ void expect([[maybe_unused]] uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) mbarrier_expect(bar, bytes);
#endif
    }
    __device__ __forceinline__ void piece(void* to, const void* from, uint32_t bytes) const {
        const uint32_t smem = shared_address(to);
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) bulk_load(smem, from, bytes, bar);
#else
        for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
            cp_async16(smem + i, static_cast<const std::byte*>(from) + i);
#endif
    }
    __device__ __forceinline__ void done() const {
        if (!kCopyEngine) cp_async_arrive(bar);
    }
};

// 16 bytes of a weight that is read once. Volatile: it is issued where it is written, in front of
// pdl_wait() if it is written there.
__device__ __forceinline__ uint4 load_weight(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
// A hint that never faults and never changes what a later load sees: allowed in front of
// pdl_wait().
__device__ __forceinline__ void prefetch_l2(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace terrace::cuda
