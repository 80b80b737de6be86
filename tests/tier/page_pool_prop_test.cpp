// The page pool against a model that is only a table of counts and a stack of freed pages: any
// order of acquire, share and release.
// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <rapidcheck/state.h>

#include <numeric>

#include "tier/page_pool.h"

namespace terrace::test {
namespace {

struct PoolModel {
    std::vector<int> counts;
    std::vector<int> freed;  // last freed at the back
    int held() const {
        return static_cast<int>(
            std::count_if(counts.begin(), counts.end(), [](int c) { return c > 0; }));
    }
    // The pick-th page that is held.
    int nth_held(int pick) const {
        int left = pick % held();
        for (size_t p = 0;; ++p)
            if (counts[p] > 0 && left-- == 0) return static_cast<int>(p);
    }
};

using PoolCommand = rc::state::Command<PoolModel, PagePool>;

void same(const PoolModel& model, const PagePool& pool) {
    RC_ASSERT(pool.free_pages() == pool.capacity() - model.held());
    for (size_t p = 0; p < model.counts.size(); ++p)
        RC_ASSERT(pool.count(PageId{static_cast<int32_t>(p)}) == model.counts[p]);
}

// The page comes from the implementation, so the model takes a freed one or the first untouched
// one, which is what the pool promises.
struct Acquire : PoolCommand {
    void apply(PoolModel& m) const override {
        if (!m.freed.empty()) {
            m.counts[static_cast<size_t>(m.freed.back())] = 1;
            m.freed.pop_back();
        } else if (m.held() < static_cast<int>(m.counts.size())) {
            *std::find(m.counts.begin(), m.counts.end(), 0) = 1;
        }
    }
    void run(const PoolModel& m, PagePool& pool) const override {
        const bool full = m.held() == static_cast<int>(m.counts.size());
        const auto page = pool.acquire();
        RC_ASSERT(page.has_value() == !full);
        RC_ASSERT(full == (!page && page.error().code == Code::out_of_memory));
        same(nextState(m), pool);
    }
    void show(std::ostream& os) const override { os << "acquire"; }
};

struct Share : PoolCommand {
    int pick = *rc::gen::inRange(0, 1000);
    void checkPreconditions(const PoolModel& m) const override { RC_PRE(m.held() > 0); }
    void apply(PoolModel& m) const override { ++m.counts[static_cast<size_t>(m.nth_held(pick))]; }
    void run(const PoolModel& m, PagePool& pool) const override {
        pool.share(PageId{m.nth_held(pick)});
        same(nextState(m), pool);
    }
    void show(std::ostream& os) const override { os << "share " << pick; }
};

struct Release : PoolCommand {
    int pick = *rc::gen::inRange(0, 1000);
    void checkPreconditions(const PoolModel& m) const override { RC_PRE(m.held() > 0); }
    void apply(PoolModel& m) const override {
        const int page = m.nth_held(pick);
        if (--m.counts[static_cast<size_t>(page)] == 0) m.freed.push_back(page);
    }
    void run(const PoolModel& m, PagePool& pool) const override {
        pool.release(PageId{m.nth_held(pick)});
        same(nextState(m), pool);
    }
    void show(std::ostream& os) const override { os << "release " << pick; }
};

RC_GTEST_PROP(PagePoolProperty, AnyOrderOfCommandsKeepsTheCountsOfTheModel, ()) {
    const int32_t capacity = *rc::gen::inRange(1, 9);
    PoolModel model;
    model.counts.assign(static_cast<size_t>(capacity), 0);
    PagePool pool(capacity);
    rc::state::check(model, pool, rc::state::gen::execOneOfWithArgs<Acquire, Share, Release>());
}

}  // namespace
}  // namespace terrace::test
