// SPDX-License-Identifier: MIT
#include "cuda/linear/plan.h"

#include <algorithm>

#include "ops/args.h"

namespace terrace::cuda {
namespace {

constexpr int32_t up(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

// Measured on an H200, in the time that a multiprocessor with three blocks takes for one row tile of
// 128 outputs (106 cycles): what starting blocks, waiting for the input and adding parts cost once per
// wave of blocks, and how much longer row tiles take with fewer blocks to switch between, in percent.
constexpr int32_t kWaveOverhead = 57;
constexpr int32_t kPercent[] = {200, 118, 100};
constexpr int32_t kResident = 3;

int64_t cost_of(int32_t blocks, int32_t row_tiles, int sms) {
    const int32_t per_sm = up(blocks, sms);
    const int32_t rows = up(row_tiles, kGemvWarps) * kGemvWarps;  // the slowest warp's share
    return int64_t{100} * kWaveOverhead * up(blocks, kResident * sms) +
           int64_t{per_sm} * rows * kPercent[std::min(per_sm, kResident) - 1];
}

}  // namespace

GemvPlan plan_gemv(int32_t in, int32_t groups, int32_t max_part, int sms, int most_cluster,
                   Cut cut) {
    const int32_t row_tiles = in / 16;
    // A part is a whole number of row tiles, so its size rounds up.
    int32_t least = 1;
    while (least <= kMaxParts && up(row_tiles, least) * 16 > max_part)
        ++least;
    if (least > kMaxParts) return {};
    const int32_t most = std::max(least, std::min(kMaxParts, row_tiles / kGemvWarps));
    GemvPlan plan;
    plan.parts = std::max(least, std::min(most, 4));
    if (cut == Cut::by_device) {
        int64_t best = INT64_MAX;
        for (int32_t parts = least; parts <= most; ++parts) {
            if (parts > least && groups * parts > kMostPartBlocks * sms) break;
            const int64_t cost = cost_of(groups * parts, up(row_tiles, parts), sms);
            if (cost < best) {
                best = cost;
                plan.parts = parts;
            }
        }
    }
    const int32_t blocks = groups * plan.parts;
    if (plan.parts > 1 && plan.parts <= most_cluster &&
        (blocks <= 2 * sms || blocks > kMostPartBlocks * sms))
        plan.meet = Meet::cluster;
    return plan;
}

RowPlan plan_row(int32_t blocks, int32_t groups, int sms) {
    // Of a part: an exact sum may have 125, but planes take 1 KiB each beside the ring, of which
    // experts keep two.
    constexpr int32_t kMostBlocks = 64;
    // A cluster lies within one of the device's processing clusters, of 16 multiprocessors each.
    constexpr int32_t kNeighbours = 16;
    RowPlan plan;
    int32_t best = INT32_MAX;
    for (int32_t parts = 1; parts <= std::min(kMaxParts, blocks); ++parts) {
        const int32_t units = up(blocks, parts);
        if (units > kMostBlocks) continue;
        const int32_t clusters = std::max(1, sms / kNeighbours) * (kNeighbours / parts);
        const int32_t layers = up(groups, clusters);  // blocks of the busiest multiprocessor
        // Of equals the one with smaller blocks: the first of them fits beside other kernels.
        if (layers > kRowResident || layers * units > best) continue;
        best = layers * units;
        plan.parts = parts;
        plan.ring_bytes = layers == 1 ? 120 * 1024 : 84 * 1024;
    }
    return plan;
}

size_t part_sum_bytes(int sms, int most_cluster, int32_t outputs) {
    const int64_t usual = int64_t{kDecodeRows} * kMostPartBlocks * sms;
    // Without clusters the parts of the widest product meet in memory too: one row at a time, then.
    const int64_t widest = int64_t{kMaxParts} * up(outputs, 128);
    return kPartSumBytes *
           static_cast<size_t>(most_cluster >= kMaxParts ? usual : std::max(usual, widest));
}

int rows_per_launch(const GemvPlan& plan, int32_t groups, size_t bytes) {
    if (plan.parts <= 1 || plan.meet == Meet::cluster) return kDecodeRows;
    const size_t row = kPartSumBytes * static_cast<size_t>(groups * plan.parts);
    return static_cast<int>(std::min(bytes / row, size_t{kDecodeRows}));
}

int ring_slots(int most, int bytes, int warps, size_t budget) {
    const int fit =
        static_cast<int>(budget / (static_cast<size_t>(bytes) * static_cast<size_t>(warps)));
    return std::max(2, std::min({most, fit, 16}));
}

GemvRoom gemv_room(size_t smem_per_sm) {
    return {std::min(size_t{64} * 1024, smem_per_sm / 3 - 2048)};
}

int input_chunk(int32_t in, size_t smem_per_block) {
    return std::min(in / 128, static_cast<int>((smem_per_block - 2048) / 512));
}

GemvShared gemv_shared(const GemvRoom& room, int most, int slot_bytes, size_t sum_bytes, int parts,
                       int rows) {
    GemvShared s;
    s.slots = ring_slots(most, slot_bytes, kGemvWarps, room.ring);
    const size_t ring = static_cast<size_t>(s.slots) * static_cast<size_t>(slot_bytes) * kGemvWarps;
    s.gather_at = (std::max(ring + 16, sum_bytes) + 127) / 128 * 128;
    s.bytes = s.gather_at + size_t{1024} * static_cast<size_t>(parts * up(rows, parts));
    return s;
}

}  // namespace terrace::cuda
