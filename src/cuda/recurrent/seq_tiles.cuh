// Tiles of rows that never cross a sequence: tile t of a step, counted sequence after sequence. The
// host counts them from the rows per sequence, kernels find theirs on the device, because a
// captured step is replayed with other positions and slots.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/util/common.cuh"

namespace terrace::cuda {

struct SeqTile {
    SeqRows seq;
    int row0;    // first row of the tile in the step
    int n_rows;  // 0: there is no such tile
    bool first;  // the sequence's first tile
};

inline int count_tiles(const StepRows& step, int tile_rows) {
    int n = 0;
    for (int i = 0; i < step.n_seqs; ++i)
        n += (step.host_seqs[i].n_rows + tile_rows - 1) / tile_rows;
    return n;
}

// Every warp finds the tile by itself; all its lanes take part and get the same answer.
__device__ __forceinline__ SeqTile find_tile(const StepRows& step, int t, int tile_rows) {
    const SeqRows* seqs = step.seqs.device_pointer();
    const int lane = static_cast<int>(threadIdx.x) & 31;
    for (int base = 0; base < step.n_seqs; base += 32) {
        const int rows = base + lane < step.n_seqs ? seqs[base + lane].n_rows : 0;
        const int own = (rows + tile_rows - 1) / tile_rows;
        int upto = own;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, upto, d);
            if (lane >= d) upto += other;
        }
        const unsigned past = __ballot_sync(0xffffffffu, upto > t);
        if (past) {
            const int owner = __ffs(static_cast<int>(past)) - 1;
            const int in_seq = t - __shfl_sync(0xffffffffu, upto - own, owner);
            const SeqRows seq = seqs[base + owner];
            const int done = in_seq * tile_rows;
            return {seq, seq.row0 + done, min(tile_rows, seq.n_rows - done), in_seq == 0};
        }
        t -= __shfl_sync(0xffffffffu, upto, 31);
    }
    return {{}, 0, 0, false};
}

}  // namespace terrace::cuda
