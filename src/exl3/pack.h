// Writing tiles: the inverse of state_at (EXL3 format 2.2), and packed legacy signs. Any thread,
// host and device, compile time. Invariant: for a tail-biting sequence, state_at(pack_states(s), t)
// == s[t]; of any other sequence only the new bits of each position survive.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "base/half.h"
#include "exl3/trellis.h"

namespace terrace {

// states: 256 in ring order. tile: n16 words, all written.
TERRACE_HD constexpr void pack_states(const uint16_t* states, int n16, uint16_t* tile) {
    uint32_t pending = 0;  // bits not yet written, the oldest highest
    int count = 0;
    int h = 0;
    for (int t = 0; t < kTileWeights; ++t) {
        const int bits = new_bits(n16, t);
        pending = (pending << bits) | (states[t] & ((1u << bits) - 1u));
        count += bits;
        if (count < 16) continue;
        count -= 16;
        tile[stored_halfword(h++)] = static_cast<uint16_t>(pending >> count);
    }
}

// True when each state starts with the end of the one before it, 255 -> 0 included.
TERRACE_HD constexpr bool is_tail_biting(const uint16_t* states, int n16) {
    for (int t = 0; t < kTileWeights; ++t) {
        const uint32_t state = states[t];
        const uint32_t before = states[(t + kTileWeights - 1) % kTileWeights];
        const int bits = new_bits(n16, t);
        if ((state >> bits) != (before & (0xffffu >> bits))) return false;
    }
    return true;
}

// Bit i % 16 of word i / 16 is set where v[i] is negative (EXL3 format 1.4). n is a multiple of 16.
TERRACE_HD constexpr void pack_signs(const f16* v, int n, uint16_t* packed) {
    for (int i = 0; i < n; i += 16) {
        uint32_t word = 0;
        for (int j = 0; j < 16; ++j)
            word |= static_cast<uint32_t>(v[i + j].bits >> 15) << j;
        packed[i / 16] = static_cast<uint16_t>(word);
    }
}

}  // namespace terrace
