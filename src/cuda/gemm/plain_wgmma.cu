// Products with f16 weights on sm_90a: both operands from shared memory, filled by cp.async.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/gemm/plain.h"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kOuts = 64;
constexpr int kThreads = 128;
constexpr int kStages = 4;
constexpr int kShared = 8;  // blocks that share the inputs of a tile

__host__ __device__ constexpr int up_to_tile(int outs) {
    return (outs + kOuts - 1) / kOuts * kOuts;
}
constexpr int stage_bytes(int rows) {
    return (kOuts + rows) * 128;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Rows [0, n) of `from` at inputs k0 .. k0+63 to a swizzled tile of kRows rows; zeros where there
// are none.
template <int kRows>
__device__ __forceinline__ void load_rows(uint32_t to, const __half* from, int64_t stride, int n,
                                          int k0, int in) {
    const int chunk = static_cast<int>(threadIdx.x) & 7;
    const bool inside = k0 + 8 * chunk < in;
#pragma unroll
    for (int i = 0; i < kRows / (kThreads / 8); ++i) {
        const int r = i * (kThreads / 8) + (static_cast<int>(threadIdx.x) >> 3);
        const bool there = inside && r < n;
        cp_async16(to + r * 128 + ((chunk ^ (r & 7)) << 4),
                   there ? from + r * stride + k0 + 8 * chunk : from, there ? 16 : 0);
    }
}

#endif

// Computes: plain.h; inputs a multiple of 8.
// Grid and block: tiles of 64 outputs x kRows rows, x kShare; one warpgroup. kShare blocks, a cluster,
// take equal parts of the inputs of a tile; their sums meet in shared memory.
// Shared memory: four stages of 64 inputs, (64 + kRows) * 128 bytes each.
// Traffic: weights once per kRows rows, rows once per 64 outputs, mostly from L2.
// Numerics: f32 sums in steps of 16 inputs, ascending within a part; parts ascending. The parts
// follow from the weight's shape alone.
template <int kRows, int kShare>
__global__ void __launch_bounds__(kThreads, 2) plain_wgmma(const __grid_constant__ PlainProduct p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int kStage = stage_bytes(kRows);
    extern __shared__ uint8_t dynamic_smem[];
    uint8_t* smem = dynamic_smem + (-shared_address(dynamic_smem) & 1023u);
    const uint32_t stages = shared_address(smem);
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t4 = lane & 3;
    const int rank = static_cast<int>(blockIdx.x), row0 = static_cast<int>(blockIdx.z) * kRows;
    int out0 = static_cast<int>(blockIdx.y) * kOuts, j = 0;
    for (; out0 >= up_to_tile(p.jobs[j].out); ++j)
        out0 -= up_to_tile(p.jobs[j].out);
    const PlainJob& job = p.jobs[j];
    const int n_out = min(kOuts, job.out - out0), n_rows = min(kRows, p.rows - row0);
    const auto* w = static_cast<const __half*>(job.w.data) + static_cast<int64_t>(out0) * p.in;
    const __half* x = p.x + row0 * p.x_stride;
    const int all = (p.in + 63) / 64, part = (all + kShare - 1) / kShare;
    const int first = rank * part, steps = max(0, min(part, all - first));
    const auto load = [&](int k) {
        if (k < steps) {
            const uint32_t to = stages + (k % kStages) * kStage;
            load_rows<kOuts>(to, w, p.in, n_out, (first + k) * 64, p.in);
            load_rows<kRows>(to + kOuts * 128, x, p.x_stride, n_rows, (first + k) * 64, p.in);
        }
        cp_async_commit();
    };
    pdl_wait();
    float acc[kRows / 2] = {};
    load(0);
    load(1);
    for (int k = 0; k < steps; ++k) {
        cp_async_wait<1>();
        async_proxy_fence();
        __syncthreads();  // stage k has landed; everyone's products of stage k - 2 are complete
        load(k + 2);
        const uint32_t at = stages + (k % kStages) * kStage;
        const uint64_t a = wgmma_operand(at), b = wgmma_operand(at + kOuts * 128);
        wgmma_keep(acc);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s)
            wgmma(acc, a + 2 * s, b + 2 * s);
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    wgmma_keep(acc);

    float* y = job.y + row0 * job.y_stride + out0;
    const float* unscale = p.unscale ? p.unscale + row0 : nullptr;
    if constexpr (kShare == 1) {
#pragma unroll
        for (int i = 0; i < kRows / 8; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int n = 8 * i + 2 * t4 + (r & 1), o = 16 * warp + g + 8 * (r >> 1);
                if (n < n_rows && o < n_out)
                    y[n * job.y_stride + o] = acc[4 * i + r] * (unscale ? unscale[n] : 1.0f);
            }
    } else {
        constexpr int kSumStride = kOuts + 4;         // two rows on, 8 banks on
        auto* sums = reinterpret_cast<float*>(smem);  // [kRows][kSumStride], over the stages
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kRows / 8; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r)
                sums[(8 * i + 2 * t4 + (r & 1)) * kSumStride + 16 * warp + g + 8 * (r >> 1)] =
                    acc[4 * i + r];
        cluster_barrier();
        for (int e = static_cast<int>(threadIdx.x); e < kRows / kShare * kOuts; e += kThreads) {
            const int n = rank * (kRows / kShare) + e / kOuts, o = e % kOuts;
            const float* at = sums + n * kSumStride + o;
            float sum = 0.0f;
#pragma unroll
            for (int b = 0; b < kShare; ++b)
                sum += __uint_as_float(cluster_load(cluster_address(at, b)));
            if (n < n_rows && o < n_out)
                y[n * job.y_stride + o] = sum * (unscale ? unscale[n] : 1.0f);
        }
        cluster_barrier();  // no block leaves while its sums are being read
    }
#endif
}

template <int kRows, int kShare>
Status launch(const Launch& l, const PlainProduct& p) {
    const auto kernel = plain_wgmma<kRows, kShare>;
    const size_t smem = kStages * stage_bytes(kRows) + 1024;
    TERRACE_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(smem)));
    int outs = 0;
    for (int j = 0; j < p.n_jobs; ++j)
        outs += up_to_tile(p.jobs[j].out);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kShare, static_cast<unsigned>(outs / kOuts),
                          static_cast<unsigned>((p.rows + kRows - 1) / kRows));
    config.blockDim = kThreads;
    config.dynamicSmemBytes = smem;
    config.stream = l.stream;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {kShare, 1, 1};
    config.attrs = attributes;
    config.numAttrs = kShare == 1 ? 1 : 2;
    TERRACE_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, p));
    return {};
}

}  // namespace

Status plain_product_wgmma(const Launch& l, const PlainProduct& p) {
    int most = 0;
    for (int j = 0; j < p.n_jobs; ++j)
        most = std::max(most, p.jobs[j].out);
    // Few rows or outputs: small tiles, more blocks.
    const bool small = p.rows <= 256 || most <= 64, shared = shares_inputs(p.in, most);
    if (small) return shared ? launch<64, kShared>(l, p) : launch<64, 1>(l, p);
    return shared ? launch<128, kShared>(l, p) : launch<128, 1>(l, p);
}

}  // namespace terrace::cuda
