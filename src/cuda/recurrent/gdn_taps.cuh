// Taps of a channel's convolution, for kernels of four taps.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/util/common.cuh"

namespace terrace::cuda {

constexpr int kTaps = 3;  // earlier rows that a row's convolution reads

// In one access: a channel's taps are neighbours, and start at a multiple of their size.
__device__ __forceinline__ void load_taps(const PlainTensor& conv, int channel,
                                          float (&w)[kTaps + 1]) {
    if (conv.dtype == DType::f32) {
        const float4 v = static_cast<const float4*>(conv.data)[channel];
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        return;
    }
    const ushort4 v = static_cast<const ushort4*>(conv.data)[channel];
    const auto widen = [&](uint16_t bits) {
        return conv.dtype == DType::bf16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16)
                                         : __half2float(__ushort_as_half(bits));
    };
    w[0] = widen(v.x), w[1] = widen(v.y), w[2] = widen(v.z), w[3] = widen(v.w);
}

}  // namespace terrace::cuda
