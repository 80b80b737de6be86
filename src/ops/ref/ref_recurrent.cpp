// Reference: gated delta net (always the recurrent form) and the n-gram injection.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "ops/ref/ref_math.h"
#include "ops/ref/ref_ops.h"

namespace terrace::ref {

Status ReferenceOps::gdn(Stream&, const GdnArgs& a) {
    const int kw = a.k_heads * a.k_dim, vw = a.v_heads * a.v_dim, channels = 2 * kw + vw;
    const int taps = a.kernel - 1, group = a.v_heads / a.k_heads;
    std::vector<double> y(channels), err(a.v_dim), o(a.v_dim);
    for (int si = 0; si < a.step.n_seqs; ++si) {
        const SeqRows& seq = a.step.seqs.device_pointer()[si];
        float* state = a.state.device_pointer() + int64_t{seq.slot} * a.v_heads * a.k_dim * a.v_dim;
        float* past = a.conv_state.device_pointer() + int64_t{seq.slot} * taps * channels;
        for (int r = seq.row0; r < seq.row0 + seq.n_rows; ++r) {
            const float* u = a.qkv.device_pointer() + int64_t{r} * channels;
            for (int c = 0; c < channels; ++c) {
                double sum = static_cast<double>(u[c]) * at(a.conv, int64_t{c} * a.kernel + taps);
                for (int j = 0; j < taps; ++j)
                    sum += static_cast<double>(past[j * channels + c]) *
                           at(a.conv, int64_t{c} * a.kernel + j);
                y[c] = silu(sum);
            }
            std::copy(past + channels, past + int64_t{taps} * channels, past);
            std::copy_n(u, channels, past + int64_t{taps - 1} * channels);
            for (int h = 0; h < a.k_heads; ++h)
                for (int part = 0; part < 2; ++part) {  // q, then k
                    double* x = &y[part * kw + h * a.k_dim];
                    double sum = 0;
                    for (int i = 0; i < a.k_dim; ++i)
                        sum += x[i] * x[i];
                    const double inv = 1.0 / std::sqrt(sum + static_cast<double>(a.eps)) /
                                       (part == 0 ? std::sqrt(a.k_dim) : 1.0);
                    for (int i = 0; i < a.k_dim; ++i)
                        x[i] *= inv;
                }
            for (int h = 0; h < a.v_heads; ++h) {
                const double* q = &y[(h / group) * a.k_dim];
                const double* k = &y[kw + (h / group) * a.k_dim];
                const double* v = &y[2 * kw + h * a.v_dim];
                float* s = state + int64_t{h} * a.k_dim * a.v_dim;
                const int64_t rh = int64_t{r} * a.v_heads + h;
                const double beta = sigmoid(static_cast<double>(a.b.device_pointer()[rh]));
                const double decay = std::exp(
                    -std::exp(at(a.a_log, h)) *
                    softplus(static_cast<double>(a.a.device_pointer()[rh]) + at(a.dt_bias, h)));
                for (int j = 0; j < a.v_dim; ++j) {
                    double dot = 0;
                    for (int i = 0; i < a.k_dim; ++i)
                        dot += k[i] * static_cast<double>(s[i * a.v_dim + j]) * decay;
                    err[j] = beta * (v[j] - dot);
                    double out = 0;
                    for (int i = 0; i < a.k_dim; ++i) {
                        const double next =
                            static_cast<double>(s[i * a.v_dim + j]) * decay + k[i] * err[j];
                        s[i * a.v_dim + j] = static_cast<float>(next);
                        out += q[i] * next;
                    }
                    o[j] = out;
                }
                double sum = 0;
                for (double v2 : o)
                    sum += v2 * v2;
                const double inv = 1.0 / std::sqrt(sum / a.v_dim + static_cast<double>(a.eps));
                for (int j = 0; j < a.v_dim; ++j)
                    a.out.device_pointer()[rh * a.v_dim + j] = static_cast<float>(
                        o[j] * inv * at(a.norm, j) *
                        sigmoid(static_cast<double>(a.z.device_pointer()[rh * a.v_dim + j])));
            }
        }
    }
    return {};
}

Status ReferenceOps::ple_inject(Stream&, const PleInjectArgs& a) {
    const int wide = a.streams * a.hidden, history = (a.kernel - 1) * a.dilation;
    std::vector<double> key(wide), query(wide), gated(wide), b(wide);
    for (int si = 0; si < a.step.n_seqs; ++si) {
        const SeqRows& seq = a.step.seqs.device_pointer()[si];
        float* past = a.state.device_pointer() + int64_t{seq.slot} * history * wide;
        for (int r = seq.row0; r < seq.row0 + seq.n_rows; ++r) {
            float* h = a.h.device_pointer() + int64_t{r} * wide;
            const auto hs = widen(h, wide);
            const auto ks = widen(a.key.device_pointer() + int64_t{r} * wide, wide);
            for (int s = 0; s < a.streams; ++s) {
                const int at0 = s * a.hidden;
                const double eps = static_cast<double>(a.eps);
                zero_centred_norm(&ks[at0], a.hidden, a.norm_key, at0, eps, &key[at0]);
                zero_centred_norm(&hs[at0], a.hidden, a.norm_query, at0, eps, &query[at0]);
                double dot = 0;
                for (int i = 0; i < a.hidden; ++i)
                    dot += key[at0 + i] * query[at0 + i];
                dot /= std::sqrt(static_cast<double>(a.hidden));
                const double root = std::sqrt(std::max(std::abs(dot), 1e-6));
                const double gate = sigmoid(dot > 0 ? root : dot < 0 ? -root : 0.0);
                for (int i = 0; i < a.hidden; ++i)
                    gated[at0 + i] =
                        gate *
                        static_cast<double>(a.value.device_pointer()[int64_t{r} * a.hidden + i]);
                zero_centred_norm(&gated[at0], a.hidden, a.norm_conv, at0, eps, &b[at0]);
            }
            for (int c = 0; c < wide; ++c) {
                double sum = b[c] * at(a.conv, int64_t{c} * a.kernel + a.kernel - 1);
                for (int j = 0; j + 1 < a.kernel; ++j)
                    sum += static_cast<double>(past[int64_t{j} * a.dilation * wide + c]) *
                           at(a.conv, int64_t{c} * a.kernel + j);
                h[c] = static_cast<float>(hs[c] + gated[c] + silu(sum));
            }
            std::copy(past + wide, past + int64_t{history} * wide, past);
            std::copy(b.begin(), b.end(), past + int64_t{history - 1} * wide);
        }
    }
    return {};
}

}  // namespace terrace::ref
