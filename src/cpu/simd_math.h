// Functions over V16 that are written once: signs, exp and its relatives, the 128-point Hadamard
// transform. Included at the end of simd_avx2.h and simd_avx512.h; the bits are equal on both
// because only their primitives are used, in a fixed order.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/simd_common.h"

namespace terrace::TERRACE_ISA {

TERRACE_INLINE V16 operator+(V16 x, V16 y) {
    return add(x, y);
}
TERRACE_INLINE V16 operator-(V16 x, V16 y) {
    return sub(x, y);
}
TERRACE_INLINE V16 operator*(V16 x, V16 y) {
    return mul(x, y);
}
TERRACE_INLINE V16 operator/(V16 x, V16 y) {
    return div(x, y);
}

TERRACE_INLINE V16 abs(V16 x) {
    return bit_and(x, as_float(set1_i(0x7fffffff)));
}
TERRACE_INLINE V16 neg(V16 x) {
    return bit_xor(x, as_float(set1_i(INT32_MIN)));
}

// 1/sqrt(x) from a correctly rounded square root and a correctly rounded division.
TERRACE_INLINE V16 rsqrt(V16 x) {
    return set1(1.0f) / sqrt(x);
}

// 2^n for an integral n in [-126, 127].
TERRACE_INLINE V16 pow2(V16 n) {
    return as_float(shl<23>(add(to_int(n), set1_i(127))));
}

// e^x. Error at most 1.5 units in the last place where the result is a normal number; underflows
// through the subnormals to zero, overflows to infinity, NaN stays NaN. exp(0) is exactly 1.
TERRACE_INLINE V16 exp(V16 x) {
    // Beyond these the result is 0 or infinity; the clamp keeps n inside what pow2 can scale by
    // twice. x stands second so that a NaN survives min and max.
    x = min(set1(89.0f), max(set1(-104.0f), x));
    const V16 n = round_even(x * set1(1.44269504f));
    // ln 2 in two parts; n times the first is exact (n has 8 bits, the constant 15).
    V16 r = fnma(n, set1(0.693145751953125f), x);
    r = fnma(n, set1(1.42860682030941723212e-6f), r);
    // Taylor to degree 7 on |r| <= 0.3466: truncation below 6e-9.
    V16 p = set1(1.0f / 5040.0f);
    p = fma(p, r, set1(1.0f / 720.0f));
    p = fma(p, r, set1(1.0f / 120.0f));
    p = fma(p, r, set1(1.0f / 24.0f));
    p = fma(p, r, set1(1.0f / 6.0f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    // Two factors, since 2^n itself may be subnormal or overflow where the product does not.
    const V16 half = round_even(n * set1(0.5f));
    return p * pow2(half) * pow2(n - half);
}

// 1 / (1 + e^-x). Relative error at most 3 units in the last place for x > -87.
TERRACE_INLINE V16 sigmoid(V16 x) {
    return set1(1.0f) / (set1(1.0f) + exp(neg(x)));
}

// x * sigmoid(x).
TERRACE_INLINE V16 silu(V16 x) {
    return x / (set1(1.0f) + exp(neg(x)));
}

// (a, b) -> (a + b, a - b) inside a vector; `sign` flips the element that is subtracted.
template <int kFrom>
TERRACE_INLINE V16 alternating_signs() {
    alignas(64) int32_t bits[16];
    for (int i = 0; i < 16; ++i)
        bits[i] = (i & kFrom) ? INT32_MIN : 0;
    return as_float(load_i(bits));
}

// Unnormalised 128-point Walsh-Hadamard transform in natural order, strides 1, 2, 4 .. 64
// ascending: the order that fixes the bits (EXL3 format 2.6).
TERRACE_INLINE void fwht128(V16 (&v)[8]) {
    const V16 s1 = alternating_signs<1>();
    const V16 s2 = alternating_signs<2>();
    const V16 s4 = alternating_signs<4>();
    const V16 s8 = alternating_signs<8>();
    for (V16& x : v) {
        x = swap1(x) + bit_xor(x, s1);
        x = swap2(x) + bit_xor(x, s2);
        x = swap4(x) + bit_xor(x, s4);
        x = swap8(x) + bit_xor(x, s8);
    }
    for (int stride = 1; stride < 8; stride *= 2) {
        for (int i = 0; i < 8; ++i) {
            if (i & stride) continue;
            const V16 a = v[i];
            const V16 b = v[i + stride];
            v[i] = a + b;
            v[i + stride] = a - b;
        }
    }
}

}  // namespace terrace::TERRACE_ISA
