// The paths of hyper_read and the scratch they share. Which rows take which path follows from the
// weights and the rows' kind alone.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_fp16.h>

#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

// Row strides of f16 matrices that the tiled products read.
constexpr int round_up8(int n) {
    return (n + 7) / 8 * 8;
}

// Scratch of one hyper_read; null addresses when only counted.
struct HyperScratch {
    float* n = nullptr;     // [R][S*H] normed streams; or as f16, in rows of round_up8(S*H)
    float* g = nullptr;     // [R][S*H] gates before the sigmoid
    float* mid = nullptr;   // [R][rank]
    __half* act = nullptr;  // [R][round_up8(rank)] activated
    float* inv = nullptr;   // [R][S] 1 / rms of the streams
    float* sums = nullptr;  // [R][S][rank + S] what each stream gives to down and inject
    size_t used = 0;
};
HyperScratch hyper_scratch(std::byte* base, int rows, int streams, int hidden, int rank);

// What add_y asks for, of rows [row0, row0 + n_rows), as a launch of its own.
Status hyper_add(const Launch& launch, const HyperReadArgs& args, int row0, int n_rows);

// Decoded rows of weights that the path in one or two launches serves; a matter of the weights alone.
bool hyper_decode_serves(const Launch& launch, const HyperReadArgs& args);
Status hyper_decode(const Launch& launch, const HyperReadArgs& args, const HyperScratch& scratch,
                    int row0, int n_rows);

// Prefilled rows of plain weights: f16 products on the tensor cores.
bool hyper_prefill_serves(const HyperReadArgs& args);
Status hyper_prefill(const Launch& launch, const HyperReadArgs& args, const HyperScratch& scratch,
                     int row0, int n_rows);

}  // namespace terrace::cuda
