// Sizes and carving of a step's buffers, and what the model asks of planes, states and operations.
// SPDX-License-Identifier: MIT
#include "model/buffers.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace {
namespace {

constexpr size_t z(int64_t v) {
    return static_cast<size_t>(v);
}

// Walks over the buffers in a fixed order; with a null base it only counts.
class Carver {
  public:
    explicit Carver(std::byte* base) : base_(base) {}
    template <class T>
    void take(DevSpan<T>& to, size_t n) {
        if (base_) to = DevSpan<T>(reinterpret_cast<T*>(base_ + used_), n);
        used_ += (n * sizeof(T) + 63) / 64 * 64;
    }
    size_t used() const { return used_; }

  private:
    std::byte* base_;
    size_t used_ = 0;
};

int32_t blocks_of(const ModelConfig& c, const StepLimits& l) {
    return (l.max_tokens + c.index_block - 1) / c.index_block;
}

int32_t slab_rows_of(const ModelConfig& c, const StepLimits& l) {
    const auto fit = static_cast<int32_t>(kScoreSlabBytes / (4 * z(blocks_of(c, l))));
    return std::clamp(fit, 1, std::min(l.rows, 1024));
}

size_t carve(StepBuffers& b, std::byte* base, const ModelConfig& c, const StepLimits& l) {
    Carver carver(base);
    const size_t rows = z(l.rows), hidden = z(c.hidden), streams = z(c.hc_count);
    const size_t values = z(c.gdn_v_heads) * z(c.gdn_v_dim), heads = z(c.n_heads) * z(c.head_dim);
    const size_t kv = z(c.n_kv_heads) * z(c.head_dim);
    const size_t pages = z(l.max_tokens + kPageTokens - 1) / kPageTokens;
    carver.take(b.seqs, z(l.seqs));
    carver.take(b.tokens, rows);
    carver.take(b.row_seq, rows);
    carver.take(b.logit_rows, z(l.logit_rows));
    carver.take(b.block_tables, z(l.seqs) * (pages + 1));  // last: only its used part is copied
    b.meta_bytes = carver.used();
    carver.take(b.h, rows * streams * hidden);
    carver.take(b.x, rows * hidden);
    carver.take(b.inj[0], rows * streams);
    carver.take(b.inj[1], rows * streams);
    carver.take(b.y, rows * hidden);
    carver.take(b.wide, rows * std::max({z(c.gdn_conv_channels()), 2 * heads, streams * hidden}));
    carver.take(b.z, rows * values);
    carver.take(b.a, rows * z(c.gdn_v_heads));
    carver.take(b.b, rows * z(c.gdn_v_heads));
    carver.take(b.mixed, rows * std::max(values, heads));
    carver.take(b.q, rows * heads);
    carver.take(b.k, rows * kv);
    carver.take(b.v, rows * kv);
    carver.take(b.ix, rows * z(c.index_heads + 1) * z(c.index_dim));
    carver.take(b.iq, rows * z(c.index_heads) * z(c.index_dim));
    b.slab_rows = slab_rows_of(c, l);
    b.max_blocks = blocks_of(c, l);
    carver.take(b.scores, z(b.slab_rows) * z(b.max_blocks));
    carver.take(b.blocks, z(b.slab_rows) * z(c.block_top_k()));
    carver.take(b.counts, z(b.slab_rows));
    carver.take(b.router, rows * z(c.n_experts));
    carver.take(b.ids, rows * z(c.n_experts_per_token));
    carver.take(b.id_weights, rows * z(c.n_experts_per_token));
    carver.take(b.ngram, c.ple_layers.size() * rows * z(c.ple_dim));
    carver.take(b.tail_h, z(l.logit_rows) * streams * hidden);
    carver.take(b.tail_x, z(l.logit_rows) * hidden);
    return carver.used();
}

}  // namespace

size_t Model::activation_bytes(const ModelConfig& config, const StepLimits& limits) {
    StepBuffers none;
    return carve(none, nullptr, config, limits);
}

size_t Model::staging_bytes(const ModelConfig& config, const StepLimits& limits) {
    StepBuffers none;
    carve(none, nullptr, config, limits);
    return none.meta_bytes + 4 * config.ple_layers.size() * z(limits.rows) * z(config.ple_dim);
}

int32_t decoded_rows(int32_t n_rows) {
    const int32_t tail = n_rows % kGdnChunk;
    return tail <= kDecodeRows ? tail : 0;
}

void row_runs(std::span<const SeqRows> seqs, std::vector<RowRun>& runs) {
    runs.clear();
    const auto add = [&](int32_t row0, int32_t n, RowKind kind) {
        if (n == 0) return;
        if (!runs.empty() && runs.back().kind == kind)
            runs.back().n_rows += n;
        else
            runs.push_back({row0, n, kind});
    };
    for (const SeqRows& s : seqs) {
        const int32_t decoded = decoded_rows(s.n_rows);
        add(s.row0, s.n_rows - decoded, RowKind::prefill);
        add(s.row0 + s.n_rows - decoded, decoded, RowKind::decode);
    }
}

size_t Model::logit_bytes(const ModelConfig& config, const StepLimits& limits) {
    return 4 * z(limits.logit_rows) * z(config.vocab);
}

OpsLimits Model::ops_limits(const ModelConfig& c, const StepLimits& l) {
    OpsLimits o;
    o.rows = l.rows;
    o.hidden = c.hidden;
    o.streams = c.hc_count;
    o.rank = c.hc_rank;
    o.widest = std::max({c.gdn_conv_channels(), 2 * c.n_heads * c.head_dim, c.hc_count * c.hidden,
                         c.gdn_v_heads * c.gdn_v_dim, c.ple_dim, c.n_experts, c.hidden,
                         (c.index_heads + 1) * c.index_dim});
    o.head_rows = l.logit_rows;
    o.vocab = c.vocab;
    o.experts = c.n_experts;
    o.k = c.n_experts_per_token;
    o.moe_width = c.moe_width;
    o.shared_width = c.shared_width;
    o.heads = c.n_heads;
    o.head_dim = c.head_dim;
    o.gdn_v_heads = c.gdn_v_heads;
    o.gdn_k_dim = c.gdn_k_dim;
    o.gdn_v_dim = c.gdn_v_dim;
    o.gdn_channels = c.gdn_conv_channels();
    o.max_blocks = blocks_of(c, l);
    o.top_blocks = c.block_top_k();
    return o;
}

PlaneGeometry Model::plane_geometry(const ModelConfig& c, PlaneType type, int32_t pages) {
    PlaneGeometry g;
    g.layers = c.count(LayerKind::qsa);
    g.pages = pages;
    g.kv_heads = c.n_kv_heads;
    g.head_dim = c.head_dim;
    g.index_dim = c.index_dim;
    g.block_tokens = c.index_block;
    g.type = type;
    return g;
}

StagingGeometry Model::staging_geometry(const ModelConfig& c, const StepLimits& l,
                                        const PlaneGeometry& planes, int32_t half_pages,
                                        const Ops& ops) {
    StagingGeometry g;
    g.planes = planes;
    g.arena = arena_shape(half_pages, planes.pages, l.rows, l.seqs);
    g.state_bytes = ops.attend_state_bytes(l.rows, c.n_heads, c.head_dim);
    g.rows = l.rows;
    g.top = c.block_top_k();
    return g;
}

StateGeometry Model::state_geometry(const ModelConfig& c, int32_t slots) {
    StateGeometry g;
    g.slots = slots;
    g.gdn_layers = c.count(LayerKind::gdn);
    g.v_heads = c.gdn_v_heads;
    g.k_dim = c.gdn_k_dim;
    g.v_dim = c.gdn_v_dim;
    g.conv_rows = c.conv_kernel - 1;
    g.channels = c.gdn_conv_channels();
    g.ple_layers = static_cast<int32_t>(c.ple_layers.size());
    g.ple_rows = (c.ple_conv_kernel - 1) * c.ngram_size;  // dilation = ngram_size (spec 3.7.2)
    g.ple_width = c.hc_count * c.hidden;
    return g;
}

Result<std::unique_ptr<Model>> Model::create(const ModelConfig& config, ModelWeights weights,
                                             std::vector<NgramTable> tables, Device& device,
                                             Ops& ops, Budget& budget, Budget& host_budget,
                                             const StepLimits& limits) {
    TERRACE_CHECK(tables.size() == config.ple_layers.size());
    std::unique_ptr<Model> m(new Model());
    m->config_ = config;
    m->weights_ = std::move(weights);
    m->tables_ = std::move(tables);
    m->ops_ = &ops;
    m->limits_ = limits;
    m->b_ = std::make_unique<StepBuffers>();
    StepBuffers& b = *m->b_;
    TERRACE_ASSIGN(b.memory, allocate_charged(device, budget, Role::activations,
                                              activation_bytes(config, limits), MemSpace::device,
                                              Fill::unspecified,
                                              fmt::format("activations of {} rows", limits.rows)));
    TERRACE_ASSIGN(b.logit_memory,
                   allocate_charged(device, budget, Role::logits, logit_bytes(config, limits),
                                    MemSpace::device, Fill::unspecified,
                                    fmt::format("logits of {} rows", limits.logit_rows)));
    carve(b, b.memory.buffer.device_pointer(), config, limits);
    b.logits = b.logit_memory.buffer.span<float>();
    TERRACE_ASSIGN(b.staging, allocate_charged(device, host_budget, Role::staging,
                                               staging_bytes(config, limits), MemSpace::host_pinned,
                                               Fill::unspecified, "step metadata"));
    b.host_seqs.reserve(z(limits.seqs));
    b.runs.reserve(2 * z(limits.seqs));
    b.spans.reserve(2 * z(limits.seqs));
    b.staged.reserve(z(limits.seqs));
    if (!config.ple_layers.empty()) {
        b.ngram_host = {reinterpret_cast<float*>(b.staging.buffer.device_pointer() + b.meta_bytes),
                        config.ple_layers.size() * z(limits.rows) * z(config.ple_dim)};
        b.ngram_rows.resize(z(limits.rows) * z(config.ngram_heads()));
        b.window.resize(z(config.ngram_size - 1) + z(limits.rows));
    }
    return m;
}

Model::~Model() = default;

}  // namespace terrace
