// See simd_probe.h. Included after a simd_*.h, inside a file compiled for that instruction set.
// SPDX-License-Identifier: MIT
#pragma once
#include "cpu/simd_probe.h"

namespace terrace::TERRACE_ISA {

constexpr test::SimdProbe make_probe() {
    return {
        .exp = [](const float* x, float* y) { store(y, exp(load(x))); },
        .sigmoid = [](const float* x, float* y) { store(y, sigmoid(load(x))); },
        .silu = [](const float* x, float* y) { store(y, silu(load(x))); },
        .rsqrt = [](const float* x, float* y) { store(y, rsqrt(load(x))); },
        .round_even = [](const float* x, float* y) { store(y, round_even(load(x))); },
        .fwht =
            [](float* x) {
                V16 v[8];
                for (int i = 0; i < 8; ++i)
                    v[i] = load(x + 16 * i);
                fwht128(v);
                for (int i = 0; i < 8; ++i)
                    store(x + 16 * i, v[i]);
            },
        .reduce_add = [](const float* x) { return reduce_add(load(x)); },
        .reduce_max = [](const float* x) { return reduce_max(load(x)); },
        .from_f16 = [](const uint16_t* x, float* y) { store(y, load_f16(x)); },
        .to_f16 = [](const float* x, uint16_t* y) { store_f16(y, load(x)); },
        .from_bf16 = [](const uint16_t* x, float* y) { store(y, load_bf16(x)); },
        .copy_n = [](const float* x, float* y, int n) { store_n(y, load_n(x, n), n); },
        .copy_f16_n = [](const uint16_t* x, uint16_t* y,
                         int n) { store_f16_n(y, load_f16_n(x, n), n); },
        .bf16_n = [](const uint16_t* x, float* y, int n) { store(y, load_bf16_n(x, n)); },
        .swaps =
            [](const float* x, float* y) {
                store(y, swap1(load(x)));
                store(y + 16, swap2(load(x)));
                store(y + 32, swap4(load(x)));
                store(y + 48, swap8(load(x)));
            },
        .select_lt =
            [](const float* x, const float* y, float* smaller, uint32_t* bits) {
                const M16 m = lt(load(x), load(y));
                store(smaller, select(m, load(x), load(y)));
                *bits = mask_bits(m);
            },
        .broadcast4 = [](const float* x, float* y) { store(y, broadcast4(x)); },
        .to_i16 = [](const float* x, int16_t* y) { store_i16(y, to_int(load(x))); },
    };
}

}  // namespace terrace::TERRACE_ISA
