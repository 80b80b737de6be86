// Pieces of the gated delta net: which of a sequence's rows take the recurrent form, the scratch
// that the launches share, and the launches.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
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

// y = normalised silu(convolution) of all rows; the convolution states move on.
Status gdn_convolve(const Launch& l, const GdnArgs& a, float* y);
// The recurrent form over every row of every sequence.
Status gdn_recur(const Launch& l, const GdnArgs& a, const float* y);

}  // namespace terrace::cuda
