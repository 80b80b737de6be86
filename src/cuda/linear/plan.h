// How a few-row product is cut over the device: pure host functions. A weight of in x out is cut
// into groups of 128 outputs and each group's inputs into parts; a block of eight warps takes one
// part of one group. The cut depends on the weight and the device only, never on rows, so that float
// sums are added in one order whatever shares the launch.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace terrace::cuda {

constexpr int kGemvWarps = 8;

struct GemvPlan {
    int32_t row_tiles = 0;  // in / 16
    int32_t groups = 0;     // out / 128
    int32_t parts = 1;
    int32_t blocks() const { return groups * parts; }
};

// in, out: padded sizes. max_part: inputs that one part may have.
GemvPlan plan_gemv(int32_t in, int32_t out, int32_t max_part, int sms);

// Ring slots per warp for parts of so many row tiles, `bytes` each: up to about `budget` per block.
int ring_slots(int row_tiles_per_warp, int bytes, int warps, size_t budget);

std::string to_string(const GemvPlan& plan);

}  // namespace terrace::cuda
