// Weights as the operations see them: views, never owners. A LinearWeight is either a plain matrix
// or an EXL3 one; backends switch on `kind` once per call.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

#include "base/half.h"
#include "base/types.h"
#include "exl3/tensor.h"

namespace terrace {

// Elements of f32, f16 or bf16. In host memory the address may be only 2-byte aligned (files are
// packed); in the memory of a device with its own space every tensor, trellis and scale vector
// starts at a multiple of kWeightAlign, where model/placement put it.
inline constexpr size_t kWeightAlign = 256;

struct PlainTensor {
    const void* data = nullptr;
    DType dtype = DType::f32;
    int64_t size = 0;  // elements
};

enum class LinearKind : uint8_t { none, plain, exl3 };

// y[out] = W x[in]. For exl3 the stored sizes may exceed in/out by padding to multiples of 128:
// inputs are extended with zeros, outputs beyond `out` are dropped.
struct LinearWeight {
    LinearKind kind = LinearKind::none;
    int32_t in = 0;     // features the caller has
    int32_t out = 0;    // features the caller wants
    PlainTensor plain;  // [out][in], rows of y's features
    Exl3Tensor exl3;
};

// Gated hyper-connection of one site (model spec 3.3). S streams of H, rank r.
struct HyperWeights {
    PlainTensor norm;     // [S*H], zero-centred, grouped by stream
    LinearWeight down;    // [r][S*H]
    LinearWeight up;      // [S*H][r]
    LinearWeight inject;  // [S][S*H]; kind none at the final mixer
};

// One routed expert or the shared one: y = down( silu(gate x) * up x ).
struct ExpertWeights {
    LinearWeight gate;  // [I][H]
    LinearWeight up;    // [I][H]
    LinearWeight down;  // [H][I]
};

}  // namespace terrace
