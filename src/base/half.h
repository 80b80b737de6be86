// f16 and bf16 as storage types, with exact scalar conversions usable at compile time, on the host
// and on a device. Vector conversions live with the instruction sets (src/cpu). No arithmetic here:
// convert, compute in float, convert back once.
// SPDX-License-Identifier: MIT
#pragma once
#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define TERRACE_HD __host__ __device__
#else
#define TERRACE_HD
#endif

namespace terrace {

// IEEE binary16 -> binary32, exact, subnormals and NaN payloads included.
TERRACE_HD constexpr float f16_to_f32(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16;
    const uint32_t exp = (h >> 10) & 31u;
    const uint32_t man = h & 0x3ffu;
    if (exp == 31) return std::bit_cast<float>(sign | 0x7f800000u | (man << 13));
    if (exp != 0) return std::bit_cast<float>(sign | ((exp + 112) << 23) | (man << 13));
    // Subnormal: man * 2^-24. Exact in float.
    const float magnitude = static_cast<float>(man) * 5.9604644775390625e-8f;
    return sign ? -magnitude : magnitude;
}

// binary32 -> binary16, round to nearest even, overflow to infinity.
TERRACE_HD constexpr uint16_t f32_to_f16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t abs = u & 0x7fffffffu;
    if (abs > 0x7f800000u)  // NaN: keep the top payload bits, stay quiet
        return static_cast<uint16_t>(sign | 0x7e00u | ((abs >> 13) & 0x3ffu));
    if (abs >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
    if (abs < 0x38800000u) {  // below 2^-14: subnormal or zero, in units of 2^-24
        const uint32_t exp = abs >> 23;
        if (exp < 102) return static_cast<uint16_t>(sign);  // < 2^-25: rounds to zero
        const uint32_t man = (abs & 0x7fffffu) | 0x800000u;
        const uint32_t shift = 126 - exp;  // 14..24
        const uint32_t whole = man >> shift;
        const uint32_t rest = man & ((1u << shift) - 1u);
        const uint32_t half = 1u << (shift - 1);
        const uint32_t up = (rest > half || (rest == half && (whole & 1u))) ? 1u : 0u;
        return static_cast<uint16_t>(sign | (whole + up));
    }
    const uint32_t rounded = abs + 0xfffu + ((abs >> 13) & 1u) - 0x38000000u;
    return static_cast<uint16_t>(sign | (rounded >> 13));
}

TERRACE_HD constexpr float bf16_to_f32(uint16_t b) {
    return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

TERRACE_HD constexpr uint16_t f32_to_bf16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

struct f16 {
    uint16_t bits;
    TERRACE_HD constexpr float f32() const { return f16_to_f32(bits); }
    TERRACE_HD static constexpr f16 from(float v) { return f16{f32_to_f16(v)}; }
    friend constexpr bool operator==(f16, f16) = default;
};

struct bf16 {
    uint16_t bits;
    TERRACE_HD constexpr float f32() const { return bf16_to_f32(bits); }
    TERRACE_HD static constexpr bf16 from(float v) { return bf16{f32_to_bf16(v)}; }
    friend constexpr bool operator==(bf16, bf16) = default;
};

static_assert(sizeof(f16) == 2 && sizeof(bf16) == 2);
static_assert(f16::from(1.0f).bits == 0x3c00 && f16{0x0001}.f32() == 0x1p-24f);
static_assert(f16::from(65519.0f).bits == 0x7bff && f16::from(65520.0f).bits == 0x7c00);

}  // namespace terrace
