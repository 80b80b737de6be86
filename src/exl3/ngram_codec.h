// Codec of n-gram embedding rows (Qwen4Exp 2.2, "n-gram table codec"): a row of d values is one
// fp16 scale and a circular stream of d * K bits, mul1 codes of 16-bit states. Unlike trellis tiles
// the stream is least significant bit first. Any thread.
//
//   value[i] = code(state i) * scale + head_bias[i]
// Sizes are a property of the table: check them once with check_ngram_shape; the row functions
// assume that they are legal and never check.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "base/error.h"
#include "base/half.h"
#include "exl3/viterbi.h"

namespace terrace {

// 16-bit words of a row: 1 + d * K / 16 (51 for d = 160, K = 5).
constexpr int ngram_row_words(int d, int bits) {
    return 1 + d * bits / 16;
}

// corrupt_data unless bits is 1..8, d is an even number of at least 32 and d * bits a multiple
// of 16.
Status check_ngram_shape(int d, int bits);

// State of element i: own bits lowest, those of elements i-1, i-2 .. (modulo d) above.
constexpr uint32_t ngram_state(const uint16_t* row, int d, int bits, int i) {
    uint32_t state = 0;
    for (int have = 0; have < 16; have += bits) {
        const int at = i * bits;
        uint32_t two = row[1 + at / 16];
        if (at % 16 + bits > 16) two |= static_cast<uint32_t>(row[2 + at / 16]) << 16;
        state |= ((two >> (at % 16)) & ((1u << bits) - 1u)) << have;
        i = i == 0 ? d - 1 : i - 1;
    }
    return state & 0xffffu;
}

// row: ngram_row_words words; head_bias: [d], of the hash head that owns the row; out: [d].
void decode_ngram_row(const uint16_t* row, int d, int bits, const f16* head_bias, float* out);

// Encodes rows of one shape; belongs to one thread at a time. About 1 ms per row of 160 at 5 bits.
class NgramEncoder {
  public:
    NgramEncoder(int d, int bits);  // a legal shape
    NgramEncoder(const NgramEncoder&) = delete;
    NgramEncoder& operator=(const NgramEncoder&) = delete;

    // values, head_bias: [d]; row: ngram_row_words words, all written. invalid_argument for a value
    // that is not finite or too large for an fp16 scale.
    Status encode(const float* values, const f16* head_bias, uint16_t* row);

  private:
    int d_;
    int bits_;
    SearchTables tables_;
    TileSearch search_;
};

// One row, when setting up an NgramEncoder does not matter.
Status encode_ngram_row(const float* values, int d, int bits, const f16* head_bias, uint16_t* row);

}  // namespace terrace
