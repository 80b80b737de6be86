// SPDX-License-Identifier: MIT
#include "model/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace terrace {
namespace {

uint64_t mix(uint64_t v) {
    v += 0x9E3779B97F4A7C15u;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

constexpr size_t kWindow = size_t{64} << 20;

// Where made tensors go: straight into memory of the host, or through an upload window. Tensors come
// in ascending addresses without gaps larger than their alignment.
class Sink {
  public:
    Sink(WorkerPool& pool, UploadWindow* window) : pool_(pool), window_(window) {}

    // to[i] = f(i) for i in [0, n).
    template <class T, class F>
    void fill(T* to, int64_t n, F&& f) {
        const auto write = [&](T* at, int64_t i0, int64_t count) {
            pool_.ranges(count, 4096, [&](int64_t first, int64_t last, int) {
                for (int64_t i = first; i < last; ++i)
                    at[i] = f(i0 + i);
            });
        };
        if (!window_) return write(to, 0, n);
        for (int64_t done = 0; done < n && status_;) {
            auto* here = reinterpret_cast<std::byte*>(to + done);
            if (piece_ && static_cast<size_t>(here - home_) + sizeof(T) > window_->bytes()) flush();
            if (!piece_ && !open(here)) return;
            const auto at = static_cast<size_t>(here - home_);
            const int64_t count =
                std::min(n - done, static_cast<int64_t>((window_->bytes() - at) / sizeof(T)));
            write(reinterpret_cast<T*>(piece_ + at), done, count);
            used_ = at + static_cast<size_t>(count) * sizeof(T);
            done += count;
        }
    }
    Status finish() {
        if (window_) {
            flush();
            TERRACE_TRY(status_);
            return window_->finish();
        }
        return {};
    }

  private:
    bool open(std::byte* home) {
        auto piece = window_->next();
        if (!piece) {
            status_ = piece.error();
            return false;
        }
        piece_ = *piece;
        home_ = home;
        used_ = 0;
        return true;
    }
    void flush() {
        if (piece_ && used_ > 0 && status_) status_ = window_->send(home_, used_);
        piece_ = nullptr;
    }

    WorkerPool& pool_;
    UploadWindow* window_;
    Status status_;
    std::byte* piece_ = nullptr;  // the window's memory for addresses from home_
    std::byte* home_ = nullptr;
    size_t used_ = 0;
};

// Runs twice: once to count bytes, once to make tensors in one block of memory.
class Maker {
  public:
    Maker(const ModelConfig& c, const SyntheticOptions& o, Sink* sink, std::byte* base,
          ModelWeights* w)
        : c_(c), o_(o), sink_(sink), base_(base), w_(w) {}

    uint64_t run() {
        ModelWeights scratch;
        ModelWeights& w = w_ ? *w_ : scratch;
        const int32_t wide = c_.hc_count * c_.hidden;
        w.embed = plain("embeddings", int64_t{c_.vocab} * c_.hidden, 1.0);
        for (int32_t i = 0; i < c_.n_layers; ++i) {
            LayerWeights l;
            l.kind = c_.kind(LayerIx{i});
            hyper(l.attn_hyper, c_.hc_count);
            hyper(l.mlp_hyper, c_.hc_count);
            if (l.kind == LayerKind::gdn)
                gdn(l.gdn);
            else
                qsa(l.qsa);
            l.moe.router = plain_linear("routers", c_.hidden, c_.n_experts);
            l.moe.experts.resize(static_cast<size_t>(c_.n_experts));
            for (ExpertWeights& e : l.moe.experts)
                expert("routed experts", e, c_.moe_width, expert_n16());
            expert("shared experts", l.moe.shared, c_.shared_width, 16 * o_.attention_bits);
            l.moe.shared_gate = plain_linear("shared experts", c_.hidden, 1);
            if (c_.has_ple(LayerIx{i})) {
                PleWeights p;
                p.key = plain_linear("n-gram projections", c_.ple_dim, wide);
                p.value = plain_linear("n-gram projections", c_.ple_dim, c_.hidden);
                for (PlainTensor* t : {&p.norm_key, &p.norm_query, &p.norm_conv})
                    *t = plain("n-gram projections", wide, 0.1);
                p.conv = plain("n-gram projections", int64_t{wide} * c_.ple_conv_kernel, 0.3);
                l.ple = p;
            }
            w.layers.push_back(std::move(l));
        }
        hyper(w.mixer, 0);
        w.head = exl3("head", c_.hidden, c_.vocab, 16 * o_.attention_bits);
        return used_;
    }

  private:
    int32_t expert_n16() const {
        const int32_t step = o_.codebook == Codebook::mul1 ? 8 : 16;
        return std::clamp(static_cast<int32_t>(std::lround(o_.bpw * 16 / step)) * step, 16, 128);
    }

    std::byte* take(uint64_t bytes) {
        std::byte* p = base_ ? base_ + used_ : nullptr;
        used_ += (bytes + kWeightAlign - 1) / kWeightAlign * kWeightAlign;
        return p;
    }

    template <class T, class F>
    void fill(T* to, int64_t n, F&& f) {
        if (sink_) sink_->fill(to, n, f);
        ++serial_;
    }

    void count(const char* cls, int64_t values, uint64_t bytes) {
        if (!w_) return;
        WeightClass& k = w_->classes[cls];
        ++k.tensors;
        k.values += values;
        k.bytes += static_cast<int64_t>(bytes);
    }

    // Uniform in +-scale*sqrt(3): standard deviation `scale`.
    PlainTensor plain(const char* cls, int64_t n, double scale) {
        const auto bytes = static_cast<uint64_t>(2 * n);
        auto* data = reinterpret_cast<f16*>(take(bytes));
        count(cls, n, bytes);
        const uint64_t key = mix(o_.seed + serial_);
        const double k = scale * std::sqrt(3.0);
        fill(data, n, [&](int64_t i) {
            const double u =
                static_cast<double>(mix(key + static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
            return f16::from(static_cast<float>((2 * u - 1) * k));
        });
        return {data, DType::f16, n};
    }

    LinearWeight plain_linear(const char* cls, int32_t in, int32_t out) {
        LinearWeight w;
        w.kind = LinearKind::plain;
        w.in = in;
        w.out = out;
        w.plain = plain(cls, int64_t{in} * out, 1.0 / std::sqrt(in));
        return w;
    }

    const f16* signs(int32_t n, double magnitude) {
        auto* data = reinterpret_cast<f16*>(take(2 * static_cast<uint64_t>(n)));
        const uint64_t key = mix(o_.seed + serial_);
        const auto m = static_cast<float>(magnitude);
        fill(data, n, [&](int64_t i) {
            return f16::from(mix(key + static_cast<uint64_t>(i)) & 1 ? m : -m);
        });
        return data;
    }

    LinearWeight exl3(const char* cls, int32_t in, int32_t out, int32_t n16) {
        const auto pad = [](int32_t n) { return (n + 127) / 128 * 128; };
        LinearWeight w;
        w.kind = LinearKind::exl3;
        w.in = in;
        w.out = out;
        w.exl3.in = pad(in);
        w.exl3.out = pad(out);
        w.exl3.n16 = n16;
        w.exl3.codebook = o_.codebook;
        const size_t bytes = w.exl3.trellis_bytes();
        auto* words = reinterpret_cast<uint64_t*>(take(bytes));
        count(cls, int64_t{w.exl3.in} * w.exl3.out,
              bytes + 2u * static_cast<uint64_t>(w.exl3.in + w.exl3.out));
        const uint64_t key = mix(o_.seed + serial_);
        fill(words, static_cast<int64_t>(bytes / 8),
             [&](int64_t i) { return mix(key + static_cast<uint64_t>(i)); });
        w.exl3.trellis = reinterpret_cast<const uint16_t*>(words);
        w.exl3.suh = signs(w.exl3.in, 1.0 / std::sqrt(in));
        w.exl3.svh = signs(w.exl3.out, 1.0);
        return w;
    }

    void hyper(HyperWeights& h, int32_t inject) {
        const int32_t wide = c_.hc_count * c_.hidden;
        h.norm = plain("hyper-connections", wide, 0.1);
        h.down = plain_linear("hyper-connections", wide, c_.hc_rank);
        h.up = plain_linear("hyper-connections", c_.hc_rank, wide);
        if (inject > 0) h.inject = plain_linear("hyper-connections", wide, inject);
    }

    void gdn(GdnWeights& g) {
        const char* cls = "gated delta net";
        const int32_t values = c_.gdn_v_heads * c_.gdn_v_dim, n16 = 16 * o_.attention_bits;
        g.qkv = exl3(cls, c_.hidden, c_.gdn_conv_channels(), n16);
        g.z = exl3(cls, c_.hidden, values, n16);
        g.a = plain_linear(cls, c_.hidden, c_.gdn_v_heads);
        g.b = plain_linear(cls, c_.hidden, c_.gdn_v_heads);
        g.out = exl3(cls, values, c_.hidden, n16);
        g.conv = plain(cls, int64_t{c_.gdn_conv_channels()} * c_.conv_kernel, 0.5);
        g.a_log = plain(cls, c_.gdn_v_heads, 1.0);
        g.dt_bias = plain(cls, c_.gdn_v_heads, 1.0);
        g.norm = plain(cls, c_.gdn_v_dim, 1.0);
    }

    void qsa(QsaWeights& q) {
        const char* cls = "sparse attention";
        const int32_t wide = c_.n_heads * c_.head_dim, kv = c_.n_kv_heads * c_.head_dim;
        const int32_t n16 = 16 * o_.attention_bits;
        q.q = exl3(cls, c_.hidden, 2 * wide, n16);
        q.k = exl3(cls, c_.hidden, kv, n16);
        q.v = exl3(cls, c_.hidden, kv, n16);
        q.out = exl3(cls, wide, c_.hidden, n16);
        q.index_qk =
            exl3("index projection", c_.hidden, (c_.index_heads + 1) * c_.index_dim, expert_n16());
        q.q_norm = plain(cls, c_.head_dim, 0.1);
        q.k_norm = plain(cls, c_.head_dim, 0.1);
        q.index_q_norm = plain(cls, c_.index_dim, 0.1);
        q.index_k_norm = plain(cls, c_.index_dim, 0.1);
    }

    void expert(const char* cls, ExpertWeights& e, int32_t width, int32_t n16) {
        e.gate = exl3(cls, c_.hidden, width, n16);
        e.up = exl3(cls, c_.hidden, width, n16);
        e.down = exl3(cls, width, c_.hidden, n16);
    }

    const ModelConfig& c_;
    const SyntheticOptions& o_;
    Sink* sink_;
    std::byte* base_;
    ModelWeights* w_;
    uint64_t used_ = 0;
    uint64_t serial_ = 0;  // numbers the fills, so that no two tensors are alike
};

}  // namespace

uint64_t synthetic_bytes(const ModelConfig& config, const SyntheticOptions& options) {
    return Maker(config, options, nullptr, nullptr, nullptr).run();
}

Result<ModelWeights> synthetic_weights(const ModelConfig& config, const SyntheticOptions& options,
                                       WorkerPool& pool, Device& device, Budget& budget,
                                       uint64_t limit_bytes) {
    const uint64_t bytes = synthetic_bytes(config, options);
    ModelWeights w;
    if (!device.unified()) {
        TERRACE_ASSIGN(Buffer memory, device.allocate(bytes, MemSpace::device, Fill::unspecified));
        TERRACE_ASSIGN(const std::unique_ptr<Stream> stream, device.make_stream());
        TERRACE_ASSIGN(UploadWindow window, UploadWindow::create(device, *stream, kWindow));
        Sink sink(pool, &window);
        Maker(config, options, &sink, memory.device_pointer(), &w).run();
        TERRACE_TRY(sink.finish());
        const WeightBytes placed = placed_bytes(w);
        TERRACE_CHECK(placed.weights + placed.experts - expert_table_bytes(w) == bytes);
        TERRACE_ASSIGN(Reservation experts,
                       budget.reserve(Role::experts, placed.experts, "routed experts"));
        TERRACE_ASSIGN(Reservation rest,
                       budget.reserve(Role::weights, bytes - placed.experts, "weights"));
        w.device_memory.push_back({std::move(experts), std::move(memory)});
        w.device_memory.push_back({std::move(rest), Buffer{}});
        return w;
    }
    if (limit_bytes != 0 && bytes > limit_bytes)
        return Error{Code::out_of_memory,
                     fmt::format("synthetic weights: need {} bytes, {} are available: lower --bpw "
                                 "or --layers",
                                 bytes, limit_bytes)};
    w.owned.push_back(allocate_bytes(bytes));
    std::byte* base = w.owned.back().get();
    if (!base)
        return Error{Code::out_of_memory,
                     fmt::format("synthetic weights: the system refused {} bytes", bytes)};
    Sink sink(pool, nullptr);
    Maker(config, options, &sink, base, &w).run();
    TERRACE_TRY(sink.finish());
    return w;
}

}  // namespace terrace
