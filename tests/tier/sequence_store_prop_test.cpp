// The sequence store as a state machine: any order of create, append, fork, truncate, checkpoint,
// restore and free, against sequences that share nothing. After every operation every live sequence
// reads back exactly its own rows, no page or slot is lost, and an error has changed nothing.
// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "tier/sequence_rig.h"

namespace terrace::test {
namespace {

enum Kind { create, append_few, append_many, fork, back_few, back_many, save, load, end };
constexpr Kind kWeighted[] = {create,     append_few,  append_few,  append_few, append_few,
                              append_few, append_many, append_many, fork,       fork,
                              back_few,   back_few,    back_many,   save,       save,
                              load,       load,        end};
constexpr int kKinds = static_cast<int>(std::size(kWeighted));

using Step = std::tuple<int, int, int>;  // which of kWeighted, which sequence, how many

class Machine {
  public:
    Machine(int32_t pages, int32_t slots, PlaneType type) : rig_(pages, slots, type) {}

    void step(const Step& step) {
        const auto [kind, pick, amount] = step;
        const Kind what = kWeighted[kind];
        if (what != create && live_.empty()) return;
        TestSequence* s =
            live_.empty() ? nullptr : live_[static_cast<size_t>(pick) % live_.size()].get();
        const auto before = tables();
        bool failed = false;
        switch (what) {
            case create:
                failed = !add(rig_.create(), free_slots() > 0);
                break;
            case append_few:
            case append_many: {
                // Half of the long ones end at a page's border: what is full can be shared.
                const int32_t n = what == append_few ? 1 + amount % 9
                                  : amount % 2 == 0  ? 1 + amount % 400
                                                     : 256 - s->memory.length() % 256;
                const bool room = pages_needed(before, *s, n) <= free_pages(before);
                const Status r = rig_.append(*s, n);
                failed = !r;
                RC_ASSERT(r.has_value() == room);
                RC_ASSERT(r.has_value() || r.error().code == Code::out_of_memory);
                break;
            }
            case fork: {
                const bool page = s->memory.length() % 256 == 0 || free_pages(before) > 0;
                failed = !add(rig_.fork(*s), free_slots() > 0 && page);
                break;
            }
            case back_few:
                rig_.truncate(*s, std::max(0, s->memory.length() - 1 - amount % 7));
                break;
            case back_many:
                rig_.truncate(*s, amount % (s->memory.length() + 1));
                break;
            case save: {
                const bool room = s->naive.checkpoint || free_slots() > 0;
                const Status r = rig_.checkpoint(*s);
                failed = !r;
                RC_ASSERT(r.has_value() == room);
                break;
            }
            case load: {
                const bool has = s->naive.checkpoint.has_value();
                const Status r = rig_.restore(*s);
                failed = !r;
                RC_ASSERT(r.has_value() == has);
                break;
            }
            case end:
                live_.erase(live_.begin() +
                            static_cast<int64_t>(pick) % static_cast<int64_t>(live_.size()));
                break;
        }
        if (failed) RC_ASSERT(tables() == before);
        check();
    }

  private:
    using Tables = std::vector<std::vector<int32_t>>;

    template <class R>
    bool add(R r, bool expected) {
        RC_ASSERT(r.has_value() == expected);
        if (r) live_.push_back(std::make_unique<TestSequence>(std::move(*r)));
        return r.has_value();
    }
    Tables tables() const {
        Tables out;
        for (const auto& s : live_)
            out.push_back(s->memory.block_table());
        return out;
    }
    int free_slots() { return rig_.store().states().free_slots(); }
    // Counted from the tables alone.
    int free_pages(const Tables& tables) {
        std::set<int32_t> used;
        for (const auto& table : tables)
            used.insert(table.begin(), table.end());
        return rig_.store().pages().capacity() - static_cast<int>(used.size());
    }
    // New pages of n more tokens, and one to copy when the next token's page is in another table.
    int pages_needed(const Tables& tables, const TestSequence& s, int32_t n) {
        const int32_t length = s.memory.length(), have = (length + 255) / 256;
        const int32_t more = (length + n + 255) / 256 - have;
        if (length % 256 == 0) return more;
        const int32_t page = s.memory.block_table()[static_cast<size_t>(have - 1)];
        int holders = 0;
        for (const auto& table : tables)
            holders += std::find(table.begin(), table.end(), page) != table.end();
        return more + (holders > 1 ? 1 : 0);
    }
    void check() {
        std::vector<const TestSequence*> all;
        for (const auto& s : live_) {
            RC_ASSERT(rig_.difference(*s) == "");
            all.push_back(s.get());
        }
        RC_ASSERT(rig_.leak(all) == "");
    }

    SequenceRig rig_;
    std::vector<std::unique_ptr<TestSequence>> live_;
};

void run(PlaneType type) {
    const int32_t pages = *rc::gen::inRange(1, 11);
    const int32_t slots = *rc::gen::inRange(1, 9);
    // Three times the usual length, up to 300 steps: sharing a page and then going back into it
    // takes several edits in the right order.
    const auto steps = *rc::gen::scale(
        3, rc::gen::container<std::vector<Step>>(rc::gen::tuple(
               rc::gen::inRange(0, kKinds), rc::gen::inRange(0, 64), rc::gen::inRange(0, 4000))));
    Machine machine(pages, slots, type);
    for (const Step& step : steps)
        machine.step(step);
}

RC_GTEST_PROP(SequenceStoreProperty, EverySequenceReadsBackItsOwnRowsOfF16Planes, ()) {
    run(PlaneType::f16);
}

RC_GTEST_PROP(SequenceStoreProperty, EverySequenceReadsBackItsOwnRowsOfF32Planes, ()) {
    run(PlaneType::f32);
}

}  // namespace
}  // namespace terrace::test
