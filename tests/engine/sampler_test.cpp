// SPDX-License-Identifier: MIT
#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace terrace::test {
namespace {

std::vector<float> ramp() {
    return {0.0f, 1.0f, 3.0f, 3.0f, 2.0f, -1.0f};
}

TokenId sample_once(const SamplingParams& p, std::vector<float> logits) {
    Sampler s(p, static_cast<int32_t>(logits.size()), {});
    return s.sample(logits);
}

std::vector<double> frequencies(SamplingParams p, const std::vector<float>& logits, int n) {
    std::vector<double> f(logits.size());
    for (int i = 0; i < n; ++i) {
        p.seed = static_cast<uint64_t>(i);
        f[static_cast<size_t>(sample_once(p, logits))] += 1.0 / n;
    }
    return f;
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheBest) {
    SamplingParams p;
    p.temperature = 0;
    EXPECT_EQ(sample_once(p, ramp()), 2);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
    const auto logits = ramp();
    SamplingParams p;
    p.temperature = 2;
    const auto f = frequencies(p, logits, 20000);
    double sum = 0;
    for (const float l : logits)
        sum += std::exp(l / 2.0);
    for (size_t i = 0; i < logits.size(); ++i)
        EXPECT_NEAR(f[i], std::exp(logits[i] / 2.0) / sum, 0.015) << i;
}

TEST(Sampler, TopKKeepsTheKBest) {
    SamplingParams p;
    p.top_k = 2;
    const auto f = frequencies(p, ramp(), 4000);
    EXPECT_NEAR(f[2], 0.5, 0.03);
    EXPECT_NEAR(f[3], 0.5, 0.03);
    EXPECT_EQ(f[4], 0);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
    SamplingParams p;
    p.top_p = 0.45f;  // the best has 0.41 of the mass, the two best 0.82
    const auto f = frequencies(p, ramp(), 4000);
    EXPECT_GT(f[2], 0.4);
    EXPECT_GT(f[3], 0.4);
    EXPECT_EQ(f[4] + f[1] + f[0] + f[5], 0);
    p.top_p = 1e-6f;  // never empty
    EXPECT_NEAR(frequencies(p, ramp(), 100)[2], 1, 1e-9);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
    SamplingParams p;
    p.min_p = 0.3f;  // exp(-1) = 0.37 stays, exp(-2) = 0.14 goes
    const auto f = frequencies(p, ramp(), 4000);
    EXPECT_GT(f[4], 0.1);
    EXPECT_EQ(f[1] + f[0] + f[5], 0);
}

TEST(Sampler, PenaltiesAndBiasMoveTheChoice) {
    SamplingParams p;
    p.temperature = 0;
    p.frequency_penalty = 0.75f;
    p.presence_penalty = 0.5f;
    Sampler s(p, 6, {});
    std::vector<TokenId> ids;
    for (int i = 0; i < 5; ++i) {
        auto logits = ramp();
        ids.push_back(s.sample(logits));
    }
    // 3.0 -> 1.75 after one use; then 3; then the 2.0 of token 4; then 2 and 3 again at 1.75.
    EXPECT_EQ(ids, (std::vector<TokenId>{2, 3, 4, 2, 3}));

    SamplingParams r;
    r.temperature = 0;
    r.repetition_penalty = 2;
    const std::vector<TokenId> prompt{2, 3};
    Sampler seen(r, 6, prompt);
    auto logits = ramp();
    EXPECT_EQ(seen.sample(logits), 4);  // 3 / 2 < 2

    SamplingParams b;
    b.temperature = 0;
    b.logit_bias = {{5, 100.0f}, {2, -INFINITY}};
    EXPECT_EQ(sample_once(b, ramp()), 5);
    SamplingParams ban;
    ban.logit_bias = {{2, -INFINITY}, {3, -INFINITY}};
    const auto f = frequencies(ban, ramp(), 2000);
    EXPECT_EQ(f[2] + f[3], 0);
}

TEST(Sampler, SeedAndIndexAloneDecideADraw) {
    SamplingParams p;
    p.seed = 42;
    Sampler a(p, 6, {}), b(p, 6, {});
    int different_from_next_seed = 0;
    p.seed = 43;
    Sampler c(p, 6, {});
    for (int i = 0; i < 64; ++i) {
        auto x = ramp(), y = ramp(), z = ramp();
        const TokenId first = a.sample(x);
        EXPECT_EQ(first, b.sample(y));
        different_from_next_seed += first != c.sample(z);
    }
    EXPECT_GT(different_from_next_seed, 10);
}

TEST(Sampler, NotANumberIsNeverChosen) {
    SamplingParams p;
    const auto f = frequencies(p, {NAN, 1.0f, -INFINITY}, 50);
    EXPECT_NEAR(f[1], 1, 1e-9);
    EXPECT_EQ(sample_once(p, {NAN, NAN}), 0);  // nothing to choose from is still an answer
}

TEST(Sampler, RangesAreChecked) {
    const auto message = [](auto change) {
        SamplingParams p;
        change(p);
        const Status s = check(p, 10);
        return s ? std::string() : s.error().message;
    };
    EXPECT_EQ(message([](auto&) {}), "");
    EXPECT_THAT(message([](auto& p) { p.temperature = -1; }),
                testing::HasSubstr("temperature is -1"));
    EXPECT_NE(message([](auto& p) { p.temperature = NAN; }), "");
    EXPECT_NE(message([](auto& p) { p.top_k = -1; }), "");
    EXPECT_NE(message([](auto& p) { p.top_p = 0; }), "");
    EXPECT_NE(message([](auto& p) { p.min_p = 1; }), "");
    EXPECT_NE(message([](auto& p) { p.repetition_penalty = 0; }), "");
    EXPECT_THAT(message([](auto& p) { p.logit_bias[10] = 1; }), testing::HasSubstr("token 10"));
}

TEST(Sampler, LogprobsAreThoseOfTheSoftmax) {
    const auto top = top_logprobs(ramp(), 4, 2);
    double sum = 0;
    for (const float l : ramp())
        sum += std::exp(static_cast<double>(l));
    ASSERT_EQ(top.size(), 3u);
    EXPECT_EQ(top[0].token, 4);
    EXPECT_NEAR(top[0].logprob, 2 - std::log(sum), 1e-5);
    EXPECT_EQ(top[1].token, 2);
    EXPECT_EQ(top[2].token, 3);
}

}  // namespace
}  // namespace terrace::test
