// Operations with a recurrent state on the CPU: CpuOps::gdn and ple_inject. Tasks and scratch; the
// arithmetic is in gdn_conv.h and gdn_kernels.h. Engine thread only. A sequence's slot is touched
// by that sequence's tasks alone, each its own channels or head.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cpu/cpu_ops.h"

namespace terrace {
namespace {

size_t up64(size_t n) {
    return (n + 63) / 64 * 64;
}
size_t floats(int64_t n) {
    return up64(static_cast<size_t>(n) * sizeof(float));
}

// Channels of a convolution task: 1 KiB of a row, so that prefill rows are read in whole lines.
constexpr int kConvChannels = 256;

static_assert(kGdnRows == kGdnChunk);

TypedRun typed(const PlainTensor& t) {
    return {t.data, static_cast<int>(t.dtype)};
}

double element(const PlainTensor& t, int64_t i) {
    if (t.dtype == DType::f32) {
        float v;
        std::memcpy(&v, static_cast<const char*>(t.data) + 4 * i, 4);
        return static_cast<double>(v);
    }
    uint16_t h;
    std::memcpy(&h, static_cast<const char*>(t.data) + 2 * i, 2);
    return static_cast<double>(t.dtype == DType::bf16 ? bf16_to_f32(h) : f16_to_f32(h));
}

Status check_taps(const char* op, int kernel) {
    if (kernel >= 1 && kernel <= kMaxTaps) return {};
    return Error{Code::unsupported,
                 fmt::format("{}: a convolution of {} taps, at most {}", op, kernel, kMaxTaps)};
}

}  // namespace

CpuOps::Layout CpuOps::gdn_layout(int rows, int channels, int v_heads, int k_dim, int v_dim) const {
    Layout l;
    l.shared = floats(int64_t{rows} * channels) + 2 * floats(int64_t{rows} * v_heads);
    l.thread = up64(gdn_scratch(k_dim, v_dim) * sizeof(float));
    return l;
}

Status CpuOps::gdn(Stream&, const GdnArgs& a) {
    const int kw = a.k_heads * a.k_dim, channels = 2 * kw + a.v_heads * a.v_dim;
    TERRACE_TRY(check_taps("gdn", a.kernel));
    if (a.k_heads < 1 || a.v_heads % a.k_heads)
        return Error{Code::unsupported,
                     fmt::format("gdn: {} value heads over {} key heads", a.v_heads, a.k_heads)};
    const int rows = a.step.n_rows;
    TERRACE_TRY(need("gdn", gdn_layout(rows, channels, a.v_heads, a.k_dim, a.v_dim)));
    const auto schannels = static_cast<size_t>(channels),
               vw = static_cast<size_t>(a.v_heads * a.v_dim);
    float* y = reinterpret_cast<float*>(shared_scratch());
    float* g = y + floats(int64_t{rows} * channels) / sizeof(float);
    float* beta = g + floats(int64_t{rows} * a.v_heads) / sizeof(float);

    // Convolutions, and one more task per 64 rows for the gates, in double: 48 a row.
    const int conv_tasks = (channels + kConvChannels - 1) / kConvChannels;
    const int64_t all_conv = int64_t{a.step.n_seqs} * conv_tasks;
    const int gate_rows = 16;
    tasks(all_conv + (rows + gate_rows - 1) / gate_rows, [&](int64_t task, int) {
        if (task >= all_conv) {
            const int first = static_cast<int>(task - all_conv) * gate_rows;
            for (int r = first; r < std::min(rows, first + gate_rows); ++r)
                for (int h = 0; h < a.v_heads; ++h) {
                    const int64_t at = int64_t{r} * a.v_heads + h;
                    const double x =
                        static_cast<double>(a.a.device_pointer()[at]) + element(a.dt_bias, h);
                    const double softplus = x > 30 ? x : std::log1p(std::exp(x));
                    g[at] = static_cast<float>(-std::exp(element(a.a_log, h)) * softplus);
                    beta[at] = static_cast<float>(
                        1.0 / (1.0 + std::exp(-static_cast<double>(a.b.device_pointer()[at]))));
                }
            return;
        }
        const SeqRows& seq = a.step.seqs.device_pointer()[task / conv_tasks];
        const size_t first = static_cast<size_t>(seq.row0) * schannels;
        ConvArgs c;
        c.x = a.qkv.device_pointer() + first;
        c.stride = schannels;
        c.rows = seq.n_rows;
        c.begin = static_cast<int>(task % conv_tasks) * kConvChannels;
        c.end = std::min(channels, c.begin + kConvChannels);
        c.taps = typed(a.conv);
        c.kernel = a.kernel;
        c.state = a.conv_state.device_pointer() +
                  static_cast<size_t>(seq.slot) * static_cast<size_t>(a.kernel - 1) * schannels;
        c.y = y + first;
        kernels_.ops.conv(c);
    });

    const int group = a.v_heads / a.k_heads;
    tasks(int64_t{a.step.n_seqs} * a.v_heads, [&](int64_t task, int worker) {
        const SeqRows& seq = a.step.seqs.device_pointer()[task / a.v_heads];
        if (seq.n_rows < 1) return;
        const int h = static_cast<int>(task % a.v_heads), row0 = seq.row0;
        const float* u = y + static_cast<size_t>(row0) * schannels;
        const size_t head =
            static_cast<size_t>(row0) * static_cast<size_t>(a.v_heads) + static_cast<size_t>(h);
        GdnTask t;
        t.q = u + h / group * a.k_dim;
        t.k = t.q + kw;
        t.v = u + 2 * kw + h * a.v_dim;
        t.stride = schannels;
        t.z = a.z.device_pointer() + head * static_cast<size_t>(a.v_dim);
        t.out = a.out.device_pointer() + head * static_cast<size_t>(a.v_dim);
        t.z_stride = vw;
        t.g = g + head;
        t.beta = beta + head;
        t.g_stride = static_cast<size_t>(a.v_heads);
        t.k_dim = a.k_dim;
        t.v_dim = a.v_dim;
        t.eps = a.eps;
        t.norm = typed(a.norm);
        t.state = a.state.device_pointer() +
                  (static_cast<size_t>(seq.slot) * static_cast<size_t>(a.v_heads) +
                   static_cast<size_t>(h)) *
                      static_cast<size_t>(a.k_dim * a.v_dim);
        t.scratch = thread_floats(worker);
        // A last run of one row takes the recurrent form, as it would in a call of its own.
        const bool single = seq.n_rows % kGdnChunk == 1;
        t.rows = seq.n_rows - (single ? 1 : 0);
        if (t.rows > 0) kernels_.ops.gdn_chunk(t);
        if (!single) return;
        const auto last = static_cast<size_t>(t.rows);
        t.q += last * t.stride;
        t.k += last * t.stride;
        t.v += last * t.stride;
        t.z += last * t.z_stride;
        t.out += last * t.z_stride;
        t.g += last * t.g_stride;
        t.beta += last * t.g_stride;
        t.rows = 1;
        kernels_.ops.gdn_step(t);
    });
    return {};
}

CpuOps::Layout CpuOps::ple_layout(int rows, int streams, int hidden) const {
    Layout l;
    l.shared = 2 * floats(int64_t{rows} * streams * hidden);
    return l;
}

Status CpuOps::ple_inject(Stream&, const PleInjectArgs& a) {
    TERRACE_TRY(check_taps("ple_inject", a.kernel));
    const int rows = a.step.n_rows, wide = a.streams * a.hidden;
    TERRACE_TRY(need("ple_inject", ple_layout(rows, a.streams, a.hidden)));
    const auto swide = static_cast<size_t>(wide);
    float* gated = reinterpret_cast<float*>(shared_scratch());
    float* normed = gated + floats(int64_t{rows} * wide) / sizeof(float);
    tasks(int64_t{rows} * a.streams, [&](int64_t i, int) {
        PleGateArgs p;
        p.h = a.h.device_pointer() + i * a.hidden;
        p.key = a.key.device_pointer() + i * a.hidden;
        p.value = a.value.device_pointer() + i / a.streams * a.hidden;
        p.norm_key = typed(a.norm_key);
        p.norm_query = typed(a.norm_query);
        p.norm_conv = typed(a.norm_conv);
        p.first = i % a.streams * a.hidden;
        p.n = a.hidden;
        p.eps = a.eps;
        p.gated = gated + i * a.hidden;
        p.normed = normed + i * a.hidden;
        kernels_.ops.ple_gate(p);
    });
    const size_t history = static_cast<size_t>((a.kernel - 1) * a.dilation);
    const int conv_tasks = (wide + kConvChannels - 1) / kConvChannels;
    tasks(int64_t{a.step.n_seqs} * conv_tasks, [&](int64_t task, int) {
        const SeqRows& seq = a.step.seqs.device_pointer()[task / conv_tasks];
        const size_t first = static_cast<size_t>(seq.row0) * swide;
        ConvArgs c;
        c.x = normed + first;
        c.stride = swide;
        c.rows = seq.n_rows;
        c.begin = static_cast<int>(task % conv_tasks) * kConvChannels;
        c.end = std::min(wide, c.begin + kConvChannels);
        c.taps = typed(a.conv);
        c.kernel = a.kernel;
        c.dilation = a.dilation;
        c.state = a.state.device_pointer() + static_cast<size_t>(seq.slot) * history * swide;
        c.base = a.h.device_pointer() + first;
        c.add = gated + first;
        c.y = a.h.device_pointer() + first;
        kernels_.ops.conv(c);
    });
    return {};
}

}  // namespace terrace
