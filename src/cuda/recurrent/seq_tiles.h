// Tiles of rows that never cross a sequence: tile t of a step, counted sequence after sequence.
// Pure functions of the rows per sequence, for the host's launch shapes and for kernels.
// SPDX-License-Identifier: MIT
#pragma once
#include "ops/args.h"

namespace terrace::cuda {

// The rows of a sequence that are cut into tiles.
enum class Tiled : uint8_t {
    all,
    prefilled,  // whole runs of kGdnChunk and a last run longer than kDecodeRows: RowKind::prefill
};

// Rows behind a sequence's last whole run of kGdnChunk, when they are few enough to be decoded.
constexpr int decoded_rows(int n_rows) {
    const int tail = n_rows % kGdnChunk;
    return tail <= kDecodeRows ? tail : 0;
}
constexpr int tiled_rows(int n_rows, Tiled part) {
    return part == Tiled::all ? n_rows : n_rows - decoded_rows(n_rows);
}
constexpr int tiles_of(int n_rows, Tiled part, int tile_rows) {
    return (tiled_rows(n_rows, part) + tile_rows - 1) / tile_rows;
}

inline int count_tiles(const StepRows& step, Tiled part, int tile_rows) {
    int n = 0;
    for (int i = 0; i < step.n_seqs; ++i)
        n += tiles_of(step.host_seqs[i].n_rows, part, tile_rows);
    return n;
}

}  // namespace terrace::cuda
