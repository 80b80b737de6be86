// Pieces of the gated delta net: which of a sequence's rows take the recurrent form, the scratch
// that the launches share, and the launches.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "cuda/recurrent/seq_tiles.cuh"
#include "ops/ops.h"

namespace terrace::cuda {

struct GdnScratch {
    float* y = nullptr;  // [R][channels] convolved; q and k normalised
    size_t used = 0;
};
GdnScratch gdn_scratch(std::byte* base, int rows, int channels);

inline int gdn_channels(const GdnArgs& a) {
    return 2 * a.k_heads * a.k_dim + a.v_heads * a.v_dim;
}

// y = normalised silu(convolution) of the rows of `part`; the convolution states move on, but for
// sequences with rows outside of it.
Status gdn_convolve(const Launch& l, const GdnArgs& a, Tiled part, float* y);
// The recurrent form over the rows of `part` of every sequence, any dims.
Status gdn_recur(const Launch& l, const GdnArgs& a, Tiled part, const float* y);
// The recurrent form over the decoded rows of every sequence, from qkv on, in one launch.
bool gdn_step_serves(const Launch& l, const GdnArgs& a);
Status gdn_step(const Launch& l, const GdnArgs& a);

}  // namespace terrace::cuda
