// Layout of one trellis tile (EXL3 format 2.2, 2.5): 256 weights as a ring of 16 * n16 bits, and
// the place of each ring position in the 16x16 tile. Any thread, host and device, compile time.
//
// n16 is the last dimension of the trellis tensor: 16-bit words per tile, 16 times the bits per
// weight K (16, 32 .. 128, or 24, 40 .. 120 for the half-integer K of mul1). The ring runs through
// 32-bit little-endian words from the most significant bit down; seen as 16-bit words, the odd one
// of each pair comes first. Every bit pattern is a valid tile. Invariant: tiles are read 16 bits at
// a time, since files align them to 2 bytes only.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "base/half.h"

namespace terrace {

inline constexpr int kTileWeights = 256;
inline constexpr int kTileSide = 16;

// Input feature (row) and output feature (column) of ring position t, both 0..15: the register
// order of the B operand of two m16n8k16 matrix products, eight positions per lane.
TERRACE_HD constexpr int tile_row(int t) {
    return 2 * ((t >> 3) & 3) + (t & 1) + 8 * ((t >> 1) & 1);
}
TERRACE_HD constexpr int tile_col(int t) {
    return (t >> 5) + 8 * ((t >> 2) & 1);
}

// Inverse of the two above.
TERRACE_HD constexpr int ring_position(int row, int col) {
    const int lane = ((row >> 1) & 3) + 4 * (col & 7);
    return 8 * lane + (row & 1) + 2 * (row >> 3) + 4 * (col >> 3);
}

TERRACE_HD constexpr int ring_bits(int n16) {
    return 16 * n16;
}

// Exclusive end, in ring bits, of the 16-bit window of position t: (t + 1) * K for integer K. Half-
// integer K alternates floor(K) and ceil(K) new bits, even positions first (EXL3 format 1.8).
TERRACE_HD constexpr int window_end(int n16, int t) {
    return ((t + 1) * n16) >> 4;
}

// Bits that position t adds to the ring.
TERRACE_HD constexpr int new_bits(int n16, int t) {
    return window_end(n16, t) - window_end(n16, t - 1);
}

// Index, among a tile's 16-bit words as stored, of ring bits 16 * h .. 16 * h + 15.
TERRACE_HD constexpr int stored_halfword(int h) {
    return h ^ 1;
}

// The 16 bits that end where position t does; the ring wraps, so state_at(.., 0) starts in the last
// word of the tile.
TERRACE_HD constexpr uint32_t state_at(const uint16_t* tile, int n16, int t) {
    int begin = window_end(n16, t) - 16;
    if (begin < 0) begin += ring_bits(n16);
    const int first = begin >> 4;
    const int second = first + 1 == n16 ? 0 : first + 1;
    const uint32_t both =
        (static_cast<uint32_t>(tile[stored_halfword(first)]) << 16) | tile[stored_halfword(second)];
    return (both >> (16 - (begin & 15))) & 0xffffu;
}

static_assert(tile_row(0) == 0 && tile_col(32) == 1 && ring_position(0, 3) == 96);
static_assert(tile_row(255) == 15 && tile_col(255) == 15 && ring_position(15, 15) == 255);
static_assert(window_end(40, 0) == 2 && window_end(40, 1) == 5 && new_bits(40, 2) == 2 &&
              window_end(40, 255) == ring_bits(40));

}  // namespace terrace
