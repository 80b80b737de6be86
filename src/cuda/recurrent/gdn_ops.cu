// The gated delta net's entry point: which rows take which form, and the scratch that launches
// share.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/recurrent/gdn.h"
#include "cuda/recurrent/ple.h"
#include "cuda/recurrent/recurrent_ops.h"

namespace terrace::cuda {
namespace {

chunk::Tiles take_tiles(Carve& carve, int n, int k_heads, int v_heads) {
    const auto of = [&](int heads) { return static_cast<size_t>(n) * static_cast<size_t>(heads); };
    chunk::Tiles t;
    t.q = carve.take<__half>(of(k_heads) * chunk::kWideTile);
    t.k = carve.take<__half>(of(k_heads) * chunk::kWideTile);
    t.t = carve.take<__half>(of(v_heads) * chunk::kPairTile);
    t.p = carve.take<__half>(of(v_heads) * chunk::kPairTile);
    t.v = carve.take<float>(of(v_heads) * chunk::kValueTile);
    t.gates = carve.take<float>(of(v_heads) * chunk::kGates);
    return t;
}

// Every shape but the served one keeps the convolved rows.
float* take_rows(Carve& carve, int rows, int channels) {
    return carve.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(channels));
}

}  // namespace

size_t recurrent_scratch_bytes(const DeviceInfo&, const OpsLimits& l) {
    Carve rows(nullptr), tiles(nullptr);
    take_rows(rows, l.rows, l.gdn_channels);
    if (l.gdn_k_dim == chunk::kDim && l.gdn_v_dim == chunk::kDim) {
        const int k_heads = (l.gdn_channels / chunk::kDim - l.gdn_v_heads) / 2;
        take_tiles(tiles, std::min(kSlabTiles, l.rows / (kDecodeRows + 1)), k_heads, l.gdn_v_heads);
    }
    return std::max(
        {rows.used(), tiles.used(), ple_scratch(nullptr, l.rows, l.streams, l.hidden).used});
}

Status gdn(const Launch& l, const GdnArgs& a) {
    if (a.step.n_rows == 0) return {};
    Carve carve(l.scratch);
    if (!gdn_step_serves(a)) {
        float* y = take_rows(carve, a.step.n_rows, gdn_channels(a));
        TERRACE_TRY(gdn_convolve(l, a, y));
        return gdn_recur(l, a, y);
    }
    const int n_tiles = count_tiles(a.step, Tiled::prefilled, kGdnChunk);
    const chunk::Tiles tiles =
        take_tiles(carve, std::min(kSlabTiles, n_tiles), a.k_heads, a.v_heads);
    for (int t = 0; t < n_tiles; t += kSlabTiles) {
        const int n = std::min(kSlabTiles, n_tiles - t);
        TERRACE_TRY(gdn_prepare(l, a, tiles, t, n));
        TERRACE_TRY(gdn_walk(l, a, tiles, t, n));
    }
    const bool decoded =
        std::any_of(a.step.host_seqs, a.step.host_seqs + a.step.n_seqs,
                    [](const SeqRows& seq) { return decoded_rows(seq.n_rows) > 0; });
    return decoded ? gdn_step(l, a) : Status{};
}

}  // namespace terrace::cuda
