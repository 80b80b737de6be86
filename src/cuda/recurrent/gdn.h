// Pieces of the gated delta net. Heads of 128 x 128 with four taps take the chunk form for
// prefilled rows and the one-launch step for decoded ones; any other shape takes the recurrent form
// for all.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "cuda/recurrent/gdn_chunk.cuh"
#include "cuda/recurrent/seq_tiles.cuh"
#include "ops/ops.h"

namespace terrace::cuda {

// Chunks that share a pair of launches: enough to fill the device, few enough that what they leave
// for each other, 3.5 MB each at the real model's size, is small.
constexpr int kSlabTiles = 32;

inline int gdn_channels(const GdnArgs& a) {
    return 2 * a.k_heads * a.k_dim + a.v_heads * a.v_dim;
}

// y[R][channels] = normalised silu(convolution) of all rows; the convolution states move on.
Status gdn_convolve(const Launch& l, const GdnArgs& a, float* y);
// The recurrent form over all rows.
Status gdn_recur(const Launch& l, const GdnArgs& a, const float* y);
// The recurrent form over the decoded rows of every sequence, from qkv on, in one launch.
bool gdn_step_serves(const GdnArgs& a);
Status gdn_step(const Launch& l, const GdnArgs& a);

// The chunk form over tiles [tile0, tile0 + n_tiles) of kGdnChunk prefilled rows, in launches that
// move the sequences' states on. Served where gdn_step is.
Status gdn_prepare(const Launch& l, const GdnArgs& a, const chunk::Tiles& out, int tile0,
                   int n_tiles);
Status gdn_walk(const Launch& l, const GdnArgs& a, const chunk::Tiles& tiles, int tile0,
                int n_tiles);

}  // namespace terrace::cuda
