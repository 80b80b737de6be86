// One step, top to bottom: metadata to the device, n-gram rows, layers, head.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/buffers.h"

namespace terrace {

DevSpan<const float> Model::logits() const {
    return b_->logits;
}

int64_t Model::ngram_rows_read() const {
    int64_t sum = 0;
    for (const NgramTable& t : tables_)
        sum += t.rows_read();
    return sum;
}

Rope Model::rope() const {
    return Rope{config_.rotary_dims, static_cast<float>(config_.rope_theta)};
}

Status Model::linear(Stream& stream, DevSpan<const float> x,
                     std::initializer_list<std::pair<const LinearWeight*, DevSpan<float>>> jobs) {
    LinearArgs args;
    args.x = x;
    args.rows = step_.n_rows;
    args.runs = step_.runs;
    for (const auto& [weight, y] : jobs) {
        args.x_stride = weight->in;
        args.jobs[args.n_jobs++] = LinearJob{weight, y, weight->out};
    }
    return ops_->linear(stream, args);
}

Status Model::upload(Stream& stream, const StepInput& in) {
    StepBuffers& b = *b_;
    const auto rows = static_cast<int32_t>(in.tokens.size());
    TERRACE_CHECK(rows >= 1 && rows <= limits_.rows);
    TERRACE_CHECK(!in.seqs.empty() && static_cast<int32_t>(in.seqs.size()) <= limits_.seqs);
    TERRACE_CHECK(static_cast<int32_t>(in.logit_rows.size()) <= limits_.logit_rows);
    TERRACE_CHECK(in.block_tables.size() <= b.block_tables.size());
    std::byte* const base = b.memory.buffer.device_pointer();
    std::byte* const host = b.staging.buffer.device_pointer();
    const auto put = [&](auto span, const auto* from, size_t n) {
        std::byte* to = host + (reinterpret_cast<std::byte*>(span.device_pointer()) - base);
        if (n > 0) std::memcpy(to, from, n * sizeof(*from));
        return static_cast<size_t>(to - host) + n * sizeof(*from);
    };
    auto* row_seq = reinterpret_cast<int32_t*>(
        host + (reinterpret_cast<std::byte*>(b.row_seq.device_pointer()) - base));
    int32_t next = 0;
    max_visible_ = 0;
    for (size_t s = 0; s < in.seqs.size(); ++s) {
        const SeqRows& seq = in.seqs[s];
        TERRACE_CHECK(seq.row0 == next && seq.n_rows >= 1);
        TERRACE_CHECK(seq.pos0 + seq.n_rows <= limits_.max_tokens);
        TERRACE_CHECK(seq.n_pages * kPageTokens >= seq.pos0 + seq.n_rows);
        next += seq.n_rows;
        std::fill_n(row_seq + seq.row0, seq.n_rows, static_cast<int32_t>(s));
        max_visible_ = std::max(max_visible_, (seq.pos0 + seq.n_rows) / config_.index_block);
    }
    TERRACE_CHECK(next == rows);
    put(b.seqs, in.seqs.data(), in.seqs.size());
    put(b.tokens, in.tokens.data(), in.tokens.size());
    put(b.logit_rows, in.logit_rows.data(), in.logit_rows.size());
    const size_t used = put(b.block_tables, in.block_tables.data(), in.block_tables.size());
    TERRACE_TRY(stream.copy(base, host, used));
    b.host_seqs.assign(in.seqs.begin(), in.seqs.end());
    row_runs(in.seqs, b.runs);
    step_.n_rows = rows;
    step_.n_seqs = static_cast<int32_t>(in.seqs.size());
    step_.seqs = b.seqs;
    step_.block_tables = b.block_tables;
    step_.row_seq = b.row_seq;
    step_.host_seqs = b.host_seqs.data();
    step_.runs = {b.runs.data(), static_cast<int32_t>(b.runs.size())};
    return {};
}

// Before the layers, because ids are known and the rows may come from a disk.
Status Model::gather_ngrams(Stream& stream, const StepInput& in) {
    StepBuffers& b = *b_;
    const auto heads = static_cast<size_t>(config_.ngram_heads());
    const auto context = static_cast<size_t>(config_.ngram_size - 1);
    for (size_t p = 0; p < tables_.size(); ++p) {
        for (size_t s = 0; s < in.seqs.size(); ++s) {
            const auto past = in.history[s].last(std::min(in.history[s].size(), context));
            const auto row0 = static_cast<size_t>(in.seqs[s].row0);
            const auto n = static_cast<size_t>(in.seqs[s].n_rows);
            const auto now = std::copy(past.begin(), past.end(), b.window.begin());
            std::copy_n(in.tokens.begin() + static_cast<int64_t>(row0), n, now);
            for (size_t r = 0; r < n; ++r) {
                const size_t end = past.size() + r + 1;
                const size_t begin = end - std::min(end, context + 1);
                tables_[p].hash().rows({b.window.data() + begin, end - begin},
                                       &b.ngram_rows[(row0 + r) * heads]);
            }
        }
        const size_t rows = in.tokens.size(), width = static_cast<size_t>(config_.ple_dim);
        const size_t at = p * static_cast<size_t>(limits_.rows) * width;
        float* host = b.ngram_host.device_pointer() + at;
        TERRACE_TRY(tables_[p].gather({b.ngram_rows.data(), rows * heads}, host));
        TERRACE_TRY(stream.copy(b.ngram.device_pointer() + at, host, rows * width * sizeof(float)));
    }
    return {};
}

Status Model::ple(Stream& stream, const SequenceStore& store, const LayerWeights& layer,
                  int32_t index) {
    StepBuffers& b = *b_;
    const PleWeights& w = *layer.ple;
    const DevSpan<const float> e =
        b.ngram.from(static_cast<size_t>(index) * static_cast<size_t>(limits_.rows) *
                     static_cast<size_t>(config_.ple_dim));
    TERRACE_TRY(linear(stream, e, {{&w.key, b.wide}, {&w.value, b.y}}));
    PleInjectArgs args;
    args.step = step_;
    args.h = b.h;
    args.key = b.wide;
    args.value = b.y;
    args.norm_key = w.norm_key;
    args.norm_query = w.norm_query;
    args.norm_conv = w.norm_conv;
    args.conv = w.conv;
    args.state = store.states().ple(index);
    args.streams = config_.hc_count;
    args.hidden = config_.hidden;
    args.kernel = config_.ple_conv_kernel;
    args.dilation = config_.ngram_size;
    args.eps = static_cast<float>(config_.rms_eps);
    return ops_->ple_inject(stream, args);
}

Status Model::forward(Stream& stream, const SequenceStore& store, const StepInput& in) {
    for (const TokenId t : in.tokens)
        if (t < 0 || t >= config_.vocab)
            return Error{
                Code::invalid_argument,
                fmt::format("token id {} is outside the vocabulary 0..{}", t, config_.vocab - 1)};
    if (observer_) observer_->begin(in);
    TERRACE_TRY(upload(stream, in));
    TERRACE_TRY(gather_ngrams(stream, in));
    staged_ = false;
    b_->spans.assign(1, {0, step_.n_rows, Reach::direct});
    // One row a sequence, each wanting its logits: the steady state of decoding.
    const bool steady =
        in.tokens.size() == in.seqs.size() && in.logit_rows.size() == in.seqs.size();
    if (steady && graphs_ == Graphs::on && !observer_ && stream.device().has_graphs())
        return replay(stream, store, in);
    TERRACE_TRY(plan_gathering(stream, store, in));
    return run_layers(stream, store, static_cast<int32_t>(in.logit_rows.size()));
}

// Which rows read by way of the arena: the prefilled ones of sequences where that pays. After the
// step's own copies to the device, which would queue behind those of the history.
Status Model::plan_gathering(Stream& stream, const SequenceStore& store, const StepInput& in) {
    StepBuffers& b = *b_;
    b.staged.clear();
    b.spans.clear();
    const auto add = [&](int32_t row0, int32_t n, Reach reach) {
        if (n == 0) return;
        if (!b.spans.empty() && b.spans.back().reach == reach)
            b.spans.back().n_rows += n;
        else
            b.spans.push_back({row0, n, reach});
    };
    const int64_t top_tokens = int64_t{config_.block_top_k()} * config_.index_block;
    for (const SeqRows& s : in.seqs) {
        const int32_t decoded = decoded_rows(s.n_rows), prefilled = s.n_rows - decoded;
        const Reach reach = staging_ && worth_staging({prefilled, s.pos0, top_tokens})
                                ? Reach::staged
                                : Reach::direct;
        if (reach == Reach::staged)
            b.staged.push_back(
                {s.pos0, s.n_rows, &in.block_tables[static_cast<size_t>(s.table_offset)]});
        add(s.row0, prefilled, reach);
        add(s.row0 + prefilled, decoded, Reach::direct);
    }
    if (!b.staged.empty()) {
        TERRACE_ASSIGN(staged_, staging_->begin(stream, store.planes(), b.staged));
    }
    if (!staged_) b.spans.assign(1, {0, step_.n_rows, Reach::direct});
    return {};
}

// A shape's first step runs eagerly, which loads its kernels; its second is captured.
Status Model::replay(Stream& stream, const SequenceStore& store, const StepInput& in) {
    const Shape shape{step_.n_rows, max_visible_ > config_.block_top_k()};
    const auto found = captured_.find(shape);
    if (found == captured_.end()) {
        captured_.emplace(shape, nullptr);
        return run_layers(stream, store, static_cast<int32_t>(in.logit_rows.size()));
    }
    if (!found->second) {
        TERRACE_TRY(stream.begin_capture());
        const Status recorded =
            run_layers(stream, store, static_cast<int32_t>(in.logit_rows.size()));
        auto graph = stream.end_capture();  // also when recording failed: the stream must leave it
        TERRACE_TRY(recorded);
        TERRACE_ASSIGN(found->second, std::move(graph));
    }
    ++replays_;
    return stream.launch(*found->second);
}

Status Model::run_layers(Stream& stream, const SequenceStore& store, int32_t logit_rows) {
    StepBuffers& b = *b_;
    EmbedArgs embed;
    embed.tokens = b.tokens;
    embed.table = weights_.embed;
    embed.h = b.h;
    embed.rows = step_.n_rows;
    embed.streams = config_.hc_count;
    embed.hidden = config_.hidden;
    TERRACE_TRY(ops_->embed(stream, embed));

    HyperReadArgs read;
    read.h = b.h;
    read.x = b.x;
    read.rows = step_.n_rows;
    read.streams = config_.hc_count;
    read.hidden = config_.hidden;
    read.rank = config_.hc_rank;
    read.runs = step_.runs;
    read.eps = static_cast<float>(config_.rms_eps);
    // What half a layer computed is added to the streams by the next read, unless something looks at
    // them in between.
    bool unwritten = false;
    size_t turn = 0;  // which of inj belongs to y
    const auto write = [&]() -> Status {
        if (!unwritten) return {};
        unwritten = false;
        return ops_->hyper_write(
            stream, {b.h, b.y, b.inj[turn], step_.n_rows, config_.hc_count, config_.hidden});
    };
    const auto read_for = [&](const HyperWeights& weights) -> Status {
        read.weights = &weights;
        read.add_y = read.add_inj = {};
        if (unwritten) {
            read.add_y = b.y;
            read.add_inj = b.inj[turn];
            turn = 1 - turn;
        }
        read.inj = b.inj[turn];
        unwritten = true;
        return ops_->hyper_read(stream, read);
    };

    int32_t n_gdn = 0, n_qsa = 0, n_ple = 0;
    for (int32_t i = 0; i < config_.n_layers; ++i) {
        const LayerWeights& layer = weights_.layers[static_cast<size_t>(i)];
        if (layer.ple) {
            TERRACE_TRY(write());
            TERRACE_TRY(ple(stream, store, layer, n_ple++));
        }
        TERRACE_TRY(read_for(layer.attn_hyper));
        if (layer.kind == LayerKind::gdn)
            TERRACE_TRY(gdn_layer(stream, store, layer, n_gdn++));
        else
            TERRACE_TRY(qsa_layer(stream, store, layer, LayerIx{i}, n_qsa++));
        TERRACE_TRY(read_for(layer.mlp_hyper));
        TERRACE_TRY(moe_layer(stream, layer, LayerIx{i}));
        if (observer_) {
            TERRACE_TRY(write());
            observer_->after_layer(LayerIx{i}, step_.n_rows, b.h);
        }
    }
    if (logit_rows == 0) return {};
    TERRACE_TRY(write());

    GatherRowsArgs gather;
    gather.in = b.h;
    gather.rows = b.logit_rows;
    gather.out = b.tail_h;
    gather.n = logit_rows;
    gather.width = config_.hc_count * config_.hidden;
    TERRACE_TRY(ops_->gather_rows(stream, gather));
    read.weights = &weights_.mixer;
    read.h = b.tail_h;
    read.x = b.tail_x;
    read.inj = {};
    read.add_y = read.add_inj = {};
    read.rows = gather.n;
    // Logits are always computed as decoded rows, so that asking for more of them changes no bit.
    const RowRun tail{0, gather.n, RowKind::decode};
    read.runs = {&tail, 1};
    TERRACE_TRY(ops_->hyper_read(stream, read));
    LinearArgs head;
    head.runs = read.runs;
    head.x = b.tail_x;
    head.x_stride = config_.hidden;
    head.rows = gather.n;
    head.n_jobs = 1;
    head.jobs[0] = LinearJob{&weights_.head, b.logits, config_.vocab};
    return ops_->linear(stream, head);
}

}  // namespace terrace
