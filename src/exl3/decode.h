// Exact host decoder of EXL3 tiles and tensors: the oracle that every backend is tested against,
// and the path for jobs where speed does not matter. Any thread. Never writes to the tensor.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "base/half.h"
#include "exl3/codebook.h"
#include "exl3/tensor.h"

namespace terrace {

// fp16 bits of all 65536 states; made on first use (about 1 ms), lives for ever.
const uint16_t* code_table(Codebook codebook);

// out_bits is [16][16] row-major, row = input feature; fp16 bits. tile: n16 words, 2-byte aligned.
void decode_tile(const uint16_t* tile, int n16, Codebook codebook, uint16_t out_bits[256]);

// The inner weights Wq, [in][out], fp16 without any further rounding (EXL3 format 2.1).
void decode_inner(const Exl3Tensor& tensor, f16* out);

// W = diag(suh) Hd Wq Hd diag(svh), [in][out]; double inside, rounded once to float.
void dequantize(const Exl3Tensor& tensor, float* out);

// Legacy su / sv (EXL3 format 1.4): bit i % 16 of word i / 16, set = -1. n is a multiple of 16.
void unpack_signs(const uint16_t* packed, int n, f16* out);

}  // namespace terrace
