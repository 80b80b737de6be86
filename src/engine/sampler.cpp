// SPDX-License-Identifier: MIT
#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace terrace {
namespace {

// Uniform in [0, 1) from (seed, n): SplitMix64's output function on a counter (Steele, Lea, Flood
// 2014), which passes through every 64-bit value once.
double uniform(uint64_t seed, uint64_t n) {
    uint64_t v = seed * 0xD1342543DE82EF95u + (n + 1) * 0x9E3779B97F4A7C15u;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>((v ^ (v >> 31)) >> 11) * 0x1p-53;
}

Error range_error(const char* name, double value, const char* allowed) {
    return Error{Code::invalid_argument, fmt::format("{} is {}: need {}", name, value, allowed)};
}

}  // namespace

Status check(const SamplingParams& p, int32_t vocab) {
    if (!(p.temperature >= 0 && p.temperature <= 100))
        return range_error("temperature", p.temperature, "0..100");
    if (p.top_k < 0) return range_error("top_k", p.top_k, "0 (off) or more");
    if (!(p.top_p > 0 && p.top_p <= 1)) return range_error("top_p", p.top_p, "above 0, at most 1");
    if (!(p.min_p >= 0 && p.min_p < 1)) return range_error("min_p", p.min_p, "0 up to below 1");
    if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100))
        return range_error("repetition_penalty", p.repetition_penalty, "above 0, at most 100");
    if (!(std::fabs(p.presence_penalty) <= 100))
        return range_error("presence_penalty", p.presence_penalty, "-100..100");
    if (!(std::fabs(p.frequency_penalty) <= 100))
        return range_error("frequency_penalty", p.frequency_penalty, "-100..100");
    for (const auto& [id, bias] : p.logit_bias) {
        if (id < 0 || id >= vocab)
            return Error{
                Code::invalid_argument,
                fmt::format("logit_bias: token {} is outside the vocabulary 0..{}", id, vocab - 1)};
        if (std::isnan(bias)) return range_error("logit_bias", bias, "a number");
    }
    return {};
}

Sampler::Sampler(const SamplingParams& params, int32_t vocab, std::span<const TokenId> prompt)
    : params_(params) {
    const auto n = static_cast<size_t>(vocab);
    if (params.temperature > 0) candidates_.reserve(n);
    if (params.presence_penalty != 0 || params.frequency_penalty != 0) generated_count_.resize(n);
    if (params.repetition_penalty != 1) {
        seen_.resize(n);
        for (const TokenId t : prompt)
            seen_[static_cast<size_t>(t)] = 1;
    }
}

void Sampler::penalise(std::span<float> logits) const {
    for (const auto& [id, bias] : params_.logit_bias)
        logits[static_cast<size_t>(id)] += bias;
    for (size_t i = 0; i < seen_.size(); ++i)
        if (seen_[i])
            logits[i] = logits[i] > 0 ? logits[i] / params_.repetition_penalty
                                      : logits[i] * params_.repetition_penalty;
    for (size_t i = 0; i < generated_count_.size(); ++i)
        if (generated_count_[i] > 0)
            logits[i] -= params_.presence_penalty +
                         params_.frequency_penalty * static_cast<float>(generated_count_[i]);
}

TokenId Sampler::sample(std::span<float> logits) {
    penalise(logits);
    TokenId chosen = 0;
    if (params_.temperature == 0) {
        for (size_t i = 1; i < logits.size(); ++i)
            if (logits[i] > logits[static_cast<size_t>(chosen)]) chosen = static_cast<TokenId>(i);
    } else {
        const auto better = [](const Candidate& a, const Candidate& b) {
            return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
        };
        candidates_.clear();
        for (size_t i = 0; i < logits.size(); ++i)
            if (logits[i] > -INFINITY)  // NaN is no candidate either
                candidates_.push_back({logits[i], static_cast<TokenId>(i)});
        if (candidates_.empty()) candidates_.push_back({0.0f, 0});
        auto end = candidates_.end();
        if (params_.top_k > 0 && params_.top_k < static_cast<int32_t>(candidates_.size())) {
            end = candidates_.begin() + params_.top_k;
            std::nth_element(candidates_.begin(), end, candidates_.end(), better);
        }
        std::sort(candidates_.begin(), end, better);
        chosen = draw(static_cast<size_t>(end - candidates_.begin()));
    }
    return remember(chosen);
}

int32_t Sampler::enough() const {
    if (!params_.logit_bias.empty() || !seen_.empty() || !generated_count_.empty()) return 0;
    if (params_.temperature == 0) return 1;
    return params_.top_k > 0 && params_.top_k <= kMaxCandidates ? params_.top_k : 0;
}

TokenId Sampler::sample(std::span<const float> values, std::span<const int32_t> ids) {
    TERRACE_DCHECK(enough() > 0 && values.size() >= static_cast<size_t>(enough()));
    if (params_.temperature == 0) return remember(std::max(ids[0], 0));
    candidates_.clear();
    for (size_t i = 0; i < static_cast<size_t>(enough()) && ids[i] >= 0; ++i)
        candidates_.push_back({values[i], ids[i]});
    if (candidates_.empty()) candidates_.push_back({0.0f, 0});
    return remember(draw(candidates_.size()));
}

TokenId Sampler::draw(size_t n) const {
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(n);
    const double top = static_cast<double>(candidates_.front().logit);
    const auto weight = [&](const Candidate& c) {
        return std::exp((static_cast<double>(c.logit) - top) /
                        static_cast<double>(params_.temperature));
    };
    double total = 0;
    for (auto c = candidates_.begin(); c != end; ++c)
        total += weight(*c);
    double kept = 0;
    auto last = candidates_.begin();
    for (; last != end; ++last) {
        const double w = weight(*last);
        // The first candidate always stays; later ones while the mass before them is below top_p
        // and they are not below min_p of the best.
        if (last != candidates_.begin() && (kept >= static_cast<double>(params_.top_p) * total ||
                                            w < static_cast<double>(params_.min_p)))
            break;
        kept += w;
    }
    const double target = uniform(params_.seed, static_cast<uint64_t>(generated_)) * kept;
    double sum = 0;
    TokenId chosen = candidates_.front().id;
    for (auto c = candidates_.begin(); c != last; ++c) {
        sum += weight(*c);
        chosen = c->id;
        if (sum > target) break;
    }
    return chosen;
}

TokenId Sampler::remember(TokenId token) {
    ++generated_;
    if (!generated_count_.empty()) ++generated_count_[static_cast<size_t>(token)];
    if (!seen_.empty()) seen_[static_cast<size_t>(token)] = 1;
    return token;
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, TokenId token, int32_t n) {
    double top = -INFINITY, sum = 0;
    for (const float l : logits)
        top = std::max(top, static_cast<double>(l));
    for (const float l : logits)
        sum += std::exp(static_cast<double>(l) - top);
    const double log_sum = top + std::log(sum);
    const auto logprob = [&](TokenId id) {
        return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum);
    };
    std::vector<TokenId> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i)
        order[i] = static_cast<TokenId>(i);
    const auto middle = order.begin() + std::min<int64_t>(n, static_cast<int64_t>(order.size()));
    std::partial_sort(order.begin(), middle, order.end(), [&](TokenId a, TokenId b) {
        const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
    });
    std::vector<TokenLogprob> out{{token, logprob(token)}};
    for (auto i = order.begin(); i != middle; ++i)
        out.push_back({*i, logprob(*i)});
    return out;
}

}  // namespace terrace
