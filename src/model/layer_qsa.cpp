// Sparse-attention layer (model spec 3.4): projections, planes, selection, attention, output.
// Whether a row is sparse depends on its own position alone: up to `top` complete blocks it attends
// to everything, which is what selecting everything would give, bit for bit.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <utility>

#include "model/buffers.h"
#include "ops/mirror_args.h"

namespace terrace {

Status Model::qsa_layer(Stream& stream, const SequenceStore& store, const LayerWeights& layer,
                        LayerIx layer_index, int32_t index) {
    StepBuffers& b = *b_;
    const QsaWeights& w = layer.qsa;
    TERRACE_TRY(
        linear(stream, b.x, {{&w.q, b.wide}, {&w.k, b.k}, {&w.v, b.v}, {&w.index_qk, b.ix}}));

    QsaPrepareArgs prepare;
    prepare.step = step_;
    prepare.qg = b.wide;
    prepare.k = b.k;
    prepare.v = b.v;
    prepare.ix = b.ix;
    prepare.q_norm = w.q_norm;
    prepare.k_norm = w.k_norm;
    prepare.index_q_norm = w.index_q_norm;
    prepare.q = b.q;
    prepare.iq = b.iq;
    prepare.kv = store.planes().rows(index);
    prepare.index = store.planes().index(index);
    prepare.rope = rope();
    prepare.heads = config_.n_heads;
    prepare.index_heads = config_.index_heads;
    prepare.eps = static_cast<float>(config_.rms_eps);
    TERRACE_TRY(ops_->qsa_prepare(stream, prepare));

    QsaPoolArgs pool;
    pool.step = step_;
    pool.index = prepare.index;
    pool.norm = w.index_k_norm;
    pool.rope = prepare.rope;
    pool.eps = prepare.eps;
    TERRACE_TRY(ops_->qsa_pool(stream, pool));

    const int32_t top = config_.block_top_k();
    const bool sparse = max_visible_ > top;
    IndexScoresArgs scores;
    scores.step = step_;
    scores.iq = b.iq;
    scores.index = prepare.index;
    scores.scores = b.scores;
    scores.stride = b.max_blocks;
    scores.index_heads = config_.index_heads;
    SelectBlocksArgs select;
    select.step = step_;
    select.scores = b.scores;
    select.stride = b.max_blocks;
    select.blocks = b.blocks;
    select.counts = b.counts;
    select.top = top;
    select.block_tokens = config_.index_block;
    AttendArgs attend;
    attend.step = step_;
    attend.q = b.q;
    attend.qg = b.wide;
    attend.kv = prepare.kv;
    attend.out = b.mixed;
    attend.heads = config_.n_heads;
    attend.top = top;
    attend.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    if (sparse) {
        attend.blocks = b.blocks;
        attend.counts = b.counts;
        const bool decode = step_.n_rows == list_rows_ && step_.n_seqs == list_rows_;
        const auto lists = static_cast<size_t>(list_rows_) * static_cast<size_t>(top);
        if (decode && !lists_.empty())
            attend.blocks = lists_.sub(static_cast<size_t>(index) * lists, lists);
    }
    MirrorCall mirror_call = MirrorCall::first_of_step;
    for (int32_t row = 0; row < step_.n_rows; row += b.slab_rows) {
        const int32_t rows = std::min(b.slab_rows, step_.n_rows - row);
        if (sparse) {
            scores.first_row = select.first_row = row;
            scores.rows = select.rows = rows;
            TERRACE_TRY(ops_->index_scores(stream, scores));
            TERRACE_TRY(ops_->select_blocks(stream, select));
            if (observer_) observer_->selected(layer_index, row, rows, top, b.blocks, b.counts);
        }
        attend.first_row = row;
        attend.rows = rows;
        TERRACE_TRY(resolve(stream, store, attend, index, mirror_call));
        TERRACE_TRY(ops_->attend(stream, attend));
    }
    return linear(stream, b.mixed, {{&w.out, b.y}});
}

// The decoded rows of an attention call bring their blocks to the mirror, if there is one.
Status Model::resolve(Stream& stream, const SequenceStore& store, const AttendArgs& attend,
                      int32_t index, MirrorCall& call) {
    const KvMirror* const mirror = store.planes().mirror();
    if (!mirror) return {};
    for (int32_t i = 0; i < step_.runs.n; ++i) {
        const RowRun& run = step_.runs.data[i];
        const int32_t first = std::max(run.row0, attend.first_row);
        const int32_t end = std::min(run.row0 + run.n_rows, attend.first_row + attend.rows);
        if (run.kind != RowKind::decode || first >= end) continue;
        ResolveBlocksArgs args;
        args.step = step_;
        args.kv = attend.kv;
        args.mirror = mirror->tables(index);
        args.first_row = first;
        args.rows = end - first;
        args.top = attend.top;
        args.call = std::exchange(call, MirrorCall::later);
        const auto skip = static_cast<size_t>(first - attend.first_row);
        if (!attend.counts.empty()) {
            args.blocks = attend.blocks.from(skip * static_cast<size_t>(attend.top));
            args.counts = attend.counts.from(skip);
        }
        TERRACE_TRY(ops_->resolve_blocks(stream, args));
    }
    return {};
}

}  // namespace terrace
