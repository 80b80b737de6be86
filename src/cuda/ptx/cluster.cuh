// Blocks of a cluster (sm_90) that exchange values through each other's shared memory: no fence, no
// counter and no trip through the L2 cache. A kernel started without a cluster is one of size 1, which
// is all there is on GPUs before 9.0.
//
// Order: cluster_arrive() when the kernel starts; cluster_wait() before the first remote access, for
// only then is the other block's memory sure to be there; then stores; then both again, after which
// every block sees all stores. No block may leave before the second wait.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "cuda/ptx/async.cuh"

// Of a kernel that always runs in clusters of n; such a one is started without saying so again.
#if __CUDA_ARCH__ >= 900
#define TERRACE_CLUSTER(n) __cluster_dims__(n, 1, 1)
#else
#define TERRACE_CLUSTER(n)
#endif

namespace terrace::cuda {

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ int cluster_rank() {
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return static_cast<int>(r);
}
// Every thread of every block of the cluster arrives, then waits; writes to shared memory of other
// blocks before the arrival are visible behind the wait.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The same for a thread with nothing to show: it does not wait for its own writes.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Address of the same shared object in another block of the cluster.
__device__ __forceinline__ uint32_t cluster_address(const void* mine, int rank) {
    uint32_t out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(shared_address(mine)), "r"(rank));
    return out;
}
__device__ __forceinline__ void cluster_store(uint32_t address, uint32_t v) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void cluster_store(uint32_t address, long long v) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
}
__device__ __forceinline__ void cluster_store(uint32_t address, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ uint32_t cluster_load(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ uint2 cluster_load2(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "r"(address)
                 : "memory");
    return v;
}

#else

__device__ __forceinline__ int cluster_rank() {
    return 0;
}
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_arrive_relaxed() {}
__device__ __forceinline__ void cluster_wait() {
    __syncthreads();
}
__device__ __forceinline__ uint32_t cluster_address(const void* mine, int) {
    return shared_address(mine);
}
__device__ __forceinline__ void cluster_store(uint32_t address, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void cluster_store(uint32_t address, long long v) {
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
}
__device__ __forceinline__ void cluster_store(uint32_t address, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ uint32_t cluster_load(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ uint2 cluster_load2(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "r"(address)
                 : "memory");
    return v;
}

#endif

__device__ __forceinline__ void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}
// Writes to the place of `own` in the shared memory of block `rank`.
template <class T>
__device__ __forceinline__ void store_remote(const T* own, int rank, T v) {
    cluster_store(cluster_address(own, rank), v);
}

// The same, and counts the bytes at the barrier in the place of `barrier` there.
__device__ __forceinline__ void send_remote([[maybe_unused]] float* own,
                                            [[maybe_unused]] uint64_t* barrier,
                                            [[maybe_unused]] int rank,
                                            [[maybe_unused]] float value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                     cluster_address(own, rank)),
                 "f"(value), "r"(cluster_address(barrier, rank))
                 : "memory");
#else
    __trap();
#endif
}

}  // namespace terrace::cuda
