// SPDX-License-Identifier: MIT
#include "sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace terrace {

void add_sampling_flags(FlagSet& flags, SamplingOptions& o) {
    flags.heading("Sampling (default \"model\": as generation_config.json says)");
    flags.integer("max-tokens", o.max_tokens, 1, INT32_MAX, "Tokens to generate at most");
    flags.real("temperature", o.temperature, "model", "0: always the most likely token");
    flags.integer("top-k", o.top_k, 0, INT32_MAX, "Only the K most likely tokens; 0: off").preset =
        "model";
    flags.real("top-p", o.top_p, "model", "Only the most likely tokens that make up this share");
    flags.real("min-p", o.min_p, "model",
               "Only tokens with this share of the best one's probability");
    flags.real("repetition-penalty", o.repetition_penalty, "model",
               "Factor against tokens seen before; 1: off");
    flags.real("presence-penalty", o.presence_penalty, "0", "Against tokens generated before");
    flags.real("frequency-penalty", o.frequency_penalty, "0",
               "Against tokens generated before, per occurrence");
    flags.text("logit-bias", "ID:X,..", o.logit_bias, "Added to the logits of these tokens");
    flags.number64("seed", o.seed, "Of the random numbers").preset = "random";
    flags.toggle("greedy", o.greedy, "The same as --temperature 0");
    flags.texts("stop", "STR", o.stop, "End before this text; may be repeated");
    flags.toggle("ignore-eos", o.ignore_eos, "Go on after the model's end tokens");
    flags.clash("greedy", "temperature");
    flags.rule([&o]() -> Status {
        TERRACE_TRY(parse_logit_bias(o.logit_bias));
        return {};
    });
}

Result<std::map<TokenId, float>> parse_logit_bias(const std::string& text) {
    std::map<TokenId, float> bias;
    for (size_t at = 0; at < text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        const std::string pair = text.substr(at, comma - at);
        const size_t colon = pair.find(':');
        const auto id = parse_integer(pair.substr(0, colon), 0, INT32_MAX);
        const auto value =
            colon == std::string::npos ? parse_real("") : parse_real(pair.substr(colon + 1));
        if (!id || !value)
            return Error{
                Code::invalid_argument,
                fmt::format("--logit-bias has \"{}\": need ID:VALUE, such as 13:-2.5", pair)};
        if (!bias.emplace(static_cast<TokenId>(*id), static_cast<float>(*value)).second)
            return Error{Code::invalid_argument,
                         fmt::format("--logit-bias names token {} twice", *id)};
        at = comma + 1;
    }
    return bias;
}

SamplingParams sampling_params(const SamplingOptions& o, const GenerationConfig& g) {
    const auto or_model = [](const std::optional<float>& flag, const std::optional<double>& model,
                             float off) {
        return flag ? *flag : model ? static_cast<float>(*model) : off;
    };
    SamplingParams p;
    if (o.greedy)
        p.temperature = 0;
    else if (o.temperature)
        p.temperature = *o.temperature;
    else
        p.temperature = g.do_sample ? static_cast<float>(g.temperature.value_or(1.0)) : 0.0f;
    p.top_k = o.top_k >= 0 ? o.top_k : g.top_k.value_or(0);
    p.top_p = or_model(o.top_p, g.top_p, 1);
    p.min_p = or_model(o.min_p, g.min_p, 0);
    p.repetition_penalty = or_model(o.repetition_penalty, g.repetition_penalty, 1);
    p.presence_penalty = o.presence_penalty.value_or(0);
    p.frequency_penalty = o.frequency_penalty.value_or(0);
    if (auto bias = parse_logit_bias(o.logit_bias)) p.logit_bias = std::move(*bias);
    // 32 bits are enough variety, and short enough to type.
    p.seed = o.seed ? *o.seed : std::random_device{}();
    return p;
}

Request request_of(const SamplingOptions& o, const GenerationConfig& g) {
    Request r;
    r.sampling = sampling_params(o, g);
    r.max_tokens = o.max_tokens;
    r.stop_strings = o.stop;
    r.ignore_eos = o.ignore_eos;
    return r;
}

}  // namespace terrace
