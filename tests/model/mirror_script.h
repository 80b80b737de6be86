// A stretch of work for a model with a mirror of its K/V planes: prompts in pieces, decoding alone
// and together, rollback, forks, writes into a shared page, pages of ended sequences taken again. Its
// logits must not depend on the mirror. Test thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include "model/model_runner.h"

namespace terrace::test {

inline std::vector<float> mirror_script(ModelRunner& run, int32_t prompt, int32_t steps) {
    Random random(31);
    const auto tokens = [&](int32_t n) {
        std::vector<TokenId> out;
        for (int32_t i = 0; i < n; ++i)
            out.push_back(static_cast<TokenId>(3 + random.below(500)));
        return out;
    };
    std::vector<float> all;
    const auto keep = [&](const std::vector<std::vector<float>>& logits) {
        for (const auto& l : logits)
            all.insert(all.end(), l.begin(), l.end());
    };
    const auto decode = [&](const std::vector<ModelRunner::Sequence*>& seqs, int32_t n) {
        for (int32_t i = 0; i < n; ++i) {
            std::vector<std::vector<TokenId>> news;
            for (size_t s = 0; s < seqs.size(); ++s)
                news.push_back(tokens(1));
            keep(run.step(seqs, news));
        }
    };
    auto a = run.start();
    keep({run.feed(a, tokens(prompt), 128)});
    {
        auto gone = run.start();
        keep({run.feed(gone, tokens(70), 64)});
        decode({&a, &gone}, steps);
    }
    // Its pages go to this one.
    auto b = run.start();
    keep({run.feed(b, tokens(90), 64)});
    decode({&b}, steps);
    // Rollback: the same places get other K and V.
    must(run.store().checkpoint(run.stream(), a.memory));
    decode({&a}, 6);
    must(run.store().restore(run.stream(), a.memory));
    a.tokens.resize(static_cast<size_t>(a.memory.length()));
    decode({&a, &b}, steps);
    {
        auto gone = run.start();
        keep({run.feed(gone, tokens(200), 128)});
        decode({&gone}, steps);
    }
    // A fork copies the last page, to the one just freed, whose blocks are in the mirror, and shares the others; a writer into a shared page copies it.
    ModelRunner::Sequence c{must(run.store().fork(run.stream(), a.memory, 16)), a.tokens};
    decode({&a, &c}, steps);
    // Rows of both kinds in one step.
    keep(run.step({&a, &b}, {tokens(1), tokens(70)}));
    decode({&a, &b, &c}, steps);
    // Drafts of several rows.
    keep(run.step({&c, &a}, {tokens(5), tokens(1)}));
    return all;
}

}  // namespace terrace::test
