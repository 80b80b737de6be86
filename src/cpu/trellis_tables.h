// Compile-time tables that cut the windows of EXL3 tiles out of vector registers (EXL3 format 2.2,
// 2.5), made from the format's own definition, window_end(), so that no bit position is written by
// hand. Everything here is consteval: no code is emitted, whatever the instruction set of the file.
//
// Terms. The ring's bits run through 32-bit little-endian words from the most significant bit down,
// so "stream byte" p of a tile lies at memory byte mem(p). A ring lane is 8 consecutive positions;
// lane L = 4c + q holds states 0..3 = rows 2q, 2q+1, 2q+8, 2q+9 of column c and states 4..7 = the
// same rows of column c + 8. States that are neighbours in a 32-bit element (0,1), (2,3), .. are
// therefore neighbours along k, as the 16-bit multiply-add instructions want.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "exl3/trellis.h"

namespace terrace::trellis {

consteval int floor_div(int a, int b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}
consteval int ceil_div(int a, int b) {
    return -floor_div(-a, b);
}

// Memory byte, relative to the tile, of a stream byte; negative stream bytes are history (the
// ring's last word sits at -4..-1).
consteval int mem(int p) {
    const int word = floor_div(p, 4);
    return 4 * word + 3 - (p - 4 * word);
}
consteval int end_bit(int n16, int lane, int state) {
    return window_end(n16, 8 * lane + state);
}

// ---- 256-bit units
// ------------------------------------------------------------------------------- Unit c: ring
// lanes 4c..4c+3, that is columns c and c + 8. Half h of the register serves lanes a = 4c + 2h and
// b = a + 1. Two result vectors of eight pairs of states:
//   V0, half h:  (a 0,1) (b 0,1) (a 4,5) (b 4,5)       rows 2q, 2q+1
//   V1, half h:  (a 2,3) (b 2,3) (a 6,7) (b 6,7)       rows 2q+8, 2q+9
// Each pair is cut from a 32-bit container gathered by a byte shuffle:
//   low 16 bits = container >> right, high 16 bits = container << left.
struct YmmUnit {
    alignas(32) uint8_t shuffle[2][2][32];  // [vector][load]
    alignas(32) uint32_t right[2][8];       // [vector]
    alignas(32) uint32_t left[2][8];
    int32_t offset[2]
                  [2];  // [load][half]: first of 16 bytes, -4 = wrap: last word, then the first 3
};
struct YmmTable {
    YmmUnit unit[8];
    bool two_loads;    // lanes a and b do not fit 16 bytes together
    bool one_shuffle;  // four states fit one container: V0 and V1 share it
    bool uniform;      // shifts are the same everywhere: immediates
    bool valid;
};

struct Span {
    int offset;
    bool fits;
};

// Where to load 16 bytes that hold the windows of lanes first..last.
consteval Span span16(int n16, int first, int last) {
    const int tile_bytes = 2 * n16;
    const int lo = floor_div(floor_div(end_bit(n16, first, 0) - 16, 8), 4) * 4;
    const int hi = ceil_div(ceil_div(end_bit(n16, last, 7), 8), 4) * 4;
    Span s{lo, hi - lo <= 16};
    if (s.offset + 16 > tile_bytes) s.offset = tile_bytes - 16;
    return s;
}

consteval YmmTable make_ymm_table(int n16) {
    YmmTable t{};
    t.valid = true;
    t.two_loads = false;
    for (int c = 0; c < 8; ++c)
        for (int h = 0; h < 2; ++h)
            if (!span16(n16, 4 * c + 2 * h, 4 * c + 2 * h + 1).fits) t.two_loads = true;
    t.one_shuffle = true;
    for (int lane = 0; lane < 32; ++lane)
        for (int s = 0; s < 8; s += 4) {
            const int end = ceil_div(end_bit(n16, lane, s + 3), 8) * 8;
            if (end - end_bit(n16, lane, s) > 16) t.one_shuffle = false;
        }
    for (int c = 0; c < 8; ++c) {
        YmmUnit& u = t.unit[c];
        for (auto& vector : u.shuffle)
            for (auto& load : vector)
                for (uint8_t& b : load)
                    b = 0x80;  // 0x80: zero
        for (int h = 0; h < 2; ++h) {
            const int a = 4 * c + 2 * h;
            const Span both = span16(n16, a, a + 1);
            for (int load = 0; load < 2; ++load) {
                const Span own = span16(n16, a + load, a + load);
                u.offset[load][h] = t.two_loads ? own.offset : both.offset;
                if (t.two_loads && !own.fits) t.valid = false;
            }
            for (int v = 0; v < 2; ++v)
                for (int slot = 0; slot < 4; ++slot) {
                    const int lane = a + (slot & 1);
                    const int state = 2 * v + 4 * (slot >> 1);
                    const int last = t.one_shuffle ? (state | 3) : state + 1;
                    const int end_byte = ceil_div(end_bit(n16, lane, last), 8);
                    const int load = t.two_loads ? (slot & 1) : 0;
                    for (int k = 0; k < 4; ++k) {
                        const int at = mem(end_byte - 1 - k) - u.offset[load][h];
                        if (at >= 0 && at < 16)
                            u.shuffle[v][load][16 * h + 4 * slot + k] = static_cast<uint8_t>(at);
                    }
                    u.right[v][4 * h + slot] =
                        static_cast<uint32_t>(8 * end_byte - end_bit(n16, lane, state));
                    u.left[v][4 * h + slot] =
                        static_cast<uint32_t>(16 - (8 * end_byte - end_bit(n16, lane, state + 1)));
                    if (u.right[v][4 * h + slot] > 16 || u.left[v][4 * h + slot] > 16)
                        t.valid = false;
                }
        }
    }
    t.uniform = true;
    for (const YmmUnit& u : t.unit)
        for (int v = 0; v < 2; ++v)
            for (int i = 0; i < 8; ++i)
                if (u.right[v][i] != t.unit[0].right[v][0] || u.left[v][i] != t.unit[0].left[v][0])
                    t.uniform = false;
    return t;
}

template <int n16>
inline constexpr YmmTable kYmm = make_ymm_table(n16);

// ---- 512-bit groups (VBMI)
// ----------------------------------------------------------------------- Group g: ring lanes
// 8g..8g+7, one 64-bit element each, columns 2g, 2g+1 (and + 8). A byte permute gathers each lane's
// window, byte-aligned at its end; a multishift cuts four states out of it:
//   V0, lane q of a column: states 0,1 | 2,3      V1: states 4,5 | 6,7
struct ZmmGroup {
    alignas(64) uint8_t permute[2][64];  // [window]
    alignas(64) uint8_t shift[2][64];    // [vector]
    int32_t offset[2];                   // [window], -4 = wrap: last word, then the first 15
};
struct ZmmTable {
    ZmmGroup group[4];
    bool two_windows;  // eight states do not fit 64 bits: one window per vector
    bool valid;
};

consteval ZmmTable make_zmm_table(int n16) {
    ZmmTable t{};
    t.valid = true;
    const int tile_bytes = 2 * n16;
    const bool whole =
        tile_bytes <= 64;  // the tile is one (masked) load, the ring wraps in the index
    t.two_windows = false;
    for (int lane = 0; lane < 32; ++lane)
        if (ceil_div(end_bit(n16, lane, 7), 8) * 8 - (end_bit(n16, lane, 0) - 16) > 64)
            t.two_windows = true;
    for (int g = 0; g < 4; ++g) {
        ZmmGroup& z = t.group[g];
        for (int w = 0; w < 2; ++w) {
            const int first_state = t.two_windows && w == 1 ? 4 : 0;
            const int last_state = t.two_windows && w == 0 ? 3 : 7;
            const int lo = floor_div(floor_div(end_bit(n16, 8 * g, first_state) - 16, 8), 4) * 4;
            const int hi = ceil_div(ceil_div(end_bit(n16, 8 * g + 7, last_state), 8), 4) * 4;
            z.offset[w] = whole ? 0 : lo + 64 > tile_bytes ? tile_bytes - 64 : lo;
            if (!whole && hi - lo > 64) t.valid = false;
            for (int i = 0; i < 8; ++i) {
                const int end_byte = ceil_div(end_bit(n16, 8 * g + i, last_state), 8);
                for (int k = 0; k < 8; ++k) {
                    int at = mem(end_byte - 1 - k) - z.offset[w];
                    if (whole && at < 0) at += tile_bytes;
                    // Bytes before the window's first state may lie outside; they are not used.
                    z.permute[w][8 * i + k] = static_cast<uint8_t>(at & 63);
                }
                for (int s = first_state; s <= last_state; ++s) {
                    const int right = 8 * end_byte - end_bit(n16, 8 * g + i, s);
                    if (right + 16 > 64) t.valid = false;
                    z.shift[s / 4][8 * i + 2 * (s & 3)] = static_cast<uint8_t>(right);
                    z.shift[s / 4][8 * i + 2 * (s & 3) + 1] = static_cast<uint8_t>(right + 8);
                }
            }
        }
    }
    return t;
}

template <int n16>
inline constexpr ZmmTable kZmm = make_zmm_table(n16);

}  // namespace terrace::trellis
