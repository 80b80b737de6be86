// How a few-row product is cut over the device: pure host functions. A weight is cut into groups of
// 128 outputs and each group's inputs into parts; a block of eight warps takes one part of one group.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>

namespace terrace::cuda {

constexpr int kGemvWarps = 8;
constexpr size_t kPlaneBytes = 32;  // of an input row, per token and 16 inputs (exl3/input.cuh)

// Entries of a token's 128 columns in shared memory: 8 more shift the banks of the next token.
constexpr int kSumPitch = 136;
// Sums of `warps` warps for `tokens` tokens.
constexpr size_t warp_sum_bytes(size_t entry_bytes, int warps, int tokens) {
    return entry_bytes * static_cast<size_t>(warps * tokens * kSumPitch);
}
// Transforms and planes of an input part that a block makes itself.
constexpr size_t own_input_bytes(int row_tiles, int rows) {
    return static_cast<size_t>(rows) * (static_cast<size_t>(row_tiles / 8 + 2) * 512 +
                                        static_cast<size_t>(row_tiles) * kPlaneBytes);
}

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
// `most_cluster`: blocks of a cluster that the device allows, 1 where it has none.
GemvPlan plan_gemv(int32_t in, int32_t groups, int32_t max_part, int sms, int most_cluster,
                   Cut cut);

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

// Memory for the parts' sums of launches of up to `outputs` outputs.
constexpr size_t kPartSumBytes = 8 * 128;  // of a row's group and part
size_t part_sum_bytes(int sms, int most_cluster, int32_t outputs);
// Rows of a launch whose parts' sums fit into `bytes`, at most kDecodeRows; 0 when none does. A row's
// bits do not depend on it.
int rows_per_launch(const GemvPlan& plan, int32_t groups, size_t bytes);

// Ring slots per warp, `bytes` each, for `most` slots of work: up to about `budget` per block, but at
// least two.
int ring_slots(int most, int bytes, int warps, size_t budget);

// Shared memory of a device, which decides how much of a product's is for what: three blocks share a
// multiprocessor's. A slot of the widest weights (8 bits) is 32 KiB of a block, so that two of them and
// the sums fit into the 99 KiB of a block on 8.6, 8.9 and 12.0.
struct GemvRoom {
    size_t ring = 0;  // for rings
};
GemvRoom gemv_room(size_t smem_per_sm);

// Blocks of 128 inputs of a row of `in` (padded) whose transforms shared memory holds at a time.
int input_chunk(int32_t in, size_t smem_per_block);

// A block's dynamic shared memory: rings, later the warps' sums; the parts' sums.
struct GemvShared {
    int slots = 0;
    size_t gather_at = 0, bytes = 0;
};
// most: slots of the slowest warp. slot_bytes: of one. sum_bytes: of the warps' sums.
GemvShared gemv_shared(const GemvRoom& room, int most, int slot_bytes, size_t sum_bytes, int parts,
                       int rows);

}  // namespace terrace::cuda
