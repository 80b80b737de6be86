// EXL3 products on sm_90a: weights are decoded from shared memory straight into the A operand of
// wgmma, rows are its B operand. Included by the instance files only.
//
// Four producer warps walk the tiles of their block and fill a ring of stages (64 inputs: the rows, then
// the trellis of 128 outputs) by bulk copies; two warpgroups of 64 outputs each empty it. Per stage:
//   full   the first producer's arrival and all bytes of the copies
//   empty  one arrival per consumer warp, when the products that read the stage are complete
// What the consumers must know of a tile lies in a ring of notes; a note is written before its tile's
// first stage is filled, and kNotes exceeds the tiles that the stages can hold, so that no note is
// overwritten under a reader. A tile of 0 steps ends the block.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>

#include "cuda/exl3/decode.cuh"
#include "cuda/gemm/tile.cuh"
#include "cuda/ptx/async.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/util/common.cuh"

namespace terrace::cuda {

constexpr int kConsumers = 256;                  // threads: two warpgroups
constexpr int kWgmmaThreads = kConsumers + 128;  // registers are given out by warpgroups
constexpr int kMaxStages = 8;
constexpr int kNotes = 8;

// Integer width, known to the compiler.
template <int K, Codebook C>
struct FixedWidth {
    static constexpr Codebook kCodebook = C;
    LanePlace place;
    __device__ FixedWidth(int, int lane) : place(lane_place<K>(lane)) {}
    __device__ static constexpr int tile_bytes() { return 32 * K; }
    __device__ void operator()(const uint8_t* tile, uint32_t (&a)[4]) const {
        decode_a_fragment<K, C>(reinterpret_cast<const uint32_t*>(tile), place, a);
    }
};

template <Codebook C>
struct AnyWidth {
    static constexpr Codebook kCodebook = C;
    int n16, lane;
    __device__ AnyWidth(int n, int l) : n16(n), lane(l) {}
    __device__ int tile_bytes() const { return 2 * n16; }
    __device__ void operator()(const uint8_t* tile, uint32_t (&a)[4]) const {
        decode_a_fragment<C>(reinterpret_cast<const uint32_t*>(tile), n16, lane, a);
    }
};

// Stages in shared memory: rows (1024-byte aligned for the swizzle), then trellis, rounded up.
constexpr int stage_bytes(int rows, int n16) {
    return rows * 128 + (64 * n16 + 1023) / 1024 * 1024;
}
// Results, notes and barriers behind the stages, and room to align the first stage.
constexpr int kWgmmaTail = kStageFloats * 4 + 1024 + 1024;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct StageRing {
    const uint8_t* stages;
    uint32_t full;  // barriers [n_stages], then the empty ones
    int bytes, n_stages;
    int at = 0;
    uint32_t parity = 0;

    __device__ uint32_t full_bar(int s) const { return full + 8 * s; }
    __device__ uint32_t empty_bar(int s) const { return full + 8 * (n_stages + s); }
    __device__ const uint8_t* stage() const { return stages + at * bytes; }
    __device__ void advance() {
        if (++at == n_stages) {
            at = 0;
            parity ^= 1;
        }
    }
};

// acc[n8][4] += tile's weights times the rows of the coming `steps` stages. Two sets of fragments:
// one is decoded while the tensor cores read the other.
template <int kRows, class Decoder>
__device__ __forceinline__ void multiply(float (&acc)[kRows / 2], const Decoder& decode,
                                         StageRing& ring, int steps, int warp, int lane) {
    uint32_t a[2][4][4] = {};
    int before = -1;
#pragma unroll
    for (float& v : acc)
        v = 0.0f;
    for (int k = 0; k < steps; k += 2) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            mbarrier_wait(ring.full_bar(ring.at), ring.parity);
            const uint8_t* stage = ring.stage();
            const uint8_t* trellis = stage + kRows * 128 + warp * decode.tile_bytes();
#pragma unroll
            for (int s = 0; s < 4; ++s)
                decode(trellis + s * 8 * decode.tile_bytes(), a[h][s]);
            const uint64_t rows = wgmma_operand(smem_address(stage));
            wgmma_keep(acc);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; ++s)
                wgmma(acc, a[h][s], rows + 2 * s);
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_keep(a[1 - h]);
            if (before >= 0 && lane == 0) mbarrier_arrive(ring.empty_bar(before));
            before = ring.at;
            ring.advance();
        }
    }
    wgmma_wait<0>();
    wgmma_keep(acc);
    wgmma_keep(a[1]);
    if (lane == 0) mbarrier_arrive(ring.empty_bar(before));
}

// Sums of up to kRows rows to y, 64 rows at a time through shared memory.
template <int kRows>
__device__ __forceinline__ void put_results(const float (&acc)[kRows / 2], const Tile& tile,
                                            float* results, int warp, int lane) {
    constexpr int kPieces = kRows / 64;
    const int g = lane >> 2, t4 = lane & 3;
#pragma unroll 1
    for (int piece = 0; piece < kPieces && piece * 64 < tile.rows; ++piece) {
        named_barrier(1, kConsumers);  // the readers of the piece before are done
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            if (i == piece)
#pragma unroll
                for (int j = 0; j < 8; ++j)
#pragma unroll
                    for (int r = 0; r < 4; ++r)
                        results[(8 * j + 2 * t4 + (r & 1)) * kStageStride + 16 * warp + g +
                                8 * (r >> 1)] = acc[(i * 8 + j) * 4 + r];
        named_barrier(1, kConsumers);
        finish_rows(tile, results, piece * 64, warp, lane);
    }
}

#endif

// Computes: product.h, tiles of 128 outputs x kRows rows.
// Grid and block: persistent, kBlocks per multiprocessor; eight consumer warps, each with 16 outputs
// of all rows of a tile in registers, and four producer warps.
// Shared memory: n_stages of kRows * 128 bytes of rows and 1 KiB of trellis per bit; 33 KiB of results.
// Traffic: a weight is read and decoded once per kRows rows.
// Numerics: exact f16 weights, f16 rows, f32 sums in steps of 16 inputs, ascending; the same bits for
// a row in a tile of any size.
template <class Decoder, int kRows, int kBlocks>
__global__ void __launch_bounds__(kWgmmaThreads, kBlocks)
    exl3_wgmma(const __grid_constant__ Product p, int n_stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t dynamic_smem[];
    uint8_t* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023u);
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    StageRing ring;
    ring.bytes = stage_bytes(kRows, p.n16);
    ring.n_stages = n_stages;
    ring.stages = smem;
    auto* results = reinterpret_cast<float*>(smem + n_stages * ring.bytes);
    auto* notes = reinterpret_cast<Tile*>(results + kStageFloats);
    static_assert(kNotes * sizeof(Tile) + 2 * kMaxStages * 8 <= 1024);
    ring.full = smem_address(notes + kNotes);
    if (threadIdx.x == 0) {
        for (int s = 0; s < n_stages; ++s) {
            mbarrier_init(ring.full_bar(s), 1);
            mbarrier_init(ring.empty_bar(s), kConsumers / 32);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    pdl_wait();

    if (warp >= kConsumers / 32) {
        give_registers<kBlocks == 1 ? 40 : 48>();
        // One lane of each of four warps: each copies one of the four rows of trellis tiles of a
        // stage, the first the rows and the notes too.
        if (lane == 0) {
            const int part = warp - kConsumers / 32;
            ring.parity = 1;  // fresh barriers let the first round pass
            int note = 0;
            const uint32_t row_bytes = 16 * static_cast<uint32_t>(p.n16);  // of 128 outputs
            const int n_tiles = tile_count(p);
            for (int i = 0, t; (t = tile_of_block(p, i)) < n_tiles; ++i) {
                Tile tile;
                if (!find_tile(p, t, tile)) continue;
                const uint32_t x_bytes = static_cast<uint32_t>((tile.rows + 7) & ~7) * 128;
                const uint16_t* trellis = tile.trellis + part * tile.row_words;
                const __half* x = tile.x;
                for (int k = 0; k < tile.k_steps; ++k) {
                    mbarrier_wait(ring.empty_bar(ring.at), ring.parity);
                    const uint32_t full = ring.full_bar(ring.at);
                    const uint32_t to = smem_address(ring.stage());
                    if (part == 0) {
                        if (k == 0) notes[note] = tile;
                        mbarrier_expect(full, x_bytes + 4 * row_bytes);
                        bulk_load(to, x, x_bytes, full);
                        x += p.slots * 64;
                    }
                    bulk_load(to + kRows * 128 + static_cast<uint32_t>(part) * row_bytes, trellis,
                              row_bytes, full);
                    trellis += 4 * tile.row_words;
                    ring.advance();
                }
                note = (note + 1) % kNotes;
            }
            if (part == 0) {
                mbarrier_wait(ring.empty_bar(ring.at), ring.parity);
                notes[note].k_steps = 0;
                mbarrier_arrive(ring.full_bar(ring.at));
            }
        }
    } else {
        take_registers<kBlocks == 1 ? 232 : 96>();
        const Decoder decode(p.n16, lane);
        for (int note = 0;; note = (note + 1) % kNotes) {
            mbarrier_wait(ring.full_bar(ring.at), ring.parity);
            const Tile& tile = notes[note];
            if (tile.k_steps == 0) break;
            float acc[kRows / 2];
            multiply<kRows>(acc, decode, ring, tile.k_steps, warp, lane);
            put_results<kRows>(acc, tile, results, warp, lane);
        }
    }
#endif
}

template <class Decoder>
Status launch_wgmma(const Launch& l, const Product& p, ProductShape shape) {
    const int rows = shape_rows(shape), per_sm = shape == ProductShape::rows64 ? 2 : 1;
    const auto kernel = shape == ProductShape::rows64    ? exl3_wgmma<Decoder, 64, 2>
                        : shape == ProductShape::rows128 ? exl3_wgmma<Decoder, 128, 1>
                                                         : exl3_wgmma<Decoder, 256, 1>;
    // Every block also takes 1 KiB of the multiprocessor's memory for the system.
    const int room = static_cast<int>(
        std::min(l.info->smem_per_block, l.info->smem_per_sm / static_cast<size_t>(per_sm) - 1024));
    const int bytes = stage_bytes(rows, p.n16);
    const int stages = std::min(kMaxStages, (room - kWgmmaTail) / bytes);
    int blocks = per_sm * l.info->sms;
    if (!p.row_tiles) blocks = std::min(blocks, (p.rows + rows - 1) / rows * p.col_tiles);
    return start(l, "exl3_wgmma", kernel, static_cast<unsigned>(blocks), kWgmmaThreads,
                 static_cast<size_t>(stages * bytes + kWgmmaTail), Start::overlapping, p, stages);
}

template <Codebook C>
Status product_wgmma(const Launch& l, const Product& p, ProductShape shape) {
    switch (p.n16) {
        case 16:
            return launch_wgmma<FixedWidth<1, C>>(l, p, shape);
        case 32:
            return launch_wgmma<FixedWidth<2, C>>(l, p, shape);
        case 48:
            return launch_wgmma<FixedWidth<3, C>>(l, p, shape);
        case 64:
            return launch_wgmma<FixedWidth<4, C>>(l, p, shape);
        case 80:
            return launch_wgmma<FixedWidth<5, C>>(l, p, shape);
        case 96:
            return launch_wgmma<FixedWidth<6, C>>(l, p, shape);
        case 112:
            return launch_wgmma<FixedWidth<7, C>>(l, p, shape);
        case 128:
            return launch_wgmma<FixedWidth<8, C>>(l, p, shape);
        default:
            return launch_wgmma<AnyWidth<C>>(l, p, shape);
    }
}

}  // namespace terrace::cuda
