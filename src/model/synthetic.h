// A model of any configuration with random weights in memory, so that any size can be timed without
// a checkpoint. Random bits are valid trellises; scales are chosen so that activations keep their
// size. The text it makes is noise. Called once at start; uses the pool to fill memory.
// SPDX-License-Identifier: MIT
#pragma once
#include "base/worker_pool.h"
#include "model/placement.h"
#include "model/weights.h"

namespace terrace {

struct SyntheticOptions {
    // Bits per weight of routed experts and the index projection, 1..8; a fraction such as 4.05 is
    // rounded to the nearest width of the format.
    double bpw = 4;
    int32_t attention_bits = 6;  // attention, delta net, shared experts, head
    Codebook codebook = Codebook::mul1;
    uint64_t seed = 1;
};

// Made in `device`'s memory, and charged to `budget` unless that is the host's. out_of_memory when
// the weights do not fit the device, or `limit_bytes` of host memory (0: no limit): the error names
// need and have.
Result<ModelWeights> synthetic_weights(const ModelConfig& config, const SyntheticOptions& options,
                                       WorkerPool& pool, Device& device, Budget& budget,
                                       uint64_t limit_bytes);

// Bytes that synthetic_weights() will take.
uint64_t synthetic_bytes(const ModelConfig& config, const SyntheticOptions& options);

}  // namespace terrace
