// Data-free EXL3 encoder for one linear layer: random signs, regularisation, global scale search
// and a tail-biting Viterbi search per tile (EXL3 format 5.3, 5.5, 5.7). For test checkpoints,
// tensors without calibration data and as the base of a calibrated quantiser.
//
// Called by one thread, which lends its worker pool. Invariant: the result depends on weights and
// options only, never on the number of workers. Never looks at activations.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/worker_pool.h"
#include "exl3/tensor.h"

namespace terrace {

struct EncodeOptions {
    int n16 = 64;  // 16 * bits per weight; 8 more for half-integer bits, mul1 only
    Codebook codebook = Codebook::mul1;
    uint64_t seed = 0;  // of the signs; suh's depend on nothing else, so shared inputs share them
    float g_scale = 0.0f;  // global scale; 0 = search on a sample of tiles
};

struct EncodedLinear {
    int32_t in = 0;
    int32_t out = 0;
    int32_t n16 = 0;
    Codebook codebook = Codebook::mul1;
    float g_scale = 0.0f;             // the scale used
    std::vector<uint16_t> trellis{};  // [in/16][out/16][n16]
    std::vector<f16> suh{};           // [in], zero for a dead row
    std::vector<f16> svh{};           // [out], zero for a dead column

    Exl3Tensor view() const {
        return Exl3Tensor{in, out, n16, codebook, trellis.data(), suh.data(), svh.data()};
    }
};

// w: [in][out], in and out positive multiples of 128 (pad with zeros). invalid_argument for other
// sizes, an illegal n16, a value that is not finite, or weights that fp16 scales cannot hold.
// Takes the time of TileSearch::encode for every tile of 256 weights and, to search the scale, for
// about 370 more.
Result<EncodedLinear> encode_linear(const float* w, int in, int out, const EncodeOptions& options,
                                    WorkerPool& pool);

}  // namespace terrace
