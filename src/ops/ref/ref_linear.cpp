// Reference: embedding, linears, hyper-connections, experts, row gather.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "exl3/codebook.h"
#include "exl3/trellis.h"
#include "ops/ref/ref_math.h"
#include "ops/ref/ref_ops.h"

namespace terrace {

std::unique_ptr<Ops> make_reference_ops() {
    return std::make_unique<ref::ReferenceOps>();
}

namespace ref {
namespace {

void fwht128(double* x) {
    for (int stride = 1; stride < 128; stride *= 2)
        for (int i = 0; i < 128; ++i)
            if (!(i & stride)) {
                const double a = x[i], b = x[i + stride];
                x[i] = a + b;
                x[i + stride] = a - b;
            }
    for (int i = 0; i < 128; ++i)
        x[i] /= std::sqrt(128.0);
}

// EXL3 format 2.1: y = ((x * suh) Hd Wq) Hd * svh, on exact code values.
void exl3_row(const Exl3Tensor& w, const double* x, int n_in, double* y, int n_out) {
    std::vector<double> xh(static_cast<size_t>(w.in), 0.0), acc(static_cast<size_t>(w.out), 0.0);
    for (int i = 0; i < n_in; ++i)
        xh[i] = x[i] * static_cast<double>(w.suh[i].f32());
    for (int b = 0; b < w.in; b += 128)
        fwht128(&xh[b]);
    for (int ti = 0; ti < w.in / 16; ++ti)
        for (int to = 0; to < w.out / 16; ++to) {
            const uint16_t* tile =
                w.trellis + (static_cast<size_t>(ti) * (w.out / 16) + to) * w.n16;
            for (int t = 0; t < 256; ++t) {
                const uint16_t bits = code_value_bits(w.codebook, state_at(tile, w.n16, t));
                acc[16 * to + tile_col(t)] +=
                    xh[16 * ti + tile_row(t)] * static_cast<double>(f16_to_f32(bits));
            }
        }
    for (int b = 0; b < w.out; b += 128)
        fwht128(&acc[b]);
    for (int o = 0; o < n_out; ++o)
        y[o] = acc[o] * static_cast<double>(w.svh[o].f32());
}

}  // namespace

void linear_row(const LinearWeight& w, const double* x, double* y) {
    if (w.kind == LinearKind::exl3) return exl3_row(w.exl3, x, w.in, y, w.out);
    for (int o = 0; o < w.out; ++o) {
        double sum = 0;
        for (int i = 0; i < w.in; ++i)
            sum += x[i] * at(w.plain, int64_t{o} * w.in + i);
        y[o] = sum;
    }
}

void expert_row(const ExpertWeights& w, const double* x, int hidden, int width, double* y) {
    std::vector<double> g(static_cast<size_t>(width)), u(static_cast<size_t>(width));
    linear_row(w.gate, x, g.data());
    linear_row(w.up, x, u.data());
    for (int i = 0; i < width; ++i)
        g[i] = silu(g[i]) * u[i];
    linear_row(w.down, g.data(), y);
    (void)hidden;
}

Status ReferenceOps::embed(Stream&, const EmbedArgs& a) {
    float* h = a.h.device_pointer();
    for (int r = 0; r < a.rows; ++r)
        for (int s = 0; s < a.streams; ++s)
            for (int i = 0; i < a.hidden; ++i)
                *h++ = static_cast<float>(
                    at(a.table, int64_t{a.tokens.device_pointer()[r]} * a.hidden + i));
    return {};
}

Status ReferenceOps::linear(Stream&, const LinearArgs& a) {
    std::vector<double> y;
    for (int r = 0; r < a.rows; ++r)
        for (int j = 0; j < a.n_jobs; ++j) {
            const LinearJob& job = a.jobs[j];
            const auto x = widen(a.x.device_pointer() + r * a.x_stride, job.weight->in);
            y.resize(static_cast<size_t>(job.weight->out));
            linear_row(*job.weight, x.data(), y.data());
            std::copy(y.begin(), y.end(), job.y.device_pointer() + r * job.y_stride);
        }
    return {};
}

Status ReferenceOps::hyper_read(Stream& stream, const HyperReadArgs& a) {
    if (!a.add_y.empty())
        TERRACE_TRY(hyper_write(stream, {a.h, a.add_y, a.add_inj, a.rows, a.streams, a.hidden}));
    const int wide = a.streams * a.hidden;
    std::vector<double> n(wide), mid(a.rank), g(wide), inj(a.streams);
    for (int r = 0; r < a.rows; ++r) {
        const auto h = widen(a.h.device_pointer() + int64_t{r} * wide, wide);
        for (int s = 0; s < a.streams; ++s)
            zero_centred_norm(&h[s * a.hidden], a.hidden, a.weights->norm, s * a.hidden,
                              static_cast<double>(a.eps), &n[s * a.hidden]);
        linear_row(a.weights->down, n.data(), mid.data());
        for (double& v : mid)
            v = silu(v / a.streams);
        linear_row(a.weights->up, mid.data(), g.data());
        for (int i = 0; i < a.hidden; ++i) {
            double sum = 0;
            for (int s = 0; s < a.streams; ++s)
                sum += sigmoid(g[s * a.hidden + i]) * n[s * a.hidden + i];
            a.x.device_pointer()[int64_t{r} * a.hidden + i] = static_cast<float>(sum / a.streams);
        }
        if (a.inj.empty()) continue;
        linear_row(a.weights->inject, n.data(), inj.data());
        for (int s = 0; s < a.streams; ++s)
            a.inj.device_pointer()[r * a.streams + s] =
                static_cast<float>(2.0 * sigmoid(inj[s] / a.streams));
    }
    return {};
}

Status ReferenceOps::hyper_write(Stream&, const HyperWriteArgs& a) {
    for (int r = 0; r < a.rows; ++r)
        for (int s = 0; s < a.streams; ++s)
            for (int i = 0; i < a.hidden; ++i) {
                float& h = a.h.device_pointer()[(int64_t{r} * a.streams + s) * a.hidden + i];
                h = static_cast<float>(
                    static_cast<double>(h) +
                    static_cast<double>(a.inj.device_pointer()[r * a.streams + s]) *
                        static_cast<double>(a.y.device_pointer()[int64_t{r} * a.hidden + i]));
            }
    return {};
}

Status ReferenceOps::route(Stream&, const RouteArgs& a) {
    std::vector<double> exact(a.experts);
    for (int r = 0; r < a.rows; ++r) {
        float* logits = a.logits.device_pointer() + int64_t{r} * a.experts;
        const auto x = widen(a.x.device_pointer() + int64_t{r} * a.router->in, a.router->in);
        linear_row(*a.router, x.data(), exact.data());
        std::copy(exact.begin(), exact.end(), logits);
        std::vector<int> order(a.experts);
        for (int e = 0; e < a.experts; ++e)
            order[e] = e;
        std::stable_sort(order.begin(), order.end(),
                         [&](int i, int j) { return logits[i] > logits[j]; });
        const double top = static_cast<double>(logits[order[0]]);
        double all = 0, chosen = 0;
        for (int e = 0; e < a.experts; ++e)
            all += std::exp(static_cast<double>(logits[e]) - top);
        for (int j = 0; j < a.k; ++j)
            chosen += std::exp(static_cast<double>(logits[order[j]]) - top);
        const double sum = a.renormalise == Renormalise::yes ? chosen : all;
        for (int j = 0; j < a.k; ++j) {
            a.ids.device_pointer()[r * a.k + j] = order[j];
            a.weights.device_pointer()[r * a.k + j] =
                static_cast<float>(std::exp(static_cast<double>(logits[order[j]]) - top) / sum);
        }
    }
    return {};
}

Status ReferenceOps::moe(Stream&, const MoeArgs& a) {
    std::vector<double> y(a.hidden), sum(a.hidden);
    for (int r = 0; r < a.rows; ++r) {
        const auto x = widen(a.x.device_pointer() + int64_t{r} * a.hidden, a.hidden);
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int j = 0; j < a.k; ++j) {
            const int e = a.ids.device_pointer()[r * a.k + j];
            expert_row(a.table.experts[e], x.data(), a.hidden, a.width, y.data());
            const double w = static_cast<double>(a.weights.device_pointer()[r * a.k + j]);
            for (int i = 0; i < a.hidden; ++i)
                sum[i] += w * y[i];
        }
        if (a.shared) {
            double gate = 0;
            linear_row(*a.shared_gate, x.data(), &gate);
            expert_row(*a.shared, x.data(), a.hidden, a.shared_width, y.data());
            for (int i = 0; i < a.hidden; ++i)
                sum[i] += sigmoid(gate) * y[i];
        }
        std::copy(sum.begin(), sum.end(), a.y.device_pointer() + int64_t{r} * a.hidden);
    }
    return {};
}

Status ReferenceOps::gather_rows(Stream&, const GatherRowsArgs& a) {
    for (int i = 0; i < a.n; ++i)
        std::copy_n(a.in.device_pointer() + int64_t{a.rows.device_pointer()[i]} * a.width, a.width,
                    a.out.device_pointer() + int64_t{i} * a.width);
    return {};
}

}  // namespace ref
}  // namespace terrace
