// Thread block clusters: start, barrier, and shared memory of the other blocks.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {

// Like start(), in clusters of `cluster` neighbouring blocks (grid.x is a multiple of it).
template <class... P, class... A>
Status start_clusters(const Launch& l, const char* what, void (*kernel)(P...), int cluster,
                      dim3 grid, dim3 block, size_t smem, A&&... args) {
    const auto* function = reinterpret_cast<const void*>(kernel);
    if (smem > 48 * 1024)
        TERRACE_CUDA_TRY(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(smem)));
    if (cluster > 8)
        TERRACE_CUDA_TRY(
            cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = l.stream;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    const cudaError_t e = cudaLaunchKernelEx(&config, kernel, P(args)...);
    if (e != cudaSuccess) return cuda_error(e, what);
    return {};
}

__device__ __forceinline__ int cluster_rank() {
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return static_cast<int>(r);
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Address of the same shared object in another block of the cluster.
__device__ __forceinline__ uint32_t cluster_address(const void* mine, int rank) {
    uint32_t out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(out)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(mine))), "r"(rank));
    return out;
}
__device__ __forceinline__ void cluster_store(uint32_t address, uint32_t v) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
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

}  // namespace terrace::cuda
