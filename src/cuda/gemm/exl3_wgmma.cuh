// EXL3 products on sm_90a: weights are decoded from shared memory straight into the A operand of
// wgmma, rows are its B operand. Included by the instance files only.
//
// Four producer warps walk the tiles of their block and fill a ring of stages (64 or 128 inputs: the
// rows, then the trellis of 128 outputs) by bulk copies; two warpgroups of 64 outputs each empty it.
// Per stage:
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

constexpr int kConsumers = 256;  // threads: two warpgroups
constexpr int kProducers = 4;    // warps, of each of which one lane copies
constexpr int kWgmmaThreads = kConsumers + 32 * kProducers;  // registers go by warpgroups
constexpr int kMaxStages = 8;
constexpr int kNotes = 8;

// What decoders make of a lane's states.
struct Mul1Values {
    __device__ explicit Mul1Values(Codebook) {}
    __device__ static uint32_t pair(uint32_t s0, uint32_t s1) {
        return value_pair<Codebook::mul1>(s0, s1);
    }
};
// mcg and 3inst: the same but for two numbers.
struct XorValues {
    uint32_t multiplier, addend;
    __device__ explicit XorValues(Codebook c)
        : multiplier(c == Codebook::mcg ? kMcgMultiplier : kThreeInstMultiplier),
          addend(c == Codebook::mcg ? 0 : kThreeInstAddend) {}
    __device__ uint32_t pair(uint32_t s0, uint32_t s1) const {
        return xor_pair(s0 * multiplier + addend, s1 * multiplier + addend);
    }
};

// Tiles of K bits; K = 0: of any n16, half-integer widths included.
template <int K, class Values>
struct Decoder {
    Values values;
    LanePlace place;
    int n16, lane;
    __device__ Decoder(Codebook codebook, int n, int l)
        : values(codebook), place(lane_place < K == 0 ? 1 : K > (l)), n16(n), lane(l) {}
    __device__ int tile_bytes() const { return K == 0 ? 2 * n16 : 32 * K; }
    __device__ void operator()(const uint8_t* tile, uint32_t (&a)[4]) const {
        uint32_t s[8];
        if constexpr (K == 0)
            lane_states_any(reinterpret_cast<const uint32_t*>(tile), n16, lane, s);
        else
            lane_states<K>(reinterpret_cast<const uint32_t*>(tile), place, s);
        a[0] = values.pair(s[0], s[1]);
        a[1] = values.pair(s[4], s[5]);
        a[2] = values.pair(s[2], s[3]);
        a[3] = values.pair(s[6], s[7]);
    }
};

// Steps of 64 inputs in a stage: small tiles would spend more on barriers than on products.
constexpr int steps_per_stage(int rows) {
    return rows == 64 ? 2 : 1;
}
// Stages in shared memory: rows (1024-byte aligned for the swizzle), then trellis, rounded up.
constexpr int stage_bytes(int rows, int n16) {
    return steps_per_stage(rows) * rows * 128 +
           (steps_per_stage(rows) * 64 * n16 + 1023) / 1024 * 1024;
}
// Results, notes and barriers behind the stages, and room to align the first stage.
constexpr int kWgmmaTail = kStageFloats * 4 + 1024 + 1024;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct StageRing {
    uint32_t stages;  // shared-memory addresses
    uint32_t full;    // barriers [n_stages], then the empty ones
    int bytes, n_stages;
    int at = 0;
    uint32_t parity = 0;

    __device__ uint32_t full_bar(int s) const { return full + 8 * s; }
    __device__ uint32_t empty_bar(int s) const { return full + 8 * (n_stages + s); }
    __device__ uint32_t stage() const { return stages + at * bytes; }
    __device__ void advance() {
        at = at + 1 == n_stages ? 0 : at + 1;
        parity ^= at == 0;
    }
};

// acc[n8][4] += tile's weights times the rows of the coming stages, `steps` of 64 inputs. Two sets
// of fragments: one is decoded while the tensor cores read the other.
template <int kRows, class Decode>
__device__ __forceinline__ void multiply(float (&acc)[kRows / 2], const Decode& decode,
                                         StageRing& ring, const uint8_t* smem, int steps, int warp,
                                         int lane) {
    constexpr int kPer = steps_per_stage(kRows);
    uint32_t a[2][4][4] = {};
    int before = 0;
#pragma unroll
    for (float& v : acc)
        v = 0.0f;
    for (int k = 0; k < steps; k += 2) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int part = h % kPer;  // of the stage
            if (part == 0) mbarrier_wait(ring.full_bar(ring.at), ring.parity);
            const uint8_t* trellis = smem + (ring.at * ring.bytes + kPer * kRows * 128 +
                                             (32 * part + warp) * decode.tile_bytes());
#pragma unroll
            for (int s = 0; s < 4; ++s)
                decode(trellis + s * 8 * decode.tile_bytes(), a[h][s]);
            const uint32_t rows = wgmma_operand_low(ring.stage() + part * kRows * 128);
            wgmma_keep(acc);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; ++s)
                wgmma(acc, a[h][s], wgmma_operand_of(rows + 2 * s));
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_keep(a[1 - h]);
            if (part == 0) {
                if (k + h > 0) {
                    __syncwarp();  // every lane has read its share of the stage
                    if (lane == 0) mbarrier_arrive(ring.empty_bar(before));
                }
                before = ring.at;
            }
            if (part == kPer - 1) ring.advance();
        }
    }
    wgmma_wait<0>();
    wgmma_keep(acc);
    wgmma_keep(a[1]);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(ring.empty_bar(before));
}

// Sums of up to kRows rows to y, 64 rows at a time through shared memory.
template <int kRows>
__device__ __forceinline__ void put_results(const float (&acc)[kRows / 2], const Tile& tile,
                                            float* results, int warp, int lane) {
    constexpr int kPieces = (kRows + 63) / 64;
    const int g = lane >> 2, t4 = lane & 3;
#pragma unroll 1
    for (int piece = 0; piece < kPieces && piece * 64 < tile.rows; ++piece) {
        named_barrier(1, kConsumers);  // the readers of the piece before are done
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            if (i == piece)
#pragma unroll
                for (int j = 0; j < 8 && i * 8 + j < kRows / 8; ++j)
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
// Shared memory: n_stages of stage_bytes(): per 64 inputs, 128 bytes per row and 1 KiB of trellis per
// bit; 33 KiB of results.
// Traffic: a weight is read and decoded once per kRows rows.
// Numerics: exact f16 weights, f16 rows, f32 sums in steps of 16 inputs, ascending; the same bits for
// a row in a tile of any size.
template <class Decode, int kRows, int kBlocks>
__global__ void __launch_bounds__(kWgmmaThreads, kBlocks)
    exl3_wgmma(const __grid_constant__ Product p, int n_stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t dynamic_smem[];
    uint8_t* smem = dynamic_smem + (-shared_address(dynamic_smem) & 1023u);
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    StageRing ring;
    ring.bytes = stage_bytes(kRows, p.n16);
    ring.n_stages = n_stages;
    ring.stages = shared_address(smem);
    auto* results = reinterpret_cast<float*>(smem + n_stages * ring.bytes);
    auto* notes = reinterpret_cast<Tile*>(results + kStageFloats);
    static_assert(kNotes * sizeof(Tile) + 2 * kMaxStages * 8 <= 1024);
    ring.full = shared_address(notes + kNotes);
    if (threadIdx.x == 0) {
        for (int s = 0; s < n_stages; ++s) {
            mbarrier_init(ring.full_bar(s), kProducers);
            mbarrier_init(ring.empty_bar(s), kConsumers / 32);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    pdl_wait();

    if (warp >= kConsumers / 32) {
        give_registers<kBlocks == 1 ? 40 : 48>();
        // One lane of each of four warps: each copies every fourth row of trellis tiles of a stage,
        // the first warp the rows and the notes too.
        if (elect_lane()) {
            constexpr int kPer = steps_per_stage(kRows);
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
                for (int k = 0; k < tile.k_steps; k += kPer) {
                    mbarrier_wait(ring.empty_bar(ring.at), ring.parity);
                    const uint32_t full = ring.full_bar(ring.at);
                    uint32_t to = ring.stage();
                    if (part == 0 && k == 0) notes[note] = tile;
                    mbarrier_announce(full, kPer * (row_bytes + (part == 0 ? x_bytes : 0)));
                    if (part == 0) {
#pragma unroll
                        for (int h = 0; h < kPer; ++h) {
                            bulk_load(to + h * kRows * 128, x, x_bytes, full);
                            x += p.slots * 64;
                        }
                    }
                    to += kPer * kRows * 128 + static_cast<uint32_t>(part) * row_bytes;
#pragma unroll
                    for (int h = 0; h < kPer; ++h) {
                        bulk_load(to + 4 * h * row_bytes, trellis, row_bytes, full);
                        trellis += 4 * tile.row_words;
                    }
                    mbarrier_arrive(full);
                    ring.advance();
                }
                note = (note + 1) % kNotes;
            }
            mbarrier_wait(ring.empty_bar(ring.at), ring.parity);
            if (part == 0) notes[note].k_steps = 0;
            mbarrier_arrive(ring.full_bar(ring.at));
        }
    } else {
        take_registers<kBlocks == 1 ? 232 : 96>();
        const Decode decode(p.codebook, p.n16, lane);
        for (int note = 0;; note = (note + 1) % kNotes) {
            mbarrier_wait(ring.full_bar(ring.at), ring.parity);
            const Tile& tile = notes[note];
            if (tile.k_steps == 0) break;
            float acc[kRows / 2];
            multiply<kRows>(acc, decode, ring, smem, tile.k_steps, warp, lane);
            put_results<kRows>(acc, tile, results, warp, lane);
        }
    }
#endif
}

template <class Decode>
Status launch_wgmma(const Launch& l, const Product& p, ProductShape shape) {
    const int rows = shape_rows(shape), per_sm = shape == ProductShape::rows64 ? 2 : 1;
    const auto kernel = shape == ProductShape::rows64    ? exl3_wgmma<Decode, 64, 2>
                        : shape == ProductShape::rows128 ? exl3_wgmma<Decode, 128, 1>
                        : shape == ProductShape::rows160 ? exl3_wgmma<Decode, 160, 1>
                                                         : exl3_wgmma<Decode, 256, 1>;
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

template <class Values>
Status launch_wgmma_values(const Launch& l, const Product& p, ProductShape shape) {
    switch (p.n16) {
        case 16:
            return launch_wgmma<Decoder<1, Values>>(l, p, shape);
        case 32:
            return launch_wgmma<Decoder<2, Values>>(l, p, shape);
        case 48:
            return launch_wgmma<Decoder<3, Values>>(l, p, shape);
        case 64:
            return launch_wgmma<Decoder<4, Values>>(l, p, shape);
        case 80:
            return launch_wgmma<Decoder<5, Values>>(l, p, shape);
        case 96:
            return launch_wgmma<Decoder<6, Values>>(l, p, shape);
        case 112:
            return launch_wgmma<Decoder<7, Values>>(l, p, shape);
        case 128:
            return launch_wgmma<Decoder<8, Values>>(l, p, shape);
        default:
            return launch_wgmma<Decoder<0, Values>>(l, p, shape);
    }
}

}  // namespace terrace::cuda
