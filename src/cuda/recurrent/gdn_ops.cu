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
    TERRACE_TRY(gdn_convolve(l, a, s.y));
    return gdn_recur(l, a, s.y);
}

}  // namespace terrace::cuda
