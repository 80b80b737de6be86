// SPDX-License-Identifier: MIT
#include "model/model_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace terrace::test {

std::filesystem::path model_path(const std::string& name) {
    if (name == "demo") return std::filesystem::path(TERRACE_SOURCE_DIR) / "models" / "demo";
    return std::filesystem::path(TERRACE_TEST_DATA) / name;
}

ModelRunner::ModelRunner(const std::string& name, Ops& ops, const Options& options)
    : dir_(std::make_unique<ModelDir>(must(ModelDir::open(model_path(name))))),
      ops_(ops),
      options_(options),
      own_device_(options.device ? nullptr : make_host_device()),
      device_(options.device ? options.device : own_device_.get()) {
    const ModelConfig& c = dir_->config();
    stream_ = must(device_->make_stream());
    const int32_t pages = options.seqs * ((options.max_tokens + kPageTokens - 1) / kPageTokens);
    PlaneGeometry geometry = Model::plane_geometry(c, options.planes, pages);
    geometry.kv_space = options.kv_space;
    geometry.raw_space = options.raw_space;
    KvPlanes planes = must(KvPlanes::create(*device_, budget_, budget_, geometry));
    if (options.mirror_slots > 0)
        planes.add_mirror(
            must(KvMirror::create(*device_, *stream_, budget_, geometry, options.mirror_slots)));
    store_ = std::make_unique<SequenceStore>(
        std::move(planes),
        must(StatePool::create(*device_, budget_, Model::state_geometry(c, 2 * options.seqs))));
    ModelWeights weights = must(bind_weights(*dir_));
    EXPECT_TRUE(weights.unknown.empty()) << weights.unknown.front();
    std::vector<NgramTable> tables;
    for (const LayerWeights& layer : weights.layers)
        if (layer.ple)
            tables.push_back(must(NgramTable::open(dir_->checkpoint(), layer.ple->table_prefix, c,
                                                   static_cast<int32_t>(tables.size()),
                                                   options.ngram, budget_)));
    must(place_weights(weights, *device_, *stream_, budget_));
    StepLimits limits;
    limits.rows = options.max_rows;
    limits.seqs = options.seqs;
    limits.logit_rows = options.max_rows;
    limits.max_tokens = options.max_tokens;
    must(ops.reserve(Model::ops_limits(c, limits)));
    model_ = must(Model::create(c, std::move(weights), std::move(tables), *device_, ops, budget_,
                                budget_, limits));
    if (options.half_pages > 0) {
        const StagingGeometry staging =
            Model::staging_geometry(c, limits, geometry, options.half_pages, ops);
        staging_ = options.make_staging
                       ? options.make_staging(*device_, budget_, staging)
                       : must(KvStaging::create(*device_, budget_, budget_, staging));
        model_->stage_with(staging_.get());
    }
    if (options.observe) model_->observe(this);
}

ModelRunner::Sequence ModelRunner::start() {
    return Sequence{must(store_->create(*stream_, options_.max_tokens / kPageTokens + 1)), {}};
}

std::vector<std::vector<float>> ModelRunner::step(const std::vector<Sequence*>& seqs,
                                                  const std::vector<std::vector<TokenId>>& news) {
    std::vector<TokenId> tokens;
    std::vector<SeqRows> rows;
    std::vector<int32_t> tables, logit_rows;
    std::vector<std::span<const TokenId>> history;
    row_positions_.clear();
    for (size_t i = 0; i < seqs.size(); ++i) {
        Sequence& s = *seqs[i];
        const auto n = static_cast<int32_t>(news[i].size());
        must(store_->reserve(*stream_, s.memory, n));
        SeqRows r;
        r.row0 = static_cast<int32_t>(tokens.size());
        r.n_rows = n;
        r.pos0 = s.memory.length();
        r.table_offset = static_cast<int32_t>(tables.size());
        r.n_pages = static_cast<int32_t>(s.memory.block_table().size());
        r.slot = ix(s.memory.slot());
        rows.push_back(r);
        tables.insert(tables.end(), s.memory.block_table().begin(), s.memory.block_table().end());
        history.emplace_back(s.tokens);
        for (int32_t j = 0; j < n; ++j) {
            logit_rows.push_back(r.row0 + j);
            row_positions_.push_back(r.pos0 + j);
        }
        tokens.insert(tokens.end(), news[i].begin(), news[i].end());
    }
    must(model_->forward(*stream_, *store_, StepInput{tokens, rows, tables, history, logit_rows}));
    must(stream_->synchronize());
    std::vector<std::vector<float>> out;
    const auto vocab = static_cast<size_t>(config().vocab);
    const std::vector<float> all = download(model_->logits().sub(0, tokens.size() * vocab));
    const float* logits = all.data();
    for (size_t i = 0; i < seqs.size(); ++i) {
        const size_t n = news[i].size() * vocab;
        out.emplace_back(logits, logits + n);
        logits += n;
        store_->commit(seqs[i]->memory, static_cast<int32_t>(news[i].size()));
        seqs[i]->tokens.insert(seqs[i]->tokens.end(), news[i].begin(), news[i].end());
    }
    return out;
}

std::vector<float> ModelRunner::feed(Sequence& seq, const std::vector<TokenId>& tokens,
                                     int32_t chunk) {
    std::vector<float> all;
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(chunk)) {
        const size_t n = std::min(tokens.size() - at, static_cast<size_t>(chunk));
        const std::vector<TokenId> part(tokens.begin() + static_cast<int64_t>(at),
                                        tokens.begin() + static_cast<int64_t>(at + n));
        const auto logits = step({&seq}, {part});
        all.insert(all.end(), logits[0].begin(), logits[0].end());
    }
    return all;
}

void ModelRunner::after_layer(LayerIx layer, int32_t rows, DevSpan<const float> h) {
    const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(config().hc_count) *
                     static_cast<size_t>(config().hidden);
    hidden[ix(layer)] = download(h.sub(0, n));
}

void ModelRunner::selected(LayerIx layer, int32_t first_row, int32_t rows, int32_t top,
                           DevSpan<const int32_t> blocks, DevSpan<const int32_t> counts) {
    const auto n = static_cast<size_t>(rows);
    const auto b = download(blocks.sub(0, n * static_cast<size_t>(top)));
    const auto c = download(counts.sub(0, n));
    for (int32_t r = 0; r < rows; ++r) {
        const auto from = b.begin() + int64_t{r} * top;
        selected_blocks[ix(layer)][row_positions_[static_cast<size_t>(first_row + r)]].assign(
            from, from + c[static_cast<size_t>(r)]);
    }
}

Golden::Golden(const std::filesystem::path& file) : file_(must(SafetensorsFile::open(file))) {}

std::vector<float> Golden::floats(const std::string& name) const {
    const TensorView t = must(file_.require(name));
    TERRACE_CHECK(t.dtype == DType::f32);
    std::vector<float> out(static_cast<size_t>(t.elements()));
    std::memcpy(out.data(), t.data, t.bytes);
    return out;
}

std::vector<int32_t> Golden::ints(const std::string& name) const {
    const TensorView t = must(file_.require(name));
    TERRACE_CHECK(t.dtype == DType::i32);
    std::vector<int32_t> out(static_cast<size_t>(t.elements()));
    std::memcpy(out.data(), t.data, t.bytes);
    return out;
}

float max_abs_difference(const float* a, const float* b, size_t n) {
    float worst = 0;
    for (size_t i = 0; i < n; ++i) {
        const float d = std::fabs(a[i] - b[i]);
        if (!(d <= worst)) worst = d;  // a NaN wins
    }
    return worst;
}

double kl_divergence(const float* p, const float* q, size_t n) {
    const auto log_sum = [n](const float* x) {
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < n; ++i)
            top = std::max(top, static_cast<double>(x[i]));
        for (size_t i = 0; i < n; ++i)
            sum += std::exp(static_cast<double>(x[i]) - top);
        return top + std::log(sum);
    };
    const double lp = log_sum(p), lq = log_sum(q);
    double kl = 0;
    for (size_t i = 0; i < n; ++i) {
        const double log_p = static_cast<double>(p[i]) - lp;
        kl += std::exp(log_p) * (log_p - (static_cast<double>(q[i]) - lq));
    }
    return kl;
}

}  // namespace terrace::test
