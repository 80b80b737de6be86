// Plain products of any sizes and types, and the choice of the kernel per job.
// SPDX-License-Identifier: MIT
#include "cuda/gemm/plain.h"

#include <algorithm>

#include "cuda/ptx/mma.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kTile = 64;    // outputs and rows of a block
constexpr int kStep = 32;    // inputs per step
constexpr int kStride = 40;  // of a row in shared memory: 20 words, so that 8 rows meet 32 banks

// Computes: plain.h, any sizes and types.
// Grid and block: outputs x rows in tiles of 64 x 64, x jobs; four warps with 16 outputs each.
// Shared memory: 10 KiB. Traffic: weights once per 64 rows, rows once per 64 outputs.
// Numerics: f16 operands (weights rounded), f32 sums in steps of 16 inputs, ascending.
__global__ void __launch_bounds__(128) plain_any(const __grid_constant__ PlainProduct p) {
    __shared__ __align__(16) __half w_tile[kTile * kStride];
    __shared__ __align__(16) __half x_tile[kTile * kStride];
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t4 = lane & 3;
    const PlainJob& job = p.jobs[blockIdx.z];
    const int out0 = static_cast<int>(blockIdx.x) * kTile;
    if (out0 >= job.out) return;
    const int row0 = static_cast<int>(blockIdx.y) * kTile;
    pdl_wait();
    float acc[8][4] = {};
    for (int k0 = 0; k0 < p.in; k0 += kStep) {
        for (int i = static_cast<int>(threadIdx.x); i < kTile * kStep; i += 128) {
            const int r = i / kStep, k = i % kStep;
            const bool inside = k0 + k < p.in;
            const int64_t o = out0 + r, row = row0 + r;
            w_tile[r * kStride + k] = __float2half_rn(
                inside && o < job.out ? load_plain(job.w, o * p.in + k0 + k) : 0.0f);
            x_tile[r * kStride + k] =
                inside && row < p.rows ? p.x[row * p.x_stride + k0 + k] : __float2half_rn(0.0f);
        }
        __syncthreads();
#pragma unroll
        for (int s = 0; s < kStep; s += 16) {
            const auto word = [&](const __half* tile, int row, int k) {
                return *reinterpret_cast<const uint32_t*>(tile + row * kStride + k + 2 * t4);
            };
            const int r = 16 * warp + g;
            const uint32_t a[4] = {word(w_tile, r, s), word(w_tile, r + 8, s),
                                   word(w_tile, r, s + 8), word(w_tile, r + 8, s + 8)};
#pragma unroll
            for (int j = 0; j < 8; ++j)
                mma_16816(acc[j], a, word(x_tile, 8 * j + g, s), word(x_tile, 8 * j + g, s + 8));
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int64_t row = row0 + 8 * j + 2 * t4 + (r & 1);
            const int o = out0 + 16 * warp + g + 8 * (r >> 1);
            if (row < p.rows && o < job.out)
                job.y[row * job.y_stride + o] = acc[j][r] * (p.unscale ? p.unscale[row] : 1.0f);
        }
}

}  // namespace

Status plain_product(const Launch& l, const PlainProduct& p) {
    // Jobs by kernel: f16 with and without shared inputs, all others.
    PlainProduct kinds[3] = {p, p, p};
    for (PlainProduct& k : kinds)
        k.n_jobs = 0;
    int widest = 0;
    for (int j = 0; j < p.n_jobs; ++j) {
        const PlainJob& job = p.jobs[j];
        const bool fast = l.info->code.wgmma && job.w.dtype == DType::f16 && p.in % 8 == 0;
        PlainProduct& k = kinds[!fast ? 2 : shares_inputs(p.in, job.out) ? 1 : 0];
        k.jobs[k.n_jobs++] = job;
        if (!fast) widest = std::max(widest, job.out);
    }
    for (int i = 0; i < 2; ++i)
        if (kinds[i].n_jobs > 0) TERRACE_TRY(plain_product_wgmma(l, kinds[i]));
    if (kinds[2].n_jobs == 0) return {};
    const auto tiles = [](int n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
    return start(l, "plain_any", plain_any,
                 dim3(tiles(widest), tiles(p.rows), static_cast<unsigned>(kinds[2].n_jobs)), 128, 0,
                 Start::overlapping, kinds[2]);
}

}  // namespace terrace::cuda
