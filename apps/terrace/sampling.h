// The sampling flags of generate and chat. A flag that is absent leaves the choice to the model's
// generation_config.json: greedy unless that says do_sample. One thread, start-up only.
// SPDX-License-Identifier: MIT
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/options.h"
#include "flags.h"
#include "io/model_config.h"

namespace terrace {

struct SamplingOptions {
    std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty,
        frequency_penalty;
    std::optional<uint64_t> seed;
    int32_t top_k = -1;  // -1: absent
    bool greedy = false;
    std::string logit_bias;  // "ID:VALUE,ID:VALUE"
    int32_t max_tokens = 256;
    std::vector<std::string> stop;
    bool ignore_eos = false;
};

// `options` must outlive the set.
void add_sampling_flags(FlagSet& flags, SamplingOptions& options);

// Without --seed one is drawn: the caller can tell it, so that a run can be repeated.
SamplingParams sampling_params(const SamplingOptions& options, const GenerationConfig& generation);
// A request with everything but the prompt.
Request request_of(const SamplingOptions& options, const GenerationConfig& generation);

// "" is no bias. The error is a sentence that names the flag.
Result<std::map<TokenId, float>> parse_logit_bias(const std::string& text);

}  // namespace terrace
