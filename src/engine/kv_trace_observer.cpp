// SPDX-License-Identifier: MIT
#include "engine/kv_trace_observer.h"

#include <algorithm>

#include "model/buffers.h"

namespace terrace {

KvTraceObserver::KvTraceObserver(KvTraceWriter writer, Stream& stream, const ModelConfig& config)
    : writer_(std::move(writer)), stream_(&stream), block_tokens_(config.index_block) {
    int32_t next = 0;
    for (const LayerKind kind : config.layer_kinds)
        sparse_index_.push_back(kind == LayerKind::qsa ? next++ : -1);
}

void KvTraceObserver::begin(const StepInput& in) {
    ++step_;
    tables_.assign(in.block_tables.begin(), in.block_tables.end());
    rows_.clear();
    for (const SeqRows& seq : in.seqs)
        for (int32_t i = 0; i < seq.n_rows; ++i)
            rows_.push_back({static_cast<uint32_t>(seq.slot), static_cast<uint32_t>(seq.pos0 + i),
                             tables_.data() + seq.table_offset, RowKind::prefill});
    std::vector<RowRun> runs;
    row_runs(in.seqs, runs);
    for (const RowRun& run : runs)
        for (int32_t r = run.row0; r < run.row0 + run.n_rows; ++r)
            rows_[static_cast<size_t>(r)].kind = run.kind;
}

void KvTraceObserver::selected(LayerIx layer, int32_t first_row, int32_t rows, int32_t top,
                               DevSpan<const int32_t> blocks, DevSpan<const int32_t> counts) {
    const auto n = static_cast<size_t>(rows), width = static_cast<size_t>(top);
    const auto first = rows_.begin() + first_row;
    if (std::none_of(first, first + rows, [](const Row& r) { return r.kind == RowKind::decode; }))
        return;
    blocks_.resize(n * width);
    counts_.resize(n);
    const auto fetch = [&]() -> Status {
        TERRACE_TRY(stream_->copy(blocks_.data(), blocks.device_pointer(),
                                  blocks_.size() * sizeof(int32_t)));
        TERRACE_TRY(stream_->copy(counts_.data(), counts.device_pointer(),
                                  counts_.size() * sizeof(int32_t)));
        return stream_->synchronize();
    };
    if (const Status s = fetch(); !s) {
        status_ = s;
        return;
    }
    for (size_t r = 0; r < n; ++r) {
        const Row& row = *(first + static_cast<int64_t>(r));
        const int32_t end = static_cast<int32_t>(row.position) + 1, complete = end / block_tokens_;
        if (row.kind != RowKind::decode || complete <= top) continue;
        record_.step = step_;
        record_.layer = static_cast<uint32_t>(sparse_index_[static_cast<size_t>(ix(layer))]);
        record_.sequence = row.sequence;
        record_.position = row.position;
        record_.blocks.clear();
        const auto add = [&](int32_t block) {
            const int32_t pos = block * block_tokens_;
            record_.blocks.push_back(
                static_cast<uint32_t>(row.table[pos / kPageTokens] * (kPageTokens / block_tokens_) +
                                      pos % kPageTokens / block_tokens_));
        };
        for (int32_t i = 0; i < counts_[r]; ++i)
            add(blocks_[r * width + static_cast<size_t>(i)]);
        if (end % block_tokens_ != 0) add(complete);
        writer_.add(record_);
    }
}

Status KvTraceObserver::close() {
    TERRACE_TRY(status_);
    return writer_.close();
}

}  // namespace terrace
