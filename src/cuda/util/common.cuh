// Small device pieces that every family uses: element loads, warp and block sums in a fixed order,
// activation functions, start overlap. Includes nothing heavy.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/args.h"

namespace terrace::cuda {

// Element i of a plain tensor. `dtype` is uniform over a launch, so the branch does not diverge.
__device__ __forceinline__ float load_plain(const void* data, DType dtype, int64_t i) {
    if (dtype == DType::f32) return static_cast<const float*>(data)[i];
    const uint16_t bits = static_cast<const uint16_t*>(data)[i];
    if (dtype == DType::bf16) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
    return __half2float(__ushort_as_half(bits));
}
__device__ __forceinline__ float load_plain(const PlainTensor& t, int64_t i) {
    return load_plain(t.data, t.dtype, i);
}

// Eight neighbouring elements of f16 or bf16 as floats.
template <DType T>
__device__ __forceinline__ void widen8(const uint4& w, float* f) {
    const uint32_t part[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (T == DType::bf16) {
            f[2 * i] = __uint_as_float(part[i] << 16);
            f[2 * i + 1] = __uint_as_float(part[i] & 0xffff0000u);
        } else {
            const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&part[i]));
            f[2 * i] = two.x;
            f[2 * i + 1] = two.y;
        }
    }
}

// Element i of a K, V or index plane.
__device__ __forceinline__ float load_plane(const std::byte* p, PlaneType type, int64_t i) {
    if (type == PlaneType::f32) return reinterpret_cast<const float*>(p)[i];
    return __half2float(reinterpret_cast<const __half*>(p)[i]);
}
__device__ __forceinline__ void store_plane(std::byte* p, PlaneType type, int64_t i, float v) {
    if (type == PlaneType::f32)
        reinterpret_cast<float*>(p)[i] = v;
    else
        reinterpret_cast<__half*>(p)[i] = __float2half_rn(v);
}

// Butterfly: every lane gets the sum, added in the same order whatever else runs.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

// Sum over a block of `blockDim.x` threads (a multiple of 32, at most 1024); every thread gets it.
// `smem` is 32 floats; a barrier is passed on entry, so calls may follow each other.
__device__ __forceinline__ float block_sum(float v, float* smem) {
    v = warp_sum(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) smem[threadIdx.x >> 5] = v;
    __syncthreads();
    const int warps = static_cast<int>(blockDim.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    return warp_sum(lane < warps ? smem[lane] : 0.0f);
}

__device__ __forceinline__ float sigmoidf(float x) {
    return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float siluf(float x) {
    return x / (1.0f + expf(-x));
}
__device__ __forceinline__ float softplusf(float x) {
    return x > 30.0f ? x : log1pf(expf(x));
}

// Programmatic dependent launch: wait for everything earlier kernels wrote; let the next one start.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void pdl_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The sequence and position of a row.
struct RowPlace {
    SeqRows seq;
    int pos;
};
__device__ __forceinline__ RowPlace place_row(const StepRows& step, int row) {
    const SeqRows seq = step.seqs.device_pointer()[step.row_seq.device_pointer()[row]];
    return {seq, seq.pos0 + row - seq.row0};
}
__device__ __forceinline__ int physical_page(const StepRows& step, const SeqRows& seq, int pos) {
    return step.block_tables.device_pointer()[seq.table_offset + pos / kPageTokens];
}

// Last block to arrive at a counter: true in every thread of exactly one of `n` blocks, with all
// writes of the others visible to it. Resets the counter. Every thread of the block calls it.
__device__ __forceinline__ bool last_block(uint32_t* counter, uint32_t n) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(counter, 1u) == n - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    if (is_last) __threadfence();
    return is_last;
}

}  // namespace terrace::cuda
