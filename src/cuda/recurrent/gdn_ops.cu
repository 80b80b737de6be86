// The gated delta net's entry point: convolution and norms of all rows, then the recurrence.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/recurrent/gdn.h"
#include "cuda/recurrent/ple.h"
#include "cuda/recurrent/recurrent_ops.h"

namespace terrace::cuda {

GdnScratch gdn_scratch(std::byte* base, int rows, int channels) {
    Carve carve(base);
    GdnScratch s;
    s.y = carve.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(channels));
    s.used = carve.used();
    return s;
}

size_t recurrent_scratch_bytes(const DeviceInfo&, const OpsLimits& l) {
    return std::max(gdn_scratch(nullptr, l.rows, l.gdn_channels).used,
                    ple_scratch(nullptr, l.rows, l.streams, l.hidden).used);
}

Status gdn(const Launch& l, const GdnArgs& a) {
    if (a.step.n_rows == 0) return {};
    const GdnScratch s = gdn_scratch(l.scratch, a.step.n_rows, gdn_channels(a));
    const bool step = gdn_step_serves(l, a);
    const Tiled part = step ? Tiled::prefilled : Tiled::all;
    if (count_tiles(a.step, part, kGdnChunk) > 0) {
        TERRACE_TRY(gdn_convolve(l, a, part, s.y));
        TERRACE_TRY(gdn_recur(l, a, part, s.y));
    }
    const bool decoded =
        std::any_of(a.step.host_seqs, a.step.host_seqs + a.step.n_seqs,
                    [](const SeqRows& seq) { return decoded_rows(seq.n_rows) > 0; });
    if (step && decoded) TERRACE_TRY(gdn_step(l, a));
    return {};
}

}  // namespace terrace::cuda
