// The three computed codebooks of EXL3 (EXL3 format 2.4): a 16-bit trellis state becomes one fp16
// value by integer arithmetic and a single rounding. Any thread, host and device, compile time.
//
// Invariant: every sum below is exact in binary32 (operands are short dyadic fractions), so the
// only rounding is the final one and the bits do not depend on the compiler's contraction of a*b+c.
// Never reads a table; decode.h has one for hosts.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "base/half.h"

namespace terrace {

// three_inst: no marker tensor; mcg and mul1: selected by the presence of a marker of that name.
enum class Codebook : uint8_t { three_inst, mcg, mul1 };

inline constexpr uint32_t kThreeInstMultiplier = 0x05517c72u;
inline constexpr uint32_t kThreeInstAddend = 0x03d45aa4u;
inline constexpr uint32_t kMcgMultiplier = 0xcbac1fedu;
inline constexpr uint32_t kMul1Multiplier = 0x83dcd12du;

// Applied to both halves of the product at once: keeps sign, mantissa and the two low exponent
// bits, then centres the exponent, which leaves magnitudes in [0.125, 2).
inline constexpr uint32_t kCodeMask = 0x8fff8fffu;
inline constexpr uint32_t kCodeXor = 0x3b603b60u;

// mul1 value = round16(byte_sum * kMul1Scale + kMul1Offset), byte_sum in 0..1020. Kernels with
// integer activations use the same two numbers on whole sums and skip the rounding (EXL3
// format 2.9).
inline constexpr float kMul1Scale = 0.00676727294921875f;  // fp16 0x1eee = 887 / 131072
inline constexpr float kMul1Offset = -3.453125f;           // 1024 * scale + fp16 0xc931

// Sum of the four bytes of the product, 0..1020.
TERRACE_HD constexpr uint32_t mul1_byte_sum(uint32_t state) {
    const uint32_t x = state * kMul1Multiplier;
    // Pairs first: two 16-bit lanes of at most 510 each.
    const uint32_t pairs = (x & 0x00ff00ffu) + ((x >> 8) & 0x00ff00ffu);
    return (pairs & 0xffffu) + (pairs >> 16);
}

// fp16 bits of the value of a state (0..65535), as the reference kernels produce them.
TERRACE_HD constexpr uint16_t code_value_bits(Codebook codebook, uint32_t state) {
    if (codebook == Codebook::mul1)
        return f32_to_f16(static_cast<float>(mul1_byte_sum(state)) * kMul1Scale + kMul1Offset);
    const uint32_t product = codebook == Codebook::mcg
                                 ? state * kMcgMultiplier
                                 : state * kThreeInstMultiplier + kThreeInstAddend;
    const uint32_t x = (product & kCodeMask) ^ kCodeXor;
    return f32_to_f16(f16_to_f32(static_cast<uint16_t>(x & 0xffffu)) +
                      f16_to_f32(static_cast<uint16_t>(x >> 16)));
}

static_assert(code_value_bits(Codebook::three_inst, 0) == 0x3a25 &&
              code_value_bits(Codebook::three_inst, 0x1234) == 0xc066);
static_assert(code_value_bits(Codebook::mcg, 1) == 0x304e &&
              code_value_bits(Codebook::mcg, 0xffff) == 0x3acd);
static_assert(code_value_bits(Codebook::mul1, 0) == f32_to_f16(kMul1Offset) &&
              code_value_bits(Codebook::mul1, 0x8000) == 0xbaf2);

}  // namespace terrace
