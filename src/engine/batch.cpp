// SPDX-License-Identifier: MIT
#include "engine/batch.h"

#include <fmt/format.h>

namespace terrace {
namespace {
constexpr size_t z(int64_t v) {
    return static_cast<size_t>(v);
}
}  // namespace

Batch::Batch(Runtime& runtime) : runtime_(runtime), limits_(runtime.model().limits()) {
    const size_t pages = z((limits_.max_tokens + kPageTokens - 1) / kPageTokens + 1);
    tokens_.reserve(z(limits_.rows));
    seqs_.reserve(z(limits_.seqs));
    tables_.reserve(z(limits_.seqs) * pages);
    logit_rows_.reserve(z(limits_.logit_rows));
    history_.reserve(z(limits_.seqs));
    members_.reserve(z(limits_.seqs));
}

Result<Sequence> Batch::start() {
    TERRACE_ASSIGN(
        SequenceMemory memory,
        runtime_.store().create(runtime_.stream(), limits_.max_tokens / kPageTokens + 1));
    Sequence s{std::move(memory), {}};
    s.tokens.reserve(z(limits_.max_tokens));
    return s;
}

Result<Sequence> Batch::fork(const Sequence& from) {
    TERRACE_ASSIGN(SequenceMemory memory,
                   runtime_.store().fork(runtime_.stream(), from.memory,
                                         limits_.max_tokens / kPageTokens + 1));
    Sequence s{std::move(memory), {}};
    s.tokens.reserve(z(limits_.max_tokens));
    s.tokens.assign(from.tokens.begin(), from.tokens.end());
    return s;
}

void Batch::clear() {
    tokens_.clear();
    seqs_.clear();
    tables_.clear();
    logit_rows_.clear();
    history_.clear();
    members_.clear();
}

Status Batch::add(Sequence& s, std::span<const TokenId> tokens, LogitRows logits) {
    const auto n = static_cast<int32_t>(tokens.size());
    TERRACE_CHECK(n >= 1 && n <= room() && members_.size() < z(limits_.seqs));
    if (s.memory.length() + n > limits_.max_tokens)
        return Error{
            Code::invalid_argument,
            fmt::format("context: the sequence has {} tokens, {} more exceed --ctx {}: raise "
                        "--ctx or shorten the prompt",
                        s.memory.length(), n, limits_.max_tokens)};
    TERRACE_TRY(runtime_.store().reserve(runtime_.stream(), s.memory, n));
    SeqRows r;
    r.row0 = rows();
    r.n_rows = n;
    r.pos0 = s.memory.length();
    r.table_offset = static_cast<int32_t>(tables_.size());
    r.n_pages = static_cast<int32_t>(s.memory.block_table().size());
    r.slot = ix(s.memory.slot());
    if (logits != LogitRows::none)
        for (int32_t i = logits == LogitRows::all ? 0 : n - 1; i < n; ++i)
            logit_rows_.push_back(r.row0 + i);
    TERRACE_CHECK(logit_rows_.size() <= z(limits_.logit_rows));
    seqs_.push_back(r);
    tables_.insert(tables_.end(), s.memory.block_table().begin(), s.memory.block_table().end());
    history_.emplace_back(s.tokens);
    members_.push_back(&s);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return {};
}

Status Batch::compute() {
    const StepInput input{tokens_, seqs_, tables_, history_, logit_rows_};
    return runtime_.model().forward(runtime_.stream(), runtime_.store(), input);
}

void Batch::commit() {
    for (size_t i = 0; i < members_.size(); ++i) {
        const SeqRows& r = seqs_[i];
        runtime_.store().commit(members_[i]->memory, r.n_rows);
        const auto first = tokens_.begin() + r.row0;
        members_[i]->tokens.insert(members_[i]->tokens.end(), first, first + r.n_rows);
    }
}

Status Batch::run() {
    if (members_.empty()) return {};
    Model& model = runtime_.model();
    Stream& stream = runtime_.stream();
    TERRACE_TRY(compute());
    const size_t floats = logit_rows_.size() * z(runtime_.config().vocab);
    if (floats > 0 && host_logits_.bytes() == 0) {
        TERRACE_ASSIGN(host_logits_,
                       stream.device().allocate(4 * model.logits().size(), MemSpace::host_pinned,
                                                Fill::unspecified));
    }
    TERRACE_TRY(
        stream.copy(host_logits_.device_pointer(), model.logits().device_pointer(), 4 * floats));
    TERRACE_TRY(stream.synchronize());
    commit();
    return {};
}

Status Batch::run_for_candidates(int32_t k) {
    TERRACE_CHECK(k >= 1 && k <= kMaxCandidates);
    if (members_.empty()) return {};
    Stream& stream = runtime_.stream();
    TERRACE_TRY(compute());
    const size_t rows = logit_rows_.size(), most = z(limits_.logit_rows);
    const size_t bytes = 4 * most * (2 * kMaxCandidates + 1);
    if (picked_.bytes() == 0) {
        TERRACE_ASSIGN(picked_,
                       stream.device().allocate(bytes, MemSpace::device, Fill::unspecified));
        TERRACE_ASSIGN(host_picked_,
                       stream.device().allocate(bytes, MemSpace::host_pinned, Fill::unspecified));
    }
    k_ = k;
    if (rows > 0) {
        SampleCandidatesArgs a;
        a.logits = runtime_.model().logits();
        auto* base = reinterpret_cast<float*>(picked_.device_pointer());
        a.values = {base, rows * z(k)};
        a.ids = {reinterpret_cast<int32_t*>(base + rows * z(k)), rows * z(k)};
        a.log_sum = {base + 2 * rows * z(k), rows};
        a.rows = static_cast<int32_t>(rows);
        a.vocab = runtime_.config().vocab;
        a.k = k;
        TERRACE_TRY(runtime_.sample_candidates(a));
        TERRACE_TRY(stream.copy(host_picked_.device_pointer(), picked_.device_pointer(),
                                4 * rows * (2 * z(k) + 1)));
    }
    TERRACE_TRY(stream.synchronize());
    commit();
    return {};
}

Batch::Candidates Batch::candidates(int32_t i) const {
    TERRACE_CHECK(i >= 0 && i < logit_rows());
    const auto* base = reinterpret_cast<const float*>(host_picked_.device_pointer());
    const size_t k = z(k_), rows = logit_rows_.size();
    return {{base + z(i) * k, k},
            {reinterpret_cast<const int32_t*>(base + rows * k) + z(i) * k, k}};
}

std::span<float> Batch::logits(int32_t i) {
    TERRACE_CHECK(i >= 0 && i < logit_rows());
    const size_t vocab = z(runtime_.config().vocab);
    return {reinterpret_cast<float*>(host_logits_.device_pointer()) + z(i) * vocab, vocab};
}

}  // namespace terrace
