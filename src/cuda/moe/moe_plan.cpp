// SPDX-License-Identifier: MIT
#include "cuda/moe/moe_plan.h"

#include <algorithm>

namespace terrace::cuda {

MoeShared moe_shared(const MoeShape& m, const GemvRoom& room) {
    // Sums of the tokens that a slot may have, for either cut of a block, then values.
    const auto sum_bytes = [&](int few_shares, int matrices) {
        const auto of = [&](int shares, int rows) {
            return warp_sum_bytes(8, shares * matrices, rows) +
                   size_t{512} * static_cast<size_t>(rows * matrices);
        };
        size_t bytes = of(few_shares, std::min(m.rows, 4));
        if (m.rows > 4) bytes = std::max(bytes, of(few_shares / 2, m.rows));
        return std::max(bytes, sizeof(int) * static_cast<size_t>(m.pairs));
    };
    const auto ring = [](int slots, int bytes) {
        return static_cast<size_t>(slots) * static_cast<size_t>(bytes) * kGemvWarps;
    };
    constexpr int kSlotColumns =
        16 * 2;  // bytes of a row tile's 128 columns per 1/16 bit, two pieces
    const int up_slot = kSlotColumns * m.up_n16, down_slot = kSlotColumns * m.down_n16;
    MoeShared s;
    s.up_slots = ring_slots((m.row_tiles + 8 * m.up_parts - 1) / (8 * m.up_parts), up_slot,
                            kGemvWarps, room.ring);
    const int down_tiles = 8 * m.up_groups;
    s.down_slots = ring_slots((down_tiles * m.teams + 2 * kGemvWarps - 1) / (2 * kGemvWarps),
                              down_slot, kGemvWarps, room.ring);
    s.up_bytes = std::max(ring(s.up_slots, up_slot), sum_bytes(4, 2)) + 16;
    s.planes_at = (std::max(ring(s.down_slots, down_slot), sum_bytes(8, 1)) + 16 + 127) / 128 * 128;
    s.down_bytes = s.planes_at + static_cast<size_t>(m.rows * down_tiles) * kPlaneBytes;
    return s;
}

}  // namespace terrace::cuda
