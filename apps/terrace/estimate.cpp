// SPDX-License-Identifier: MIT
#include "estimate.h"

#include <algorithm>
#include <cmath>

#include "tier/ngram_table.h"

namespace terrace {
namespace {

class Sum {
  public:
    void plain(const char* name, int64_t values, int64_t count = 1) {
        add(name, values * count, 2 * values * count, count);
    }
    // Padded to multiples of 128; one f16 scale per row and column.
    void exl3(const char* name, int64_t in, int64_t out, int32_t n16, int64_t count = 1) {
        const auto pad = [](int64_t n) { return (n + 127) / 128 * 128; };
        const int64_t values = pad(in) * pad(out);
        add(name, values * count, (values * n16 / 128 + 2 * (pad(in) + pad(out))) * count, count);
    }
    void add(const char* name, int64_t values, int64_t bytes, int64_t tensors) {
        WeightClass& k = classes_[name];
        k.tensors += tensors;
        k.values += values;
        k.bytes += bytes;
    }
    std::map<std::string, WeightClass> take() { return std::move(classes_); }

  private:
    std::map<std::string, WeightClass> classes_;
};

}  // namespace

std::map<std::string, WeightClass> estimate_classes(const ModelConfig& c, const PackFormat& f) {
    const SyntheticOptions& w = f.weights;
    const int32_t step = w.codebook == Codebook::mul1 ? 8 : 16;
    const int32_t expert =
        std::clamp(static_cast<int32_t>(std::lround(w.bpw * 16 / step)) * step, 16, 128);
    const int32_t other = 16 * w.attention_bits;
    const int64_t hidden = c.hidden, wide = hidden * c.hc_count;
    const int64_t layers = c.n_layers, qsa = c.count(LayerKind::qsa), gdn = layers - qsa;
    const int64_t values = int64_t{c.gdn_v_heads} * c.gdn_v_dim;
    const int64_t q = int64_t{c.n_heads} * c.head_dim, kv = int64_t{c.n_kv_heads} * c.head_dim;
    Sum s;
    s.plain("embeddings", c.vocab * hidden);
    s.exl3("head", hidden, c.vocab, other);

    const int64_t sites = 2 * layers + 1;  // two in a layer and the final mixer
    s.plain("hyper-connections", wide, sites);
    s.plain("hyper-connections", wide * c.hc_rank, 2 * sites);
    s.plain("hyper-connections", wide * c.hc_count, 2 * layers);

    s.exl3("gated delta net", hidden, c.gdn_conv_channels(), other, gdn);
    s.exl3("gated delta net", hidden, values, other, gdn);
    s.exl3("gated delta net", values, hidden, other, gdn);
    s.plain("gated delta net", hidden * c.gdn_v_heads, 2 * gdn);
    s.plain("gated delta net", int64_t{c.gdn_conv_channels()} * c.conv_kernel, gdn);
    s.plain("gated delta net", c.gdn_v_heads, 2 * gdn);
    s.plain("gated delta net", c.gdn_v_dim, gdn);

    s.exl3("sparse attention", hidden, 2 * q, other, qsa);
    s.exl3("sparse attention", hidden, kv, other, 2 * qsa);
    s.exl3("sparse attention", q, hidden, other, qsa);
    s.plain("sparse attention", c.head_dim, 2 * qsa);
    s.plain("sparse attention", c.index_dim, 2 * qsa);
    s.exl3("index projection", hidden, int64_t{c.index_heads + 1} * c.index_dim, expert, qsa);

    s.plain("routers", hidden * c.n_experts, layers);
    s.exl3("routed experts", hidden, c.moe_width, expert, 2 * layers * c.n_experts);
    s.exl3("routed experts", c.moe_width, hidden, expert, layers * c.n_experts);
    s.exl3("shared experts", hidden, c.shared_width, other, 2 * layers);
    s.exl3("shared experts", c.shared_width, hidden, other, layers);
    s.plain("shared experts", hidden, layers);

    for (size_t i = 0; i < c.ple_layers.size(); ++i) {
        s.plain("n-gram projections", c.ple_dim * wide);
        s.plain("n-gram projections", c.ple_dim * hidden);
        s.plain("n-gram projections", wide, 3);
        s.plain("n-gram projections", wide * c.ple_conv_kernel);
        const NgramHash hash = NgramHash::derive(c, static_cast<int32_t>(i));
        const int64_t rows =
            (hash.rows_used() + c.ngram_divisor - 1) / c.ngram_divisor * c.ngram_divisor;
        const int64_t dim = c.ngram_head_dim();
        // A packed row: one f16 scale, then dim * bits bits.
        const int64_t row = f.ngram_bits == 16 ? 2 * dim : 2 + (dim * f.ngram_bits + 15) / 16 * 2;
        s.add("n-gram table", rows * dim, rows * row, 1);
    }
    return s.take();
}

}  // namespace terrace
