// How a kernel finds its tile of rows (seq_tiles.h): on the device, because a captured step is
// replayed with other positions and slots.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/recurrent/seq_tiles.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {

struct SeqTile {
    SeqRows seq;
    int row0;    // first row of the tile in the step
    int n_rows;  // 0: there is no such tile
};

// Tiles of the sequences before `seq`. A warp's lanes take part as below.
__device__ __forceinline__ int first_tile(const StepRows& step, Tiled part, int seq,
                                          int tile_rows) {
    const SeqRows* seqs = step.seqs.device_pointer();
    int n = 0;
    for (int i = static_cast<int>(threadIdx.x) & 31; i < seq; i += 32)
        n += tiles_of(seqs[i].n_rows, part, tile_rows);
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        n += __shfl_xor_sync(0xffffffffu, n, d);
    return n;
}

// Every warp finds the tile by itself; all its lanes take part and get the same answer.
__device__ __forceinline__ SeqTile find_tile(const StepRows& step, Tiled part, int t,
                                             int tile_rows) {
    const SeqRows* seqs = step.seqs.device_pointer();
    const int lane = static_cast<int>(threadIdx.x) & 31;
    for (int base = 0; base < step.n_seqs; base += 32) {
        const int own =
            base + lane < step.n_seqs ? tiles_of(seqs[base + lane].n_rows, part, tile_rows) : 0;
        int upto = own;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, upto, d);
            if (lane >= d) upto += other;
        }
        const unsigned past = __ballot_sync(0xffffffffu, upto > t);
        if (past) {
            const int owner = __ffs(static_cast<int>(past)) - 1;
            const int done = (t - __shfl_sync(0xffffffffu, upto - own, owner)) * tile_rows;
            const SeqRows seq = seqs[base + owner];
            return {seq, seq.row0 + done, min(tile_rows, tiled_rows(seq.n_rows, part) - done)};
        }
        t -= __shfl_sync(0xffffffffu, upto, 31);
    }
    return {{}, 0, 0};
}

}  // namespace terrace::cuda
