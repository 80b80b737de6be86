// V16 functions as plain functions on arrays, so that a test compiled for any machine can call
// them. The two .cpp files beside define one table each, from one body (simd_probe_body.h).
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace terrace::test {

struct SimdProbe {
    // 16 in, 16 out
    void (*exp)(const float*, float*);
    void (*sigmoid)(const float*, float*);
    void (*silu)(const float*, float*);
    void (*rsqrt)(const float*, float*);
    void (*round_even)(const float*, float*);
    void (*fwht)(float* x128);
    float (*reduce_add)(const float*);
    float (*reduce_max)(const float*);
    void (*from_f16)(const uint16_t*, float*);
    void (*to_f16)(const float*, uint16_t*);
    void (*from_bf16)(const uint16_t*, float*);
    void (*copy_n)(const float*, float*, int);
    void (*copy_f16_n)(const uint16_t*, uint16_t*, int);
    void (*bf16_n)(const uint16_t*, float*, int);
    void (*swaps)(const float*, float* out4x16);
    void (*select_lt)(const float* x, const float* y, float* smaller, uint32_t* bits);
    void (*broadcast4)(const float*, float*);
    void (*to_i16)(const float*, int16_t*);
};

extern const SimdProbe kAvx2Probe;
extern const SimdProbe kAvx512Probe;

}  // namespace terrace::test
