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
namespace {
// First element of a row in [rows][width].
size_t at(int32_t row, int32_t width) {
    return static_cast<size_t>(row) * static_cast<size_t>(width);
}
}  // namespace

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
    if (staged_) {
        prepare.staged = staging_->rows(index, 0);
        TERRACE_TRY(staging_->before_rows_are_written(stream, index));
    }
    TERRACE_TRY(ops_->qsa_prepare(stream, prepare));

    QsaPoolArgs pool;
    pool.step = step_;
    pool.index = prepare.index;
    pool.norm = w.index_k_norm;
    pool.rope = prepare.rope;
    pool.eps = prepare.eps;
    TERRACE_TRY(ops_->qsa_pool(stream, pool));
    TERRACE_TRY(attention(stream, store, layer_index, index));
    return linear(stream, b.mixed, {{&w.out, b.y}});
}

// Selection and attention, slab by slab of the score buffer. Staged rows whose history comes in
// several passes are all selected first, since a pass serves all of them.
Status Model::attention(Stream& stream, const SequenceStore& store, LayerIx layer_index,
                        int32_t index) {
    StepBuffers& b = *b_;
    const RowSource kv = store.planes().rows(index);
    const int32_t top = config_.block_top_k();
    const bool sparse = max_visible_ > top, several = staged_ && staging_->passes() > 1;
    IndexScoresArgs scores;
    scores.step = step_;
    scores.iq = b.iq;
    scores.index = store.planes().index(index);
    scores.scores = b.scores;
    scores.stride = b.max_blocks;
    scores.index_heads = config_.index_heads;
    SelectBlocksArgs select;
    select.step = step_;
    select.scores = b.scores;
    select.stride = b.max_blocks;
    select.top = top;
    select.block_tokens = config_.index_block;
    AttendArgs attend;
    attend.step = step_;
    attend.q = b.q;
    attend.qg = b.wide;
    attend.out = b.mixed;
    attend.heads = config_.n_heads;
    attend.top = top;
    attend.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    const bool decode = step_.n_rows == list_rows_ && step_.n_seqs == list_rows_;
    const auto lists = static_cast<size_t>(list_rows_) * static_cast<size_t>(top);
    bool waited = false;
    MirrorCall mirror_call = MirrorCall::first_of_step;
    for (const RowSpan& span : b.spans) {
        const int32_t end = span.row0 + span.n_rows;
        for (int32_t row = span.row0; row < end; row += b.slab_rows) {
            const int32_t rows = std::min(b.slab_rows, end - row);
            const bool staged = span.reach == Reach::staged, later = staged && several;
            if (sparse) {
                scores.first_row = select.first_row = row;
                scores.rows = select.rows = rows;
                select.blocks = later ? staging_->blocks().from(at(row, top)) : b.blocks;
                select.counts = later ? staging_->counts().from(at(row, 1)) : b.counts;
                TERRACE_TRY(ops_->index_scores(stream, scores));
                TERRACE_TRY(ops_->select_blocks(stream, select));
                if (observer_)
                    observer_->selected(layer_index, row, rows, top, select.blocks, select.counts);
                attend.blocks = decode && !lists_.empty()
                                    ? lists_.sub(static_cast<size_t>(index) * lists, lists)
                                    : DevSpan<const int32_t>(select.blocks);
                attend.counts = select.counts;
            }
            if (later) continue;
            if (staged && !waited) {
                TERRACE_TRY(staging_->before_pass(stream, index, 0));
                waited = true;
            }
            attend.kv = staged ? staging_->rows(index, 0) : kv;
            attend.first_row = row;
            attend.rows = rows;
            TERRACE_TRY(resolve(stream, store, attend, index, mirror_call));
            TERRACE_TRY(ops_->attend(stream, attend));
        }
    }
    if (!staged_) return {};
    if (!several) return staging_->after_pass(stream, index, 0);
    const int32_t page_blocks = kPageTokens / config_.index_block, passes = staging_->passes();
    for (int32_t pass = 0; pass < passes; ++pass) {
        TERRACE_TRY(staging_->before_pass(stream, index, pass));
        attend.kv = staging_->rows(index, pass);
        attend.from_block = staging_->begin_page(pass) * page_blocks;
        attend.end_block = pass + 1 < passes ? staging_->end_page(pass) * page_blocks : kLastPass;
        for (const RowSpan& span : b.spans) {
            if (span.reach == Reach::direct) continue;
            attend.first_row = span.row0;
            attend.rows = span.n_rows;
            if (sparse) {
                attend.blocks = staging_->blocks().from(at(span.row0, top));
                attend.counts = staging_->counts().from(at(span.row0, 1));
            }
            const size_t row_state = ops_->attend_state_bytes(1, attend.heads, config_.head_dim);
            attend.state =
                staging_->state().sub(at(span.row0, 1) * row_state, at(span.n_rows, 1) * row_state);
            TERRACE_TRY(ops_->attend(stream, attend));
        }
        TERRACE_TRY(staging_->after_pass(stream, index, pass));
    }
    return {};
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
        args.kv =
            store.planes().rows(index);  // the mirror's own view, whatever the rows read through
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
