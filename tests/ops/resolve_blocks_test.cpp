// resolve_blocks on the host: what comes to the mirror, what stays at home, who is pushed out, and
// the counters, on cases small enough to count by hand; then random ones against the promises of
// device/block_mirror.h alone.
// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>

#include "support/mirror_rig.h"

namespace terrace::test {
namespace {

using Row = MirrorRig::Row;

class ResolveBlocks : public ::testing::Test {
  protected:
    Rig rig_{make_host_device(), make_reference_ops()};
    // Two calls with nothing to ask for: the first picks spares, the second has them.
    void warm(MirrorRig& m) { m.resolve({Row{{0}, 3, {}}}); }
};

bool present(const std::vector<int32_t>& slots, int32_t number) {
    return slots[static_cast<size_t>(number)] >= 0;
}

TEST(BlockMirrorRules, SparesAreARowsWorthAndNeverMoreThanAQuarter) {
    BlockMirror m;
    for (const auto& [n, wanted] :
         {std::pair{1, 1}, std::pair{8, 1}, std::pair{64, 8}, std::pair{1024, 128},
          std::pair{8192, 528}, std::pair{32768, 2048}}) {
        m.n = n;
        EXPECT_EQ(m.spares_wanted(), wanted) << n;
        EXPECT_LE(m.spares_most(), std::max(n / 4, 2));
    }
    m.n = 8192;
    EXPECT_EQ(m.to_pick(0, 0), 528);
    EXPECT_EQ(m.to_pick(528, 0), 0);
    EXPECT_EQ(m.to_pick(528, 20), 20);
    EXPECT_EQ(m.to_pick(15, 513), 1026);
    EXPECT_EQ(m.to_pick(1000, 513), 41);
    EXPECT_EQ(m.to_pick(1056, 513), 0);
}

TEST_F(ResolveBlocks, AFirstCallReadsAtHomeAndTheNextBringsTheBlocks) {
    MirrorRig m(rig_, {}, 1);
    const Row row{{5, 2}, 300, {1, 7, 64, 70}};
    m.resolve({row});
    EXPECT_EQ(m.head().counters.at_home, 5u);  // four blocks and the tail
    m.check("first");
    m.resolve({row});
    m.check("second");
    for (const int32_t b : {1, 7, 64, 70, 75})
        EXPECT_TRUE(present(m.slots(), m.number(row, b))) << b;
    m.resolve({row});
    const MirrorCounters c = m.head().counters;
    EXPECT_EQ(c.calls, 3u);
    EXPECT_EQ(c.rows, 3u);
    EXPECT_EQ(c.entries, 15u);
    EXPECT_EQ(c.at_home, 5u);
    EXPECT_EQ(c.copied, 5u);
    EXPECT_EQ(c.hits(), 5u);
    m.check("third");
}

TEST_F(ResolveBlocks, ARowWithoutAnIncompleteBlockAsksForItsListOnly) {
    MirrorRig m(rig_, {}, 2);
    m.resolve({Row{{0}, 255, {3, 4}}});
    EXPECT_EQ(m.head().counters.entries, 2u);
}

TEST_F(ResolveBlocks, RowsThatShareABlockBringItOnce) {
    MirrorRig m(rig_, {}, 3);
    m.resolve({Row{{7}, 3, {0}}});
    // Two sequences on the same first page, the second with a page of its own.
    const Row a{{3, 1}, 511, {2, 5, 9}}, b{{3, 4}, 511, {2, 5, 100}};
    m.resolve({a, b, a});
    const MirrorCounters c = m.head().counters;
    EXPECT_EQ(c.copied, 4u);
    EXPECT_EQ(c.entries, 1u + 9u);
    EXPECT_EQ(c.hits(), 5u);
    m.check("union");
}

TEST_F(ResolveBlocks, DenseRowsAskForEveryCompleteBlockAndTheTail) {
    MirrorRig m(rig_, {}, 4);
    m.resolve({Row{{0}, 3, {}}});
    const Row row{{6}, 21, {}};
    m.resolve({row}, MirrorRig::Lists::dense);
    for (int32_t b = 0; b <= 5; ++b)
        EXPECT_TRUE(present(m.slots(), m.number(row, b))) << b;
    EXPECT_EQ(m.head().counters.copied, 6u);
}

TEST_F(ResolveBlocks, WithoutSparesBlocksStayAtHomeAndAreCounted) {
    MirrorRig m(rig_, {.slots = 16}, 5);  // two spares wanted
    m.resolve({Row{{7}, 255, {0}}});
    m.resolve({Row{{0}, 255, {1, 2, 3, 4, 5}}});
    const MirrorCounters c = m.head().counters;
    EXPECT_EQ(c.copied, 2u);
    EXPECT_EQ(c.at_home, 1u + 3u);
    m.check("exhausted");
}

TEST_F(ResolveBlocks, SparesThatNobodyNeededAreKept) {
    MirrorRig m(rig_, {.slots = 64}, 6);
    for (int i = 0; i < 20; ++i) {
        m.resolve({Row{{0}, 255, {1}}});
        m.check("call " + std::to_string(i));
        // The second call may ask for another one, as the first did.
        EXPECT_EQ(m.head().spares[(m.head().epoch + 1) % 2], i == 0 ? 8u : i == 1 ? 8u : 9u) << i;
    }
}

TEST_F(ResolveBlocks, TheLeastRecentlyUsedGoFirst) {
    MirrorRig m(rig_, {.slots = 32}, 7);  // four spares
    const auto row = [](std::vector<int32_t> blocks) { return Row{{0}, 255, std::move(blocks)}; };
    m.resolve({row({})});
    // Keep 0 and 1 in use while others come and go.
    int32_t next = 2;
    for (int i = 0; i < 40; ++i) {
        m.resolve({row({0, 1, next})});
        next = next == 63 ? 2 : next + 1;
        m.check("call " + std::to_string(i));
    }
    const auto slots = m.slots();
    EXPECT_TRUE(present(slots, m.number(row({}), 0)));
    EXPECT_TRUE(present(slots, m.number(row({}), 1)));
    EXPECT_TRUE(present(slots, m.number(row({}), next - 1)));
    EXPECT_TRUE(present(slots, m.number(row({}), next - 20)));
    EXPECT_FALSE(present(slots, m.number(row({}), next - 35)));
    EXPECT_EQ(m.head().counters.hits(), 39u * 2u);
}

TEST_F(ResolveBlocks, WhatACallAskedForIsNotPushedOutByIt) {
    MirrorRig m(rig_, {.slots = 16, .top = 16}, 8);
    Random random(9);
    for (int i = 0; i < 200; ++i) {
        const Row row{{static_cast<int32_t>(random.below(8))}, 255, some_blocks(random, 12, 64)};
        std::vector<int32_t> before;
        for (const int32_t b : row.blocks)
            if (present(m.slots(), m.number(row, b))) before.push_back(b);
        m.resolve({row});
        for (const int32_t b : before)
            EXPECT_TRUE(present(m.slots(), m.number(row, b))) << "call " << i << " block " << b;
        m.check("call " + std::to_string(i));
    }
}

TEST_F(ResolveBlocks, AForgottenPageIsAbsentAndItsSlotsComeBack) {
    MirrorRig m(rig_, {.slots = 32}, 10);
    const Row row{{2}, 255, {0, 1, 2}};
    m.resolve({row});
    m.resolve({row});
    m.rewrite_page(2);
    m.check("forgotten");
    for (int i = 0; i < 50; ++i) {
        m.resolve({Row{{3}, 255, {i % 64}}});
        m.check("after " + std::to_string(i));
    }
    // A page written behind the mirror's back is what check() is there to find.
    m.resolve({row});
    m.resolve({row});
    m.rewrite_page_behind(2);
    EXPECT_FALSE(m.contents_are_right());
}

TEST_F(ResolveBlocks, TheEpochStartsOverWithoutLosingASlot) {
    MirrorRig m(rig_, {.slots = 64}, 11);
    m.set_epoch(kLastEpoch - 6);
    Random random(12);
    for (int i = 0; i < 14; ++i) {
        m.resolve({Row{{1}, 255, some_blocks(random, 10, 64)}});
        m.check("call " + std::to_string(i));
    }
    EXPECT_LT(m.head().epoch, 20u);
    EXPECT_GT(m.head().counters.hits(), 0u);
}

TEST_F(ResolveBlocks, AMirrorLargerThanTheWindowGivesAwayAllItsSlotsInTurn) {
    const MirrorRig::Shape shape{
        .slots = 20'000, .pages = 400, .top = 512, .kv_heads = 1, .head_dim = 1};
    MirrorRig m(rig_, shape, 13);
    // 25600 blocks, all asked for in order, twice.
    for (int32_t i = 0; i < 100; ++i) {
        Row row{{}, 2047, {}};
        for (int32_t p = 0; p < 8; ++p)
            row.pages.push_back((8 * i + p) % 400);
        for (int32_t b = 0; b < 512; ++b)
            row.blocks.push_back(b);
        m.resolve({row});
    }
    m.check("all blocks");
    const auto slots = m.slots();
    EXPECT_GT(std::count_if(slots.begin(), slots.end(), [](int32_t s) { return s >= 0; }),
              20'000 - 2 * 1250 - 1);
    EXPECT_EQ(m.head().counters.at_home, 512u);
}

TEST_F(ResolveBlocks, RandomRowsPagesAndRewritesNeverShowAWrongByte) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        Random random(seed + 100);
        const int32_t sizes[] = {1, 8, 40, 300};
        MirrorRig m(rig_, {.slots = sizes[seed % 4], .pages = 6, .top = 24, .head_dim = 5}, seed);
        for (int i = 0; i < 40; ++i) {
            std::vector<Row> rows;
            for (int64_t r = random.below(5); r >= 0; --r) {
                Row row;
                row.pages = {static_cast<int32_t>(random.below(6)),
                             static_cast<int32_t>(random.below(6))};
                row.pos = static_cast<int32_t>(random.below(512));
                row.blocks =
                    some_blocks(random, static_cast<int32_t>(random.below(25)), (row.pos + 1) / 4);
                rows.push_back(std::move(row));
            }
            m.resolve(rows);
            if (random.below(5) == 0) m.rewrite_page(static_cast<int32_t>(random.below(6)));
            m.check("seed " + std::to_string(seed) + " call " + std::to_string(i));
        }
    }
}

}  // namespace
}  // namespace terrace::test
