// A row's largest logits and its mass: the reference against a full sort, the GPU against the
// reference, also for rows that its short list cannot hold.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "gpu.h"

namespace terrace::test {
namespace {

struct Case {
    std::string name;
    int vocab = 1, k = 1, rows = 1;
    float inv_temperature = 1.0f;
    std::function<float(int row, int id)> logit;
};
struct Found {
    std::vector<int32_t> ids;
    std::vector<float> values, log_sum;
};

std::vector<float> logits_of(const Case& c) {
    std::vector<float> v;
    for (int r = 0; r < c.rows; ++r)
        for (int i = 0; i < c.vocab; ++i)
            v.push_back(c.logit(r, i));
    return v;
}

Found run(Rig& rig, const Case& c) {
    const auto n = static_cast<size_t>(c.rows * c.k);
    SampleCandidatesArgs a;
    a.logits = rig.upload(logits_of(c));
    if (c.inv_temperature != 1.0f)
        a.inv_temperature =
            rig.upload(std::vector<float>(static_cast<size_t>(c.rows), c.inv_temperature));
    a.values = rig.poisoned<float>(n);
    a.ids = rig.poisoned<int32_t>(n);
    a.log_sum = rig.poisoned<float>(static_cast<size_t>(c.rows));
    a.rows = c.rows;
    a.vocab = c.vocab;
    a.k = c.k;
    OpsLimits limits;
    limits.head_rows = c.rows;
    limits.vocab = c.vocab;
    rig.reserve(limits);
    rig.call([&](Ops& ops, Stream& s) { return ops.sample_candidates(s, a); });
    Found f{rig.download(a.ids), rig.download(a.values), rig.download(a.log_sum)};
    rig.forget_buffers();
    return f;
}

std::vector<Case> cases() {
    const auto noise = [](int row, int id) {
        return case_numbers(3, static_cast<uint64_t>(row), static_cast<uint64_t>(id), 1, 4.0f)[0];
    };
    constexpr float kNone = -INFINITY;
    return {
        {"one", 1, 1, 2, 1.0f, noise},
        {"fewer than k", 50, 256, 3, 0.5f, noise},
        {"thousand", 1000, 20, 5, 1.3f, noise},
        {"real, greedy", 248320, 1, 1, 1.0f, noise},
        {"real, most", 248320, 256, 2, 0.7f, noise},
        {"coarse, ties at the end", 30000, 100, 2, 1.0f,
         [&](int r, int i) { return std::round(noise(r, i)); }},
        {"all equal", 60000, 40, 1, 1.0f, [](int, int) { return 2.5f; }},
        {"zeros of both signs", 5000, 256, 1, 1.0f,
         [](int, int i) { return i % 2 ? -0.0f : 0.0f; }},
        {"ascending", 100000, 256, 1, 0.01f,
         [](int, int i) { return 0.25f * static_cast<float>(i); }},
        {"with gaps", 4000, 30, 3, 1.0f,
         [&](int r, int i) { return i % 5 == 0   ? NAN
                                    : i % 3 == 0 ? kNone
                                                 : noise(r, i); }},
        {"few candidates", 70000, 64, 1, 1.0f,
         [&](int r, int i) { return i % 7000 == 5 ? noise(r, i)
                                    : i % 2       ? NAN
                                                  : kNone; }},
        {"none", 3000, 8, 1, 1.0f, [](int, int i) { return i % 2 ? NAN : kNone; }},
    };
}

TEST(SampleCandidates, ReferenceAgreesWithASort) {
    for (const Case& c : cases()) {
        if (c.vocab > 100000) continue;
        SCOPED_TRACE(c.name);
        const Found f = run(reference(), c);
        const std::vector<float> all = logits_of(c);
        for (int r = 0; r < c.rows; ++r) {
            const float* row = all.data() + int64_t{r} * c.vocab;
            std::vector<int32_t> order;
            for (int i = 0; i < c.vocab; ++i)
                if (row[i] > -INFINITY) order.push_back(i);
            std::stable_sort(order.begin(), order.end(),
                             [&](int x, int y) { return row[x] > row[y]; });
            for (int j = 0; j < c.k; ++j) {
                const bool there = j < static_cast<int>(order.size());
                const auto at = static_cast<size_t>(r * c.k + j);
                ASSERT_EQ(f.ids[at], there ? order[static_cast<size_t>(j)] : -1) << j;
                ASSERT_EQ(f.values[at], there ? row[f.ids[at]] : -INFINITY) << j;
            }
        }
    }
}

class CudaSampleCandidates : public GpuTest {};

TEST_F(CudaSampleCandidates, MatchReference) {
    for (const Case& c : cases()) {
        SCOPED_TRACE(c.name);
        const Found expected = run(reference(), c);
        for (int again = 0; again < 2; ++again) {  // counters must be zero afterwards
            const Found f = run(*gpu(), c);
            EXPECT_EQ(f.ids, expected.ids);
            expect_equal_bits(f.values, expected.values, c.name);
            for (size_t r = 0; r < f.log_sum.size(); ++r) {
                if (std::isinf(expected.log_sum[r]))
                    EXPECT_EQ(f.log_sum[r], expected.log_sum[r]);
                else
                    EXPECT_NEAR(f.log_sum[r], expected.log_sum[r], 1e-5);
            }
        }
    }
}

}  // namespace
}  // namespace terrace::test
