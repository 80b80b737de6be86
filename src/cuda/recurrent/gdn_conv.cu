// Gated delta net, first half: causal depthwise convolution with SiLU, and the L2 norms of q and k.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/recurrent/gdn.h"
#include "cuda/recurrent/seq_tiles.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 256;
// Rows per block. At least kernel - 1, so that only a sequence's first tile reads the state, and
// may move it on when it has done so.
constexpr int kTileRows = 16;

// Computes y[r][c] = silu(sum_j w[c][j] * u[r - kernel + 1 + j][c]) and the new convolution state.
// Grid: (channels / 256, tiles of rows), a thread per channel. Traffic: u once from memory, its
// neighbours from the cache; y.
__global__ void __launch_bounds__(kThreads)
    conv_kernel(GdnArgs a, float* y, int channels, int tile_rows) {
    pdl_launch();
    pdl_wait();
    const SeqTile t = find_tile(a.step, Tiled::all, static_cast<int>(blockIdx.y), tile_rows);
    const int c = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    if (c >= channels) return;
    const int taps = a.kernel - 1;
    const float* u = a.qkv.device_pointer() + c;
    float* past = a.conv_state.device_pointer() + int64_t{t.seq.slot} * taps * channels + c;
    const int done = t.row0 - t.seq.row0;  // rows of the sequence before this tile
    for (int i = 0; i < t.n_rows; ++i) {
        float sum = 0.0f;
        for (int j = 0; j < a.kernel; ++j) {
            const int at = done + i - taps + j;  // row of the sequence; negative: in the state
            const float v = at < 0 ? past[int64_t{taps + at} * channels]
                                   : u[int64_t{t.seq.row0 + at} * channels];
            sum = fmaf(load_plain(a.conv, int64_t{c} * a.kernel + j), v, sum);
        }
        y[int64_t{t.row0 + i} * channels + c] = siluf(sum);
    }
    if (done > 0) return;
    for (int i = 0; i < taps; ++i) {
        const int at = t.seq.n_rows - taps + i;
        past[int64_t{i} * channels] =
            at < 0 ? past[int64_t{taps + at} * channels] : u[int64_t{t.seq.row0 + at} * channels];
    }
}

// Normalises q (also by 1 / sqrt(k_dim)) and k of every row in place. A warp per head and row.
__global__ void __launch_bounds__(kThreads) l2_kernel(GdnArgs a, float* y, int channels) {
    pdl_launch();
    pdl_wait();
    const int64_t task = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) & 31, heads = 2 * a.k_heads;
    const int64_t row = task / heads;
    const int head = static_cast<int>(task % heads);
    if (row >= a.step.n_rows) return;
    float* x = y + row * channels + head * a.k_dim;
    float sum = 0.0f;
    for (int i = lane; i < a.k_dim; i += 32)
        sum = fmaf(x[i], x[i], sum);
    float inv = rsqrtf(warp_sum(sum) + a.eps);
    if (head < a.k_heads) inv *= rsqrtf(static_cast<float>(a.k_dim));
    for (int i = lane; i < a.k_dim; i += 32)
        x[i] *= inv;
}

}  // namespace

Status gdn_convolve(const Launch& l, const GdnArgs& a, float* y) {
    const int channels = gdn_channels(a), tile_rows = std::max(kTileRows, a.kernel - 1);
    TERRACE_TRY(start(l, "gdn: convolution", conv_kernel,
                      dim3(static_cast<unsigned>((channels + kThreads - 1) / kThreads),
                           static_cast<unsigned>(count_tiles(a.step, Tiled::all, tile_rows))),
                      kThreads, 0, Start::overlapping, a, y, channels, tile_rows));
    const int64_t warps = int64_t{a.step.n_rows} * 2 * a.k_heads;
    return start(l, "gdn: norms", l2_kernel,
                 static_cast<unsigned>((warps * 32 + kThreads - 1) / kThreads), kThreads, 0,
                 Start::overlapping, a, y, channels);
}

}  // namespace terrace::cuda
