// --stats and --stats-json: what the K/V mirror did, per sparse-attention layer and in total. Read
// once, at the end of a command; whatever goes wrong here is a warning and never the command's
// failure. Engine thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "common.h"

namespace terrace {

struct LayerCounters {
    int32_t layer = 0;  // of the model
    MirrorCounters counters;
};
// A table; `block_bytes` of K and V of one block.
std::string print_mirror_stats(const std::vector<LayerCounters>& layers, uint64_t block_bytes);
std::string mirror_stats_json(const std::vector<LayerCounters>& layers, uint64_t block_bytes);

// To standard error and to the file, as asked for.
void report_stats(const Runtime& runtime, const CommonOptions& options);

}  // namespace terrace
