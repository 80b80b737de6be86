// SPDX-License-Identifier: MIT
#include "model/weights.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "exl3/decode.h"

namespace terrace {
namespace {

class Binder {
  public:
    explicit Binder(const ModelDir& dir) : dir_(dir), c_(dir.config()), prefix_(c_.tensor_prefix) {}

    Result<ModelWeights> bind() {
        const std::string p = prefix_;
        TERRACE_ASSIGN(w_.embed,
                       plain("embeddings", p + "embed_tokens.weight", {c_.vocab, c_.hidden}));
        for (int32_t i = 0; i < c_.n_layers; ++i) {
            const std::string lp = fmt::format("{}layers.{}.", p, i);
            LayerWeights layer;
            layer.kind = c_.kind(LayerIx{i});
            TERRACE_TRY(hyper(lp + "attn_hyper_connection.", layer.attn_hyper, Inject::yes));
            TERRACE_TRY(hyper(lp + "mlp_hyper_connection.", layer.mlp_hyper, Inject::yes));
            TERRACE_TRY(layer.kind == LayerKind::gdn ? gdn(lp + "linear_attn.", layer.gdn)
                                                     : qsa(lp + "self_attn.", layer.qsa));
            TERRACE_TRY(moe(lp + "mlp.", layer.moe));
            if (c_.has_ple(LayerIx{i})) {
                layer.ple.emplace();
                TERRACE_TRY(ple(lp + "ple.", *layer.ple));
            }
            w_.layers.push_back(std::move(layer));
        }
        TERRACE_TRY(hyper(p + "hyper_connection_mixer.", w_.mixer, Inject::no));
        // A tied model may still have a quantised head of its own (EXL3 format 1.5).
        const Checkpoint& files = dir_.checkpoint();
        if (files.contains("lm_head.trellis") || files.contains("lm_head.weight")) {
            TERRACE_ASSIGN(w_.head, linear("head", "lm_head", c_.hidden, c_.vocab));
        } else if (c_.tie_word_embeddings) {
            w_.head.kind = LinearKind::plain;
            w_.head.in = c_.hidden;
            w_.head.out = c_.vocab;
            w_.head.plain = w_.embed;
        } else {
            return files.require("lm_head.weight").error();
        }
        classify_the_rest();
        return std::move(w_);
    }

  private:
    enum class Inject { no, yes };

    // Views must be aligned to their element; a file need not be.
    const void* usable(const TensorView& t) {
        const size_t align = dtype_bytes(t.dtype);
        if (reinterpret_cast<uintptr_t>(t.data) % align == 0) return t.data;
        w_.owned.push_back(allocate_bytes(t.bytes));
        std::memcpy(w_.owned.back().get(), t.data, t.bytes);
        return w_.owned.back().get();
    }

    void count(const char* cls, const TensorView& t, int64_t values) {
        WeightClass& k = w_.classes[cls];
        k.bytes += static_cast<int64_t>(t.bytes);
        k.values += values;
        seen_.insert(t.name);
    }

    Result<PlainTensor> plain(const char* cls, const std::string& name,
                              std::initializer_list<int64_t> shape) {
        TERRACE_ASSIGN(const TensorView t, dir_.checkpoint().require(
                                               name, {DType::f32, DType::f16, DType::bf16}, shape));
        count(cls, t, t.elements());
        ++w_.classes[cls].tensors;
        return PlainTensor{usable(t), t.dtype, t.elements()};
    }

    Result<const f16*> vector(const char* cls, const std::string& base, const char* full,
                              const char* packed, int64_t n) {
        const Checkpoint& files = dir_.checkpoint();
        if (const TensorView* p =
                files.contains(base + full) ? nullptr : files.find(base + packed)) {
            // Legacy: sign bits only (EXL3 format 1.4).
            TERRACE_ASSIGN(const TensorView t,
                           files.require(base + packed, {DType::i16}, {n / 16}));
            count(cls, *p, 0);
            const OwnedBytes bits = allocate_bytes(t.bytes);
            std::memcpy(bits.get(), t.data, t.bytes);
            OwnedBytes out = allocate_bytes(static_cast<size_t>(2 * n));
            unpack_signs(reinterpret_cast<const uint16_t*>(bits.get()), static_cast<int>(n),
                         reinterpret_cast<f16*>(out.get()));
            w_.owned.push_back(std::move(out));
            return reinterpret_cast<const f16*>(w_.owned.back().get());
        }
        TERRACE_ASSIGN(const TensorView t, files.require(base + full, {DType::f16}, {n}));
        count(cls, t, 0);
        return static_cast<const f16*>(usable(t));
    }

    Result<LinearWeight> exl3(const char* cls, const std::string& base, int32_t in, int32_t out) {
        const Checkpoint& files = dir_.checkpoint();
        TERRACE_ASSIGN(const TensorView t, files.require(base + ".trellis"));
        const std::string where = t.file->path().string();
        if (t.dtype != DType::i16 || t.shape.size() != 3)
            return Error{Code::corrupt_data,
                         fmt::format("{}: {} is {}, need I16 [in/16, out/16, 16 K]", where, t.name,
                                     describe(t.dtype, t.shape))};
        const bool mcg = files.contains(base + ".mcg"), mul1 = files.contains(base + ".mul1");
        if (mcg && mul1)
            return Error{Code::corrupt_data,
                         fmt::format("{}: {} has both .mcg and .mul1: the codebook is ambiguous",
                                     where, base)};
        if (files.contains(base + ".bias"))
            return Error{Code::unsupported,
                         fmt::format("{}: {}.bias: this model family has no biases", where, base)};
        for (const int64_t d : t.shape)
            if (d < 1 || d > (int64_t{1} << 24))
                return Error{Code::corrupt_data, fmt::format("{}: {} is {}", where, t.name,
                                                             describe(t.dtype, t.shape))};
        LinearWeight w;
        w.kind = LinearKind::exl3;
        w.in = in;
        w.out = out;
        w.exl3.in = static_cast<int32_t>(16 * t.shape[0]);
        w.exl3.out = static_cast<int32_t>(16 * t.shape[1]);
        w.exl3.n16 = static_cast<int32_t>(t.shape[2]);
        w.exl3.codebook = mul1 ? Codebook::mul1 : mcg ? Codebook::mcg : Codebook::three_inst;
        w.exl3.trellis = static_cast<const uint16_t*>(usable(t));
        if (w.exl3.in < in || w.exl3.in - in >= 128 || w.exl3.out < out || w.exl3.out - out >= 128)
            return Error{
                Code::corrupt_data,
                fmt::format("{}: {} is {} x {}, config.json asks for {} x {} (padded up to "
                            "a multiple of 128)",
                            where, t.name, w.exl3.in, w.exl3.out, in, out)};
        TERRACE_ASSIGN(w.exl3.suh, vector(cls, base, ".suh", ".su", w.exl3.in));
        TERRACE_ASSIGN(w.exl3.svh, vector(cls, base, ".svh", ".sv", w.exl3.out));
        const Status ok = check(w.exl3, t.name);
        if (!ok) return ok.error().in(where);
        count(cls, t, int64_t{w.exl3.in} * w.exl3.out);
        for (const char* marker : {".mcg", ".mul1"})
            if (const TensorView* m = files.find(base + marker)) count(cls, *m, 0);
        ++w_.classes[cls].tensors;
        return w;
    }

    Result<LinearWeight> linear(const char* cls, const std::string& base, int32_t in, int32_t out) {
        if (const TensorView* t = dir_.checkpoint().find(base + ".trellis");
            t && t->shape.size() == 3)
            return exl3(cls, base, in, out);
        LinearWeight w;
        w.kind = LinearKind::plain;
        w.in = in;
        w.out = out;
        TERRACE_ASSIGN(w.plain, plain(cls, base + ".weight", {out, in}));
        return w;
    }

    Status hyper(const std::string& p, HyperWeights& h, Inject inject) {
        const char* cls = "hyper-connections";
        const int32_t wide = c_.hc_count * c_.hidden;
        TERRACE_ASSIGN(h.norm, plain(cls, p + "hc_norm.weight", {wide}));
        TERRACE_ASSIGN(h.down, linear(cls, p + "input_mix_weight_down", wide, c_.hc_rank));
        TERRACE_ASSIGN(h.up, linear(cls, p + "input_mix_weight_up", c_.hc_rank, wide));
        if (inject == Inject::yes) {
            TERRACE_ASSIGN(h.inject, linear(cls, p + "block_inject_weight", wide, c_.hc_count));
        }
        return {};
    }

    Status gdn(const std::string& p, GdnWeights& g) {
        const char* cls = "gated delta net";
        const int32_t values = c_.gdn_v_heads * c_.gdn_v_dim, channels = c_.gdn_conv_channels();
        TERRACE_ASSIGN(g.qkv, linear(cls, p + "in_proj_qkv", c_.hidden, channels));
        TERRACE_ASSIGN(g.z, linear(cls, p + "in_proj_z", c_.hidden, values));
        TERRACE_ASSIGN(g.a, linear(cls, p + "in_proj_a", c_.hidden, c_.gdn_v_heads));
        TERRACE_ASSIGN(g.b, linear(cls, p + "in_proj_b", c_.hidden, c_.gdn_v_heads));
        TERRACE_ASSIGN(g.out, linear(cls, p + "out_proj", values, c_.hidden));
        TERRACE_ASSIGN(g.conv, plain(cls, p + "conv1d.weight", {channels, 1, c_.conv_kernel}));
        TERRACE_ASSIGN(g.a_log, plain(cls, p + "A_log", {c_.gdn_v_heads}));
        TERRACE_ASSIGN(g.dt_bias, plain(cls, p + "dt_bias", {c_.gdn_v_heads}));
        TERRACE_ASSIGN(g.norm, plain(cls, p + "norm.weight", {c_.gdn_v_dim}));
        return {};
    }

    Status qsa(const std::string& p, QsaWeights& q) {
        const char* cls = "sparse attention";
        const int32_t wide = c_.n_heads * c_.head_dim, kv = c_.n_kv_heads * c_.head_dim;
        TERRACE_ASSIGN(q.q, linear(cls, p + "q_proj", c_.hidden, 2 * wide));
        TERRACE_ASSIGN(q.k, linear(cls, p + "k_proj", c_.hidden, kv));
        TERRACE_ASSIGN(q.v, linear(cls, p + "v_proj", c_.hidden, kv));
        TERRACE_ASSIGN(q.out, linear(cls, p + "o_proj", wide, c_.hidden));
        TERRACE_ASSIGN(q.index_qk, linear("index projection", p + "indexer.index_qk_proj",
                                          c_.hidden, (c_.index_heads + 1) * c_.index_dim));
        TERRACE_ASSIGN(q.q_norm, plain(cls, p + "q_norm.weight", {c_.head_dim}));
        TERRACE_ASSIGN(q.k_norm, plain(cls, p + "k_norm.weight", {c_.head_dim}));
        TERRACE_ASSIGN(q.index_q_norm,
                       plain(cls, p + "indexer.q_layernorm.weight", {c_.index_dim}));
        TERRACE_ASSIGN(q.index_k_norm,
                       plain(cls, p + "indexer.k_layernorm.weight", {c_.index_dim}));
        return {};
    }

    Status expert(const char* cls, const std::string& p, int32_t width, ExpertWeights& e) {
        TERRACE_ASSIGN(e.gate, linear(cls, p + "gate_proj", c_.hidden, width));
        TERRACE_ASSIGN(e.up, linear(cls, p + "up_proj", c_.hidden, width));
        TERRACE_ASSIGN(e.down, linear(cls, p + "down_proj", width, c_.hidden));
        return {};
    }

    // One tensor for all experts: gate_up_proj [E, 2 I, H] (gate first), down_proj [E, H, I].
    Status batched_experts(const std::string& p, MoeWeights& m) {
        const char* cls = "routed experts";
        const int64_t width = c_.moe_width, hidden = c_.hidden, n = c_.n_experts;
        TERRACE_ASSIGN(const PlainTensor gate_up,
                       plain(cls, p + "gate_up_proj", {n, 2 * width, hidden}));
        TERRACE_ASSIGN(const PlainTensor down, plain(cls, p + "down_proj", {n, hidden, width}));
        const auto part = [](const PlainTensor& t, int64_t first, int64_t rows, int64_t cols) {
            LinearWeight w;
            w.kind = LinearKind::plain;
            w.in = static_cast<int32_t>(cols);
            w.out = static_cast<int32_t>(rows);
            w.plain = {static_cast<const char*>(t.data) +
                           first * static_cast<int64_t>(dtype_bytes(t.dtype)),
                       t.dtype, rows * cols};
            return w;
        };
        for (int64_t e = 0; e < n; ++e)
            m.experts.push_back({part(gate_up, e * 2 * width * hidden, width, hidden),
                                 part(gate_up, (e * 2 + 1) * width * hidden, width, hidden),
                                 part(down, e * width * hidden, hidden, width)});
        return {};
    }

    Status moe(const std::string& p, MoeWeights& m) {
        TERRACE_ASSIGN(m.router, linear("routers", p + "gate", c_.hidden, c_.n_experts));
        if (dir_.checkpoint().contains(p + "experts.gate_up_proj")) {
            TERRACE_TRY(batched_experts(p + "experts.", m));
        } else {
            m.experts.resize(static_cast<size_t>(c_.n_experts));
            for (int32_t e = 0; e < c_.n_experts; ++e)
                TERRACE_TRY(expert("routed experts", fmt::format("{}experts.{}.", p, e),
                                   c_.moe_width, m.experts[static_cast<size_t>(e)]));
        }
        TERRACE_TRY(expert("shared experts", p + "shared_expert.", c_.shared_width, m.shared));
        TERRACE_ASSIGN(m.shared_gate,
                       linear("shared experts", p + "shared_expert_gate", c_.hidden, 1));
        return {};
    }

    Status ple(const std::string& p, PleWeights& w) {
        const char* cls = "n-gram projections";
        const int32_t wide = c_.hc_count * c_.hidden;
        TERRACE_ASSIGN(w.key, linear(cls, p + "key_proj", c_.ple_dim, wide));
        TERRACE_ASSIGN(w.value, linear(cls, p + "value_proj", c_.ple_dim, c_.hidden));
        TERRACE_ASSIGN(w.norm_key, plain(cls, p + "norm_key.weight", {wide}));
        TERRACE_ASSIGN(w.norm_query, plain(cls, p + "norm_query.weight", {wide}));
        TERRACE_ASSIGN(w.norm_conv, plain(cls, p + "norm_conv.weight", {wide}));
        TERRACE_ASSIGN(w.conv, plain(cls, p + "conv1d.weight", {wide, 1, c_.ple_conv_kernel}));
        w.table_prefix = p + "ple_embedding.";
        WeightClass& table = w_.classes["n-gram table"];
        for (const TensorView& t : dir_.checkpoint().with_prefix(w.table_prefix)) {
            seen_.insert(t.name);
            // Hash constants and biases are small and always in memory.
            if (t.shape.size() != 2 || t.name.ends_with("head_bias")) {
                w_.classes[cls].bytes += static_cast<int64_t>(t.bytes);
                continue;
            }
            table.bytes += static_cast<int64_t>(t.bytes);
            ++table.tensors;
            table.values += t.dtype == DType::i16 ? t.shape[0] * c_.ngram_head_dim() : t.elements();
        }
        return {};
    }

    void classify_the_rest() {
        for (const TensorView& t : dir_.checkpoint().all()) {
            if (seen_.contains(t.name)) continue;
            const bool draft =
                t.name.starts_with("mtp.") || t.name.find(".mtp.") != std::string::npos;
            const bool vision =
                t.name.starts_with("model.visual.") || t.name.starts_with("visual.");
            WeightClass& k = w_.skipped[draft ? "draft head" : vision ? "vision" : "unknown"];
            ++k.tensors;
            k.bytes += static_cast<int64_t>(t.bytes);
            k.values += t.elements();
            if (!draft && !vision) w_.unknown.push_back(t.name);
        }
    }

    const ModelDir& dir_;
    const ModelConfig& c_;
    const std::string prefix_;
    ModelWeights w_;
    std::unordered_set<std::string> seen_;
};

}  // namespace

OwnedBytes allocate_bytes(size_t bytes) {
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t align = bytes >= kHugePage ? kHugePage : 64;
    const size_t rounded = (bytes + align - 1) / align * align;
    OwnedBytes out(static_cast<std::byte*>(std::aligned_alloc(align, std::max(rounded, align))));
    if (out && align == kHugePage) ::madvise(out.get(), rounded, MADV_HUGEPAGE);
    return out;
}

int64_t ModelWeights::resident_bytes() const {
    int64_t sum = 0;
    for (const auto& [name, k] : classes)
        if (name != "n-gram table") sum += k.bytes;
    return sum;
}

Result<ModelWeights> bind_weights(const ModelDir& dir) {
    return Binder(dir).bind();
}

}  // namespace terrace
