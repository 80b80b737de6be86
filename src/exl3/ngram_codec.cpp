// SPDX-License-Identifier: MIT
#include "exl3/ngram_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "exl3/decode.h"

namespace terrace {
namespace {

// RMS of a unit Gaussian's codes at which mul1 is best, by bits (EXL3 format 5.6).
constexpr float kBestRms[9] = {0, 1.20f, 0.994f, 0.939f, 0.905f, 0.865f, 0.826f, 0.769f, 0.717f};

}  // namespace

Status check_ngram_shape(int d, int bits) {
    if (bits < 1 || bits > 8 || d < 32 || d % 2 != 0 || d * bits % 16 != 0)
        return Error{
            Code::corrupt_data,
            fmt::format("n-gram table: rows of {} values at {} bits; need 1..8 bits, an even "
                        "number of at least 32 values, and whole 16-bit words",
                        d, bits)};
    return {};
}

void decode_ngram_row(const uint16_t* row, int d, int bits, const f16* head_bias, float* out) {
    const uint16_t* const code = code_table(Codebook::mul1);
    const float scale = f16_to_f32(row[0]);
    const uint32_t own_mask = (1u << bits) - 1u;
    uint32_t state = ngram_state(row, d, bits, d - 1);
    uint32_t window = 0;  // unread bits, the next ones lowest
    int have = 0;
    const uint16_t* next = row + 1;
    for (int i = 0; i < d; ++i) {
        if (have < bits) {
            window |= static_cast<uint32_t>(*next++) << have;
            have += 16;
        }
        state = (state << bits | (window & own_mask)) & 0xffffu;
        window >>= bits;
        have -= bits;
        // The product of two halves is exact in float: one rounding, in the sum.
        out[i] = f16_to_f32(code[state]) * scale + head_bias[i].f32();
    }
}

NgramEncoder::NgramEncoder(int d, int bits)
    : d_(d), bits_(bits), tables_(16 * bits, Codebook::mul1), search_(tables_, d) {}

Status NgramEncoder::encode(const float* values, const f16* head_bias, uint16_t* row) {
    const auto n = static_cast<size_t>(d_);
    std::vector<float> target(n);
    double power = 0;
    for (size_t i = 0; i < n; ++i) {
        target[i] = values[i] - head_bias[i].f32();
        if (!std::isfinite(target[i]))
            return Error{
                Code::invalid_argument,
                fmt::format("n-gram encoder: value {} minus its bias is {}; every value must "
                            "be finite",
                            i, target[i])};
        power += static_cast<double>(target[i]) * static_cast<double>(target[i]);
    }
    const f16 scale = f16::from(static_cast<float>(std::sqrt(power / d_)) / kBestRms[bits_]);
    if (!std::isfinite(scale.f32()))
        return Error{
            Code::invalid_argument,
            fmt::format("n-gram encoder: row RMS {:.3g} is too large for an fp16 scale, which "
                        "ends at 65504",
                        std::sqrt(power / d_))};
    std::fill(row, row + ngram_row_words(d_, bits_), uint16_t{0});
    row[0] = scale.bits;
    if (scale.f32() == 0.0f) return {};  // nothing but the bias
    for (float& v : target)
        v /= scale.f32();
    std::vector<uint16_t> states(n);
    search_.encode(target.data(), states.data());
    for (int i = 0; i < d_; ++i)
        for (int b = 0; b < bits_; ++b) {
            const int at = i * bits_ + b;
            if (states[static_cast<size_t>(i)] >> b & 1)
                row[1 + at / 16] = static_cast<uint16_t>(row[1 + at / 16] | 1u << (at % 16));
        }
    return {};
}

Status encode_ngram_row(const float* values, int d, int bits, const f16* head_bias, uint16_t* row) {
    return NgramEncoder(d, bits).encode(values, head_bias, row);
}

}  // namespace terrace
