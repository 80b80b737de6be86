// index_scores for planes and shapes that the matrix path does not take.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/attn/attn_internal.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kWarps = 8;

// Computes  scores[r][b] for every complete block of each row.
// Grid and block  (rows x splits), 8 warps; a warp takes every (8 * splits)-th block of its row.
// Traffic   the pooled plane once per row.
// Numerics  fp32, lanes hold every 32nd element, butterfly sum; heads are added ascending.
__global__ void __launch_bounds__(32 * kWarps)
    scores_any_kernel(const IndexScoresArgs a, int splits, float scale) {
    pdl_launch();
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int r = static_cast<int>(blockIdx.x) / splits, row = a.first_row + r;
    const int split = static_cast<int>(blockIdx.x) % splits;
    const int id = a.index.dim, bt = a.index.block_tokens;
    const RowPlace at = place_row(a.step, row);
    const int complete = (at.pos + 1) / bt;
    const float* iq = a.iq.device_pointer() + int64_t{row} * a.index_heads * id;
    float* scores = a.scores.device_pointer() + r * a.stride;
    for (int b = split * kWarps + warp; b < complete; b += splits * kWarps) {
        const int64_t page = physical_page(a.step, at.seq, b * bt);
        const int64_t key = (page * (kPageTokens / bt) + b * bt % kPageTokens / bt) * id;
        float score = 0;
        for (int h = 0; h < a.index_heads; ++h) {
            float dot = 0;
            for (int i = lane; i < id; i += 32)
                dot += iq[h * id + i] * load_plane(a.index.pooled, a.index.type, key + i);
            score += fmaxf(warp_sum(dot), 0.0f);
        }
        if (lane == 0) scores[b] = score * scale;
    }
}

}  // namespace

Status index_scores_any(const Launch& l, const IndexScoresArgs& a, float scale) {
    const int splits = std::max(1, 8 * l.info->sms / a.rows);
    return start(l, "index_scores", scores_any_kernel,
                 dim3(static_cast<unsigned>(a.rows) * static_cast<unsigned>(splits)),
                 dim3(32 * kWarps), 0, Start::overlapping, a, splits, scale);
}

}  // namespace terrace::cuda
