// Values that blocks of one launch hand each other while all of them run. A word is value and flag in
// one, 0 meaning "not there yet", so neither fences nor counters are needed: whoever waits for it
// looks until it is there. Waiting keeps a place on the device: either few blocks wait, each behind
// its own posts, or the whole grid fits on the device at once.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace terrace::cuda {

__device__ __forceinline__ void post(uint32_t* box, uint32_t word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(box), "r"(word) : "memory");
}
__device__ __forceinline__ uint32_t peek(const uint32_t* box) {
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(box) : "memory");
    return word;
}

// Floats as words that are not 0: zero as its negative.
__device__ __forceinline__ void post_float(uint32_t* box, float v) {
    const uint32_t bits = __float_as_uint(v);
    post(box, bits == 0 ? 0x80000000u : bits);
}
__device__ __forceinline__ float wait_float(const uint32_t* box) {
    uint32_t word;
    do
        word = peek(box);
    while (word == 0);
    return __uint_as_float(word);
}
// Four neighbours, at a multiple of 16 bytes: what is there of them.
__device__ __forceinline__ float4 peek_float4(const uint32_t* box) {
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(box)
                 : "memory");
    return v;
}
// All of them; `v`: what has been seen.
__device__ __forceinline__ float4 wait_float4(const uint32_t* box, float4 v) {
    const auto missing = [](float f) { return __float_as_uint(f) == 0; };
    while (missing(v.x) || missing(v.y) || missing(v.z) || missing(v.w))
        v = peek_float4(box);
    return v;
}

}  // namespace terrace::cuda
