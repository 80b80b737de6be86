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

    // Logits of the i-th requested row of the step just run, in add() order; writable scratch.
    std::span<float> logits(int32_t i);
    int32_t logit_rows() const { return static_cast<int32_t>(logit_rows_.size()); }

  private:
    Runtime& runtime_;
    StepLimits limits_;
    std::vector<TokenId> tokens_;
    std::vector<SeqRows> seqs_;
    std::vector<int32_t> tables_, logit_rows_;
    std::vector<std::span<const TokenId>> history_;
    std::vector<Sequence*> members_;
    Buffer host_logits_;  // [logit_rows][vocab], pinned; made by the first step that wants logits
};

}  // namespace terrace
