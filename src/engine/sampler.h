// From logits to a token. One Sampler per sequence: it counts what was generated. The random number
// of a token is a function of (seed, index of the token) alone, so that a result does not depend on
// batch mates or on what else was sampled. All scratch is taken at construction. Engine thread
// only.
//
// Order: bias, penalties, (greedy: arg max, ties to the lower id), temperature, top-k, top-p,
// min-p, draw. Candidates are ordered by logit, ties by lower id.
// SPDX-License-Identifier: MIT
#pragma once
#include <span>
#include <vector>

#include "engine/options.h"

namespace terrace {

// Checks ranges; the error names the parameter, its value and what is allowed.
Status check(const SamplingParams& params, int32_t vocab);

class Sampler {
  public:
    Sampler(const SamplingParams& params, int32_t vocab, std::span<const TokenId> prompt);

    // The next token; `logits` [vocab] is changed in place. Remembers the token.
    TokenId sample(std::span<float> logits);

    // How many of the largest logits are enough to sample from (1 when greedy, top_k otherwise); 0
    // when the whole row is needed: penalties, biases, no top_k, or more than kMaxCandidates.
    int32_t enough() const;
    // The same token from the enough() largest logits, descending, ties to the lower id; places
    // without a candidate hold id -1.
    TokenId sample(std::span<const float> values, std::span<const int32_t> ids);
    int32_t generated() const { return generated_; }

  private:
    struct Candidate {
        float logit;
        TokenId id;
    };
    void penalise(std::span<float> logits) const;
    TokenId draw(size_t n) const;  // from the first n candidates, sorted
    TokenId remember(TokenId token);

    SamplingParams params_;
    std::vector<Candidate> candidates_;     // [vocab] capacity
    std::vector<int32_t> generated_count_;  // [vocab], empty without penalties
    std::vector<uint8_t> seen_;             // [vocab], empty without a repetition penalty
    int32_t generated_ = 0;
};

// log softmax of `logits` for `token` and the n largest others. [0] is the token.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, TokenId token, int32_t n);

}  // namespace terrace
