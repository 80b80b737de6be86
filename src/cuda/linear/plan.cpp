// SPDX-License-Identifier: MIT
#include "cuda/linear/plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace::cuda {
namespace {

constexpr int32_t up(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

// What starting a block, filling its ring and adding its sums costs, in row tiles of a block.
constexpr int32_t kBlockOverhead = 6;
// More parts than this per multiprocessor only add overhead; it also bounds memory for partial sums.
constexpr int32_t kMaxBlocksPerSm = 5;

}  // namespace

GemvPlan plan_gemv(int32_t in, int32_t out, int32_t max_part, int sms) {
    GemvPlan best{in / 16, out / 128, 1};
    const int32_t least = up(in, max_part);
    const int32_t most = std::max(
        {least, 1, std::min(best.row_tiles / kGemvWarps, kMaxBlocksPerSm * sms / best.groups)});
    int64_t best_cost = INT64_MAX;
    for (int32_t parts = least; parts <= most; ++parts) {
        // Row tiles on the busiest multiprocessor: blocks there, times the slowest warp's share.
        const int64_t rows = up(up(best.row_tiles, parts), kGemvWarps) * kGemvWarps;
        const int64_t cost = up(best.groups * parts, sms) * (rows + kBlockOverhead);
        if (cost < best_cost) {
            best_cost = cost;
            best.parts = parts;
        }
    }
    return best;
}

int ring_slots(int row_tiles_per_warp, int bytes, int warps, size_t budget) {
    const int fit =
        static_cast<int>(budget / (static_cast<size_t>(bytes) * static_cast<size_t>(warps)));
    return std::max(2, std::min({row_tiles_per_warp, fit, 16}));
}

std::string to_string(const GemvPlan& p) {
    return fmt::format("{} groups x {} parts of {} row tiles", p.groups, p.parts,
                       up(p.row_tiles, p.parts));
}

}  // namespace terrace::cuda
