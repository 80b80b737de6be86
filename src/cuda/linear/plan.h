// How a few-row product is cut over the device: pure host functions. A weight is cut into groups of
// 128 outputs and each group's inputs into parts; a block of eight warps takes one part of one group.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>

namespace terrace::cuda {

constexpr int kGemvWarps = 8;
constexpr int kMaxParts = 8;  // blocks of a cluster that every device allows

// Where the parts of a group are added: in the shared memory of a cluster, which is quick, or through
// global memory by the last block to arrive, which lets blocks start wherever there is room. Measured
// on an H200: with up to two blocks per multiprocessor clusters win (6144 x 2560 16.0 against 18.4
// us), with more they lose (2560 x 12288 19.2 against 16.4 us).
enum class Meet : uint8_t { cluster, memory };

// by_device: the parts that leave the busiest multiprocessor the least work. by_inputs: a number that
// follows from `in` alone.
enum class Cut : uint8_t { by_device, by_inputs };

// Blocks per multiprocessor of a product that is cut into parts; bounds the memory for their sums.
constexpr int kMostPartBlocks = 6;

struct GemvPlan {
    int32_t parts = 0;
    Meet meet = Meet::memory;
};

// For `groups` groups of `in` inputs (padded), none of whose parts may have more than `max_part`
// inputs. 0 parts when kMaxParts are too few.
GemvPlan plan_gemv(int32_t in, int32_t groups, int32_t max_part, int sms, Cut cut);

// A product of one row, cut into `parts` of its Hadamard blocks (128 inputs), which are a cluster; all
// blocks are resident at once, kRowResident to a multiprocessor. ring_bytes: of shared memory that a
// block may keep weights in. 0 parts when there is no such cut into kMaxParts: wide weights take their
// time from memory, and are better off with many small blocks.
constexpr int kRowResident = 2;
struct RowPlan {
    int32_t parts = 0;
    int32_t ring_bytes = 0;
};
RowPlan plan_row(int32_t blocks, int32_t groups, int sms);

// Ring slots per warp, `bytes` each, for `most` slots of work: up to about `budget` per block.
int ring_slots(int most, int bytes, int warps, size_t budget);

}  // namespace terrace::cuda
