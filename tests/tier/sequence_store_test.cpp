// Named edits of sequences: rollback, forks, copy on write, and errors that change nothing.
// SPDX-License-Identifier: MIT
#include "tier/sequence_store.h"

#include <gmock/gmock.h>

#include "tier/sequence_rig.h"

namespace terrace::test {
namespace {

using ::testing::HasSubstr;

#define EXPECT_SAME(rig, sequence) EXPECT_EQ((rig).difference(sequence), "")

// Passes on to a stream until `left` operations are done, then refuses.
class FailingStream final : public Stream {
  public:
    FailingStream(Stream& inner, int left) : inner_(inner), left_(left) {}
    Device& device() override { return inner_.device(); }
    Status copy(void* to, const void* from, size_t bytes) override {
        if (left_-- <= 0) return refuse();
        return inner_.copy(to, from, bytes);
    }
    Status fill(void* to, std::byte value, size_t bytes) override {
        if (left_-- <= 0) return refuse();
        return inner_.fill(to, value, bytes);
    }
    Status record(Event& e) override { return inner_.record(e); }
    Status wait(Event& e) override { return inner_.wait(e); }
    Status synchronize() override { return inner_.synchronize(); }
    Status begin_capture() override { return refuse(); }
    Result<std::unique_ptr<Graph>> end_capture() override { return refuse(); }
    Status launch(Graph&) override { return refuse(); }

  private:
    static Error refuse() { return Error{Code::io, "device lost"}; }
    Stream& inner_;
    int left_;
};

TEST(SequenceStore, TruncatingFreesThePagesBehindAndKeepsTheRows) {
    SequenceRig rig(8, 4);
    TestSequence a = must(rig.create());
    must(rig.append(a, 700));
    EXPECT_EQ(a.memory.block_table().size(), 3u);
    for (const int32_t length : {699, 513, 512, 511, 257, 256, 255, 1, 0}) {
        rig.truncate(a, length);
        EXPECT_SAME(rig, a) << length;
        EXPECT_EQ(rig.leak({&a}), "");
        EXPECT_EQ(a.memory.block_table().size(), static_cast<size_t>((length + 255) / 256));
    }
    EXPECT_EQ(rig.store().pages().free_pages(), 8);
}

// Rolled-back rows leave stale raw keys and a stale pooled row behind; the next append must replace
// the pooled row although its block was complete before.
TEST(SequenceStore, RollbackByUpToSevenTokensThenOtherTokensAtEveryPlaceOfABlock) {
    for (const int32_t base : {8, 9, 10, 11, 253, 256})
        for (int32_t back = 1; back <= 7; ++back) {
            SequenceRig rig(4, 4, PlaneType::f32);
            TestSequence a = must(rig.create());
            must(rig.append(a, base));
            must(rig.checkpoint(a));
            for (int i = 0; i < back; ++i)
                must(rig.append(a, 1));
            EXPECT_SAME(rig, a);
            must(rig.restore(a));
            EXPECT_EQ(a.memory.length(), base);
            EXPECT_SAME(rig, a);
            must(rig.append(a, 9));
            EXPECT_SAME(rig, a) << base << " back " << back;
            EXPECT_EQ(rig.leak({&a}), "");
        }
}

TEST(SequenceStore, ForkInsideABlockOrPageThenBothGoTheirOwnWays) {
    for (const int32_t length : {1, 2, 3, 4, 5, 255, 256, 257, 300, 511, 512, 513}) {
        SequenceRig rig(12, 4);
        TestSequence a = must(rig.create());
        must(rig.append(a, length));
        TestSequence b = must(rig.fork(a));
        EXPECT_SAME(rig, a);
        EXPECT_SAME(rig, b);
        // Only whole pages are shared.
        int shared = 0;
        for (const int32_t page : b.memory.block_table())
            shared += rig.store().pages().count(PageId{page}) == 2;
        EXPECT_EQ(shared, length / 256);
        for (int i = 0; i < 6; ++i) {
            must(rig.append(a, 1));
            must(rig.append(b, 3));
            EXPECT_SAME(rig, a) << length;
            EXPECT_SAME(rig, b) << length;
        }
        EXPECT_EQ(rig.leak({&a, &b}), "");
    }
}

TEST(SequenceStore, WritingIntoASharedPageCopiesItFirst) {
    SequenceRig rig(8, 4);
    TestSequence a = must(rig.create());
    must(rig.append(a, 512));
    must(rig.checkpoint(a));
    TestSequence b = must(rig.fork(a));
    // Both go back into the page that they share, to different places of a block.
    rig.truncate(a, 401);
    rig.truncate(b, 398);
    const int32_t page = a.memory.block_table()[1];
    ASSERT_EQ(b.memory.block_table()[1], page);
    must(rig.append(a, 5));
    EXPECT_NE(a.memory.block_table()[1], page);
    EXPECT_EQ(b.memory.block_table()[1], page);
    EXPECT_SAME(rig, a);
    EXPECT_SAME(rig, b);
    const int32_t free_before = rig.store().pages().free_pages();
    must(rig.append(b, 2));  // the only holder by now: in place
    EXPECT_EQ(b.memory.block_table()[1], page);
    EXPECT_EQ(rig.store().pages().free_pages(), free_before);
    EXPECT_SAME(rig, a);
    EXPECT_SAME(rig, b);
    EXPECT_EQ(a.memory.block_table()[0], b.memory.block_table()[0]);
    EXPECT_EQ(rig.leak({&a, &b}), "");
}

TEST(SequenceStore, AForkOutlivesItsOrigin) {
    SequenceRig rig(8, 4);
    TestSequence a = must(rig.create());
    must(rig.append(a, 300));
    TestSequence b = must(rig.fork(a));
    {
        const TestSequence gone = std::move(a);
    }
    EXPECT_SAME(rig, b);
    EXPECT_EQ(rig.leak({&b}), "");
    must(rig.append(b, 250));
    EXPECT_SAME(rig, b);
}

TEST(SequenceStore, ANewSequenceStartsWithClearedStateInAUsedSlot) {
    SequenceRig rig(4, 1);
    for (int i = 0; i < 3; ++i) {
        TestSequence a = must(rig.create());
        EXPECT_SAME(rig, a);
        must(rig.append(a, 3));
    }
}

TEST(SequenceStore, ANewerCheckpointReplacesTheOlderInTheSameSlot) {
    SequenceRig rig(4, 2);
    TestSequence a = must(rig.create());
    must(rig.append(a, 5));
    must(rig.checkpoint(a));
    must(rig.append(a, 5));
    must(rig.checkpoint(a));
    must(rig.append(a, 5));
    EXPECT_EQ(rig.leak({&a}), "");
    for (int i = 0; i < 2; ++i) {  // it stays after a restore
        must(rig.restore(a));
        EXPECT_EQ(a.memory.length(), 10);
        EXPECT_SAME(rig, a);
        must(rig.append(a, 2));
    }
}

TEST(SequenceStore, ACheckpointAheadOfTheLengthIsGoneForGood) {
    SequenceRig rig(4, 2);
    TestSequence a = must(rig.create());
    must(rig.append(a, 10));
    must(rig.checkpoint(a));
    rig.truncate(a, 9);
    EXPECT_FALSE(a.memory.checkpoint_length().has_value());
    must(rig.append(a, 5));  // other tokens where the checkpoint was
    const Status s = rig.store().restore(rig.stream(), a.memory);
    ASSERT_FALSE(s);
    EXPECT_EQ(s.error().code, Code::invalid_argument);
    EXPECT_THAT(s.error().message, HasSubstr("14 tokens and no checkpoint"));
    EXPECT_SAME(rig, a);
    EXPECT_EQ(rig.leak({&a}), "");
}

TEST(SequenceStore, AForkHasNoCheckpoint) {
    SequenceRig rig(4, 4);
    TestSequence a = must(rig.create());
    must(rig.append(a, 10));
    must(rig.checkpoint(a));
    TestSequence b = must(rig.fork(a));
    EXPECT_FALSE(b.memory.checkpoint_length().has_value());
    EXPECT_FALSE(rig.store().restore(rig.stream(), b.memory));
    EXPECT_SAME(rig, b);
}

TEST(SequenceStore, TooFewPagesIsAnErrorThatNamesNeedAndHaveAndChangesNothing) {
    SequenceRig rig(3, 4);
    TestSequence a = must(rig.create());
    must(rig.append(a, 300));
    const Status s = rig.append(a, 469);
    ASSERT_FALSE(s);
    EXPECT_EQ(s.error().code, Code::out_of_memory);
    EXPECT_THAT(s.error().message, HasSubstr("469 more tokens need 2 pages of 256 tokens, 1 of 3"));
    EXPECT_THAT(s.error().message, HasSubstr("--ctx"));
    EXPECT_SAME(rig, a);
    EXPECT_EQ(rig.leak({&a}), "");
    must(rig.append(a, 468));  // to the last token of the last page
    EXPECT_SAME(rig, a);
    EXPECT_FALSE(rig.append(a, 1));
    EXPECT_FALSE(rig.append(a, INT32_MAX));
    EXPECT_FALSE(rig.append(a, INT32_MAX - 800));
    EXPECT_SAME(rig, a);
}

TEST(SequenceStore, CopyOnWriteWithoutAFreePageIsAnErrorThatChangesNothing) {
    SequenceRig rig(1, 4);
    TestSequence a = must(rig.create());
    must(rig.append(a, 256));
    TestSequence b = must(rig.fork(a));
    rig.truncate(a, 100);
    EXPECT_FALSE(rig.append(a, 1));
    EXPECT_SAME(rig, a);
    EXPECT_SAME(rig, b);
    EXPECT_EQ(rig.leak({&a, &b}), "");
    {
        const TestSequence gone = std::move(b);
    }
    must(rig.append(a, 1));
    EXPECT_SAME(rig, a);
}

TEST(SequenceStore, AForkWithoutAFreePageOrSlotChangesNothing) {
    SequenceRig rig(2, 2);
    TestSequence a = must(rig.create());
    must(rig.append(a, 300));
    EXPECT_FALSE(rig.fork(a));  // no page for the partial one
    EXPECT_EQ(rig.leak({&a}), "");
    must(rig.append(a, 212));
    must(rig.checkpoint(a));
    EXPECT_FALSE(rig.fork(a).has_value());  // no slot
    EXPECT_FALSE(rig.create().has_value());
    EXPECT_EQ(rig.leak({&a}), "");
    EXPECT_SAME(rig, a);
}

TEST(SequenceStore, ReservingNothingOrLessDoesNothing) {
    SequenceRig rig(2, 2);
    TestSequence a = must(rig.create());
    must(rig.store().reserve(rig.stream(), a.memory, 0));
    must(rig.store().reserve(rig.stream(), a.memory, -5));
    EXPECT_TRUE(a.memory.block_table().empty());
    // Reserved and not used: the next reserve finds the room.
    must(rig.store().reserve(rig.stream(), a.memory, 300));
    must(rig.append(a, 300));
    EXPECT_EQ(a.memory.block_table().size(), 2u);
    EXPECT_SAME(rig, a);
}

// Whatever operation the device refuses, pages and slots are accounted for and the sequences are
// as they were.
TEST(SequenceStore, ADeviceThatRefusesACopyLeaksNothing) {
    int forks_failed = 0;
    for (int after = 0; after < 60; ++after) {
        SequenceRig rig(8, 6);
        TestSequence a = must(rig.create());
        must(rig.append(a, 512));
        TestSequence b = must(rig.fork(a));
        rig.truncate(b, 301);
        {
            FailingStream failing(rig.stream(), after);
            if (!rig.store().reserve(failing, b.memory, 1)) {
                EXPECT_SAME(rig, b);
                EXPECT_EQ(b.memory.block_table()[1], a.memory.block_table()[1]);
            }
        }
        EXPECT_EQ(rig.leak({&a, &b}), "");
        {
            FailingStream failing(rig.stream(), after);
            if (!rig.store().fork(failing, b.memory, 4)) ++forks_failed;
        }
        EXPECT_EQ(rig.leak({&a, &b}), "");
        {
            FailingStream failing(rig.stream(), after);
            EXPECT_EQ(rig.store().create(failing, 4).has_value(), after >= 5);
        }
        EXPECT_EQ(rig.leak({&a, &b}), "");
        {
            FailingStream failing(rig.stream(), after);
            if (rig.store().checkpoint(failing, a.memory))
                a.naive.checkpoint = {512, a.naive.state};
            EXPECT_EQ(a.memory.checkpoint_length().has_value(), after >= 5);
        }
        EXPECT_EQ(rig.leak({&a, &b}), "");
        EXPECT_SAME(rig, a);
        EXPECT_SAME(rig, b);
    }
    EXPECT_GT(forks_failed, 5);
    EXPECT_LT(forks_failed, 60);
}

}  // namespace
}  // namespace terrace::test
