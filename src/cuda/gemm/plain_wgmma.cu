// Products with f16 weights on sm_90a: both operands from shared memory, filled by cp.async.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/gemm/plain.h"
#include "cuda/ptx/async.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kOuts = 64;
constexpr int kThreads = 128;
constexpr int kStages = 4;
constexpr int kShared = 8;  // blocks that share the inputs of a tile

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

__host__ __device__ int out_tiles(const PlainProduct& p) {
    int n = 0;
    for (int j = 0; j < p.n_jobs; ++j)
        n += (p.jobs[j].out + kOuts - 1) / kOuts;
    return n;
}

// Computes: plain.h; inputs a multiple of 8.
// Grid and block: tiles of 64 outputs x kRows rows, one warpgroup. kShare == 1: persistent, a block takes every gridDim-th tile and loads the next one during the last steps of
// one. Else kShare blocks, a cluster, take equal parts of the inputs of a tile; their sums meet in
// shared memory.
// Shared memory: four stages of 64 inputs, (outputs + rows) * 128 bytes each.
// Traffic: weights once per kRows rows, rows once per tile of outputs, mostly from L2.
// Numerics: f32 sums in steps of 16 inputs, ascending within a part; parts ascending. The parts
// follow from the number of inputs alone.
template <int kRows, int kShare>
__global__ void __launch_bounds__(kThreads, 2) plain_wgmma(const __grid_constant__ PlainProduct p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int kStage = stage_bytes(kRows);
    extern __shared__ uint8_t dynamic_smem[];
    uint8_t* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023u);
    const uint32_t stages = smem_address(smem);
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t4 = lane & 3;
    const int row_tiles = (p.rows + kRows - 1) / kRows;
    const int tiles = row_tiles * out_tiles(p);
    const int block = static_cast<int>(blockIdx.x) / kShare;
    const int blocks = static_cast<int>(gridDim.x) / kShare;
    const int rank = static_cast<int>(blockIdx.x) % kShare;
    const int all = (p.in + 63) / 64, part = (all + kShare - 1) / kShare;
    const int first = rank * part;
    const int steps = max(0, min(part, all - first));
    const int my_tiles = block < tiles ? (tiles - block + blocks - 1) / blocks : 0;
    struct Place {
        const PlainJob* job;
        int row0, out0;
    };
    const auto place = [&](int i) {
        const int t = block + i * blocks;
        int col = t / row_tiles, j = 0;
        for (; col >= (p.jobs[j].out + kOuts - 1) / kOuts; ++j)
            col -= (p.jobs[j].out + kOuts - 1) / kOuts;
        return Place{&p.jobs[j], t % row_tiles * kRows, col * kOuts};
    };
    // The step after next of all steps of the block's tiles.
    int load_tile = 0, load_k = 0, load_stage = 0;
    Place from = {};
    const auto load = [&] {
        if (load_tile < my_tiles && load_k < steps) {
            if (load_k == 0) from = place(load_tile);
            const int k0 = (first + load_k) * 64;
            const uint32_t to = stages + load_stage * kStage;
            load_rows<kOuts>(to,
                             static_cast<const __half*>(from.job->w.data) +
                                 static_cast<int64_t>(from.out0) * p.in,
                             p.in, from.job->out - from.out0, k0, p.in);
            load_rows<kRows>(to + kOuts * 128, p.x + from.row0 * p.x_stride, p.x_stride,
                             p.rows - from.row0, k0, p.in);
            load_stage = (load_stage + 1) % kStages;
            if (++load_k == steps) {
                load_k = 0;
                ++load_tile;
            }
        }
        cp_async_commit();
    };
    pdl_wait();
    load();
    load();
    int stage = 0;
    for (int i = 0; i < my_tiles; ++i) {
        float acc[kRows / 2] = {};
        for (int k = 0; k < steps; ++k) {
            cp_async_wait<1>();
            async_proxy_fence();
            __syncthreads();  // this stage has landed; all products of the stage before last are done
            load();
            const uint32_t at = stages + stage * kStage;
            const uint64_t a = wgmma_operand(at);
            const uint64_t b = wgmma_operand(at + kOuts * 128);
            wgmma_keep(acc);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; ++s)
                wgmma(acc, a + 2 * s, b + 2 * s);
            wgmma_commit();
            wgmma_wait<1>();
            stage = (stage + 1) % kStages;
        }
        wgmma_wait<0>();
        wgmma_keep(acc);

        const auto [job, row0, out0] = place(i);
        const int n_rows = min(kRows, p.rows - row0), n_out = min(kOuts, job->out - out0);
        float* y = job->y + row0 * job->y_stride + out0;
        const float* unscale = p.unscale ? p.unscale + row0 : nullptr;
        if constexpr (kShare == 1) {
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const int n = 8 * j + 2 * t4 + (r & 1), o = 16 * warp + g + 8 * (r >> 1);
                    if (n < n_rows && o < n_out)
                        y[n * job->y_stride + o] = acc[4 * j + r] * (unscale ? unscale[n] : 1.0f);
                }
        } else {
            constexpr int kSumStride = kOuts + 4;         // two rows on, 8 banks on
            auto* sums = reinterpret_cast<float*>(smem);  // [kRows][kSumStride], over the stages
            cp_async_wait<0>();
            __syncthreads();
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    sums[(8 * j + 2 * t4 + (r & 1)) * kSumStride + 16 * warp + g + 8 * (r >> 1)] =
                        acc[4 * j + r];
            cluster_barrier();
            for (int e = static_cast<int>(threadIdx.x); e < kRows / kShare * kOuts; e += kThreads) {
                const int n = rank * (kRows / kShare) + e / kOuts, o = e % kOuts;
                const uint32_t at = smem_address(sums + n * kSumStride + o);
                float sum = 0.0f;
#pragma unroll
                for (uint32_t b = 0; b < kShare; ++b)
                    sum += cluster_load(at, b);
                if (n < n_rows && o < n_out)
                    y[n * job->y_stride + o] = sum * (unscale ? unscale[n] : 1.0f);
            }
            cluster_barrier();  // no block leaves while its sums are being read
        }
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
    const int tiles = (p.rows + kRows - 1) / kRows * out_tiles(p);
    cudaLaunchConfig_t config = {};
    config.gridDim =
        static_cast<unsigned>(kShare == 1 ? std::min(tiles, 2 * l.info->sms) : tiles * kShare);
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
