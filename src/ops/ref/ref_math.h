// Shared pieces of the scalar reference: element access of plain tensors, norms and rope in double.
// Used by src/ops/ref and by tests only.
// SPDX-License-Identifier: MIT
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/args.h"

namespace terrace::ref {

inline double at(const PlainTensor& t, int64_t i) {
    TERRACE_DCHECK(i >= 0 && i < t.size);
    if (t.dtype == DType::f32) {
        float v;
        std::memcpy(&v, static_cast<const char*>(t.data) + 4 * i, 4);
        return static_cast<double>(v);
    }
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(t.data) + 2 * i, 2);
    return static_cast<double>(t.dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}

inline double sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}
inline double silu(double x) {
    return x * sigmoid(x);
}
inline double softplus(double x) {
    return x > 30 ? x : std::log1p(std::exp(x));
}

// y = x * rsqrt(mean(x^2) + eps) * (1 + w[w0 + i]).
inline void zero_centred_norm(const double* x, int n, const PlainTensor& w, int64_t w0, double eps,
                              double* y) {
    double sum = 0;
    for (int i = 0; i < n; ++i)
        sum += x[i] * x[i];
    const double inv = 1.0 / std::sqrt(sum / n + eps);
    for (int i = 0; i < n; ++i)
        y[i] = x[i] * inv * (1.0 + at(w, w0 + i));
}

inline void rope(double* x, const Rope& r, int pos) {
    const int half = r.dims / 2;
    for (int i = 0; i < half; ++i) {
        const double angle = pos * std::pow(static_cast<double>(r.theta), -2.0 * i / r.dims);
        const double c = std::cos(angle), s = std::sin(angle);
        const double a = x[i], b = x[i + half];
        x[i] = a * c - b * s;
        x[i + half] = b * c + a * s;
    }
}

inline double load_plane(const std::byte* p, PlaneType t, int64_t i) {
    if (t == PlaneType::f32) {
        float v;
        std::memcpy(&v, p + 4 * i, 4);
        return static_cast<double>(v);
    }
    uint16_t bits;
    std::memcpy(&bits, p + 2 * i, 2);
    return static_cast<double>(f16_to_f32(bits));
}

inline void store_plane(std::byte* p, PlaneType t, int64_t i, double value) {
    if (t == PlaneType::f32) {
        const float v = static_cast<float>(value);
        std::memcpy(p + 4 * i, &v, 4);
        return;
    }
    const uint16_t bits = f32_to_f16(static_cast<float>(value));
    std::memcpy(p + 2 * i, &bits, 2);
}

// y = W x for one row.
void linear_row(const LinearWeight& w, const double* x, double* y);
// y = down(silu(gate x) * up x) for one row.
void expert_row(const ExpertWeights& w, const double* x, int hidden, int width, double* y);

inline std::vector<double> widen(const float* x, int64_t n) {
    return {x, x + n};
}

}  // namespace terrace::ref
