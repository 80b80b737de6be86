// Blocks of a cluster (sm_90) that add up sums through each other's shared memory: no fence, no
// counter and no trip through the L2 cache. A kernel started without a cluster is one of size 1.
//
// Order: cluster_arrive() when the kernel starts; cluster_wait() before the first remote store, for
// only then is the other block's memory sure to be there; then stores; then both again, after which
// every block sees all stores. No block may leave before the second wait.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "cuda/exl3/warp_ring.cuh"

namespace terrace::cuda {

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void store_remote(const long long* own, int rank, long long v) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(shared_address(own)), "r"(rank));
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
}
__device__ __forceinline__ void store_remote(const float* own, int rank, float v) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(shared_address(own)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

}  // namespace terrace::cuda
