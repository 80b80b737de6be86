// EXL3 products through mma.sync, for GPUs without wgmma: the same tiles and layouts as the fast
// kernel, any width and codebook at run time.
// SPDX-License-Identifier: MIT
#include "cuda/exl3/decode.cuh"
#include "cuda/gemm/tile.cuh"
#include "cuda/ptx/async.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 64;
constexpr int kXBytes = kRows * 128;
constexpr int kStageBytes = kXBytes + 4 * 8 * 256;  // and four rows of eight tiles of 8 bits

// Computes: product.h, tiles of 128 outputs x 64 rows.
// Grid and block: persistent blocks of eight warps, each with 16 outputs x 64 rows of f32 sums.
// Shared memory: two stages of 64 inputs (rows 8 KiB, trellis 1 KiB per bit), 33 KiB for results.
// Traffic: each weight is read and decoded once per 64 rows.
// Numerics: f16 operands, f32 sums in steps of 16 inputs, ascending.
template <Codebook C>
__global__ void __launch_bounds__(kThreads) exl3_sync(const __grid_constant__ Product p) {
    extern __shared__ __align__(128) uint8_t stages[];  // two, then the results
    auto* results = reinterpret_cast<float*>(stages + 2 * kStageBytes);
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t4 = lane & 3;
    pdl_wait();
    const int n_tiles = tile_count(p);
    for (int i = 0, t; (t = tile_of_block(p, i)) < n_tiles; ++i) {
        Tile tile;
        if (!find_tile(p, t, tile)) continue;
        const int row_bytes = 16 * p.n16;  // 128 columns of one row of tiles
        const auto load = [&](int k) {
            uint8_t* stage = stages + (k & 1) * kStageBytes;
            const __half* x = tile.x + k * p.slots * 64;
            for (int c = static_cast<int>(threadIdx.x); c < tile.rows * 8; c += kThreads)
                cp_async16(shared_address(stage + c * 16), x + c * 8);
            for (int c = static_cast<int>(threadIdx.x); c < row_bytes / 4; c += kThreads) {
                const int byte = c * 16, row = byte / row_bytes;
                cp_async16(shared_address(stage + kXBytes + byte),
                           reinterpret_cast<const uint8_t*>(tile.trellis +
                                                            (4 * k + row) * tile.row_words) +
                               byte - row * row_bytes);
            }
            cp_async_commit();
        };
        float acc[8][4] = {};
        load(0);
        for (int k = 0; k < tile.k_steps; ++k) {
            if (k + 1 < tile.k_steps) {
                load(k + 1);
                cp_async_wait<1>();
            } else {
                cp_async_wait<0>();
            }
            __syncthreads();
            const uint8_t* stage = stages + (k & 1) * kStageBytes;
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                uint32_t a[4];
                decode_a_fragment<C>(reinterpret_cast<const uint32_t*>(
                                         stage + kXBytes + s * row_bytes + warp * 2 * p.n16),
                                     p.n16, lane, a);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const uint8_t* row = stage + (8 * j + g) * 128;
                    const auto b0 =
                        *reinterpret_cast<const uint32_t*>(row + ((2 * s) ^ g) * 16 + t4 * 4);
                    const auto b1 =
                        *reinterpret_cast<const uint32_t*>(row + ((2 * s + 1) ^ g) * 16 + t4 * 4);
                    mma_16816(acc[j], a, b0, b1);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int r = 0; r < 4; ++r)
                results[(8 * j + 2 * t4 + (r & 1)) * kStageStride + 16 * warp + g + 8 * (r >> 1)] =
                    acc[j][r];
        __syncthreads();
        finish_rows(tile, results, 0, warp, lane);
        __syncthreads();
    }
}

}  // namespace

Status product_sync(const Launch& l, const Product& p) {
    const auto kernel = p.codebook == Codebook::mul1  ? exl3_sync<Codebook::mul1>
                        : p.codebook == Codebook::mcg ? exl3_sync<Codebook::mcg>
                                                      : exl3_sync<Codebook::three_inst>;
    return start(l, "exl3_sync", kernel, static_cast<unsigned>(2 * l.info->sms), kThreads,
                 2 * kStageBytes + kStageFloats * sizeof(float), Start::overlapping, p);
}

}  // namespace terrace::cuda
