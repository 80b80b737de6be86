// One step, assembled from sequences' next tokens and run. All vectors are sized at construction
// for the largest step: add() and run() allocate nothing. Engine thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <span>
#include <vector>

#include "engine/runtime.h"

namespace terrace {

// A sequence's memory and the tokens that are in it.
struct Sequence {
    SequenceMemory memory;
    std::vector<TokenId> tokens;  // capacity ctx from the start
};

enum class LogitRows : uint8_t { none, last, all };

class Batch {
  public:
    explicit Batch(Runtime& runtime);

    Result<Sequence> start();                         // an empty sequence
    Result<Sequence> fork(const Sequence& sequence);  // the same history, a life of its own

    void clear();
    // Appends `tokens` to the step and reserves their pages. out_of_memory: nothing has changed.
    // `sequence` must stay where it is until run().
    Status add(Sequence& sequence, std::span<const TokenId> tokens, LogitRows logits);
    int32_t rows() const { return static_cast<int32_t>(tokens_.size()); }
    int32_t room() const { return limits_.rows - rows(); }

    // Computes the step and commits it: lengths and token lists grow. After an error nothing is
    // committed, and the sequences of the step should be ended: their state may be half new.
    Status run();
    // The same, but brings only the k largest logits of each requested row to the host: a few
    // hundred bytes instead of the vocabulary. k at most kMaxCandidates.
    Status run_for_candidates(int32_t k);
    struct Candidates {
        std::span<const float> values;  // [k], descending, ties to the lower id
        std::span<const int32_t> ids;   // [k], -1 where there is no candidate
    };
    Candidates candidates(int32_t i) const;

    // Logits of the i-th requested row of the step just run, in add() order; writable scratch.
    std::span<float> logits(int32_t i);
    int32_t logit_rows() const { return static_cast<int32_t>(logit_rows_.size()); }

  private:
    Status compute();
    void commit();

    Runtime& runtime_;
    StepLimits limits_;
    std::vector<TokenId> tokens_;
    std::vector<SeqRows> seqs_;
    std::vector<int32_t> tables_, logit_rows_;
    std::vector<std::span<const TokenId>> history_;
    std::vector<Sequence*> members_;
    int32_t k_ = 0;                // of the last run_for_candidates()
    Buffer picked_, host_picked_;  // values [rows][k], ids [rows][k], log sums; device and pinned
    Buffer host_logits_;  // [logit_rows][vocab], pinned; made by the first step that wants logits
};

}  // namespace terrace
