// Shared memory of the few-row expert kernels: a pure host function of the layer's sizes and the
// device's.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/linear/plan.h"

namespace terrace::cuda {

struct MoeShape {
    int rows = 0, pairs = 0;       // of a launch
    int row_tiles = 0;             // of the padded hidden state: 16 inputs each
    int up_groups = 0;             // of 128 columns of the widest expert
    int up_parts = 0;              // of the first product's inputs
    int teams = 0;                 // of warps of a block of the second product
    int up_n16 = 0, down_n16 = 0;  // largest
};

struct MoeShared {
    int up_slots = 0, down_slots = 0;  // of each warp's ring
    size_t up_bytes = 0, down_bytes = 0;
    size_t planes_at = 0;  // of the second product's inputs
};

MoeShared moe_shared(const MoeShape& shape, const GemvRoom& room);

// Static memory of these kernels, at most.
constexpr size_t kMoeStaticBytes = 2048;
constexpr bool moe_fits(const MoeShared& s, size_t smem_per_block) {
    return (s.up_bytes > s.down_bytes ? s.up_bytes : s.down_bytes) + kMoeStaticBytes <=
           smem_per_block;
}

}  // namespace terrace::cuda
