// When rows are staged, in which passes and places: pure functions.
// SPDX-License-Identifier: MIT
#include "tier/staging_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "device/planes.h"
#include "support/support.h"

namespace terrace::test {
namespace {

TEST(Staging, PaysWhereGatheringReadsMoreThanTwiceTheHistory) {
    EXPECT_TRUE(worth_staging({2048, 262'144, 2048}));
    EXPECT_FALSE(worth_staging({2048, 1 << 21, 2048}));  // 4 M tokens gathered, twice 2 M
    EXPECT_TRUE(worth_staging({2048, (1 << 21) - 1, 2048}));
    EXPECT_FALSE(worth_staging({64, 262'144, 2048}));
    EXPECT_TRUE(worth_staging({64, 1000, 2048}));  // rows see 1064 tokens
    EXPECT_TRUE(worth_staging({64, 0, 2048}));     // own pages alone
    EXPECT_FALSE(worth_staging({0, 1000, 2048}));  // decoded rows only
    EXPECT_FALSE(worth_staging({2, 1000, 900}));
}

TEST(Staging, ArenaHasRoomForOwnPagesAndTablesForItsPasses) {
    const ArenaShape all = arena_shape(5000, 4100, 2052, 4);
    EXPECT_EQ(all.half_pages, 4100);
    EXPECT_EQ(all.most_passes, 1);
    EXPECT_EQ(all.own_pages, 8 + 8);
    EXPECT_EQ(arena_shape(1024, 4100, 2052, 4).most_passes, 5);
    EXPECT_EQ(arena_shape(1, 4100, 2052, 4).most_passes, kMostPasses);
    EXPECT_EQ(arena_shape(0, 4100, 2052, 4).pages(), 0);
}

// Physical pages of sequences in a random order; the first `shared` of each are those of the first.
struct Tables {
    std::vector<std::vector<int32_t>> pages;
    int32_t pool = 0;
};
Tables make_tables(const std::vector<int32_t>& lengths, int32_t shared, Random& random) {
    Tables t;
    for (const int32_t n : lengths)
        t.pool += n + 2;
    std::vector<int32_t> free(static_cast<size_t>(t.pool));
    for (size_t i = 0; i < free.size(); ++i)
        free[i] = static_cast<int32_t>(i);
    for (size_t i = free.size(); i > 1; --i)
        std::swap(free[i - 1], free[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    for (const int32_t n : lengths) {
        std::vector<int32_t> table;
        for (int32_t j = 0; j < n; ++j) {
            if (!t.pages.empty() && j < shared && j < static_cast<int32_t>(t.pages[0].size())) {
                table.push_back(t.pages[0][static_cast<size_t>(j)]);
                continue;
            }
            table.push_back(free.back());
            free.pop_back();
        }
        t.pages.push_back(std::move(table));
    }
    return t;
}

// What a step must keep to, whatever it is: every history page copied once, in the pass of its
// logical page, own pages never; tables say where things are.
void check_plan(const StagingPlan& plan, const ArenaShape& shape,
                const std::vector<StagedSeq>& seqs) {
    std::set<int32_t> own, history;
    for (const StagedSeq& s : seqs)
        for (int32_t j = 0; j * kPageTokens < s.pos0 + s.n_rows; ++j)
            (j < s.pos0 / kPageTokens ? history : own).insert(s.table[j]);
    std::map<int32_t, int32_t> pass_of;
    for (int32_t pass = 0; pass < plan.passes(); ++pass) {
        int32_t in_pass = 0;
        for (const StagingPlan::Run& r : plan.runs(pass))
            for (int32_t i = 0; i < r.pages; ++i) {
                EXPECT_TRUE(pass_of.emplace(r.page + i, pass).second) << "copied twice";
                EXPECT_EQ(r.place + i, in_pass++);
            }
        EXPECT_LE(in_pass, shape.half_pages);
        for (int32_t parity = 0; parity < 2; ++parity) {
            std::vector<int32_t> table(static_cast<size_t>(shape.pool_pages), -7);
            plan.fill_table(pass, parity, table);
            std::set<int32_t> places;
            const int32_t half = plan.half(parity, pass);
            for (int32_t page = 0; page < shape.pool_pages; ++page) {
                const int32_t place = table[static_cast<size_t>(page)];
                if (place < 0) {
                    EXPECT_EQ(own.count(page), 0u);
                    continue;
                }
                EXPECT_TRUE(places.insert(place).second) << "two pages in one place";
                EXPECT_LT(place, shape.pages());
                if (own.count(page)) {
                    const int32_t region = 2 * shape.half_pages + parity * shape.own_pages;
                    EXPECT_GE(place, region);
                    EXPECT_LT(place, region + shape.own_pages);
                } else {
                    EXPECT_EQ(pass_of.at(page), pass);
                    EXPECT_EQ(place / shape.half_pages, half);
                }
            }
        }
        EXPECT_EQ(plan.begin(pass), pass == 0 ? 0 : plan.end(pass - 1));
    }
    EXPECT_EQ(pass_of.size(), history.size());
    for (const StagedSeq& s : seqs)
        for (int32_t j = 0; j < s.pos0 / kPageTokens; ++j) {
            const int32_t pass = pass_of.at(s.table[j]);
            EXPECT_GE(j, plan.begin(pass));
            EXPECT_LT(j, plan.end(pass));
        }
}

TEST(Staging, EveryHistoryPageIsCopiedOnceAndOwnPagesNever) {
    Random random(5);
    int made = 0, several = 0;
    for (int round = 0; round < 400; ++round) {
        std::vector<int32_t> lengths, pos, rows;
        const auto n = static_cast<int32_t>(1 + random.below(4));
        const auto common = static_cast<int32_t>(random.below(8));
        for (int32_t s = 0; s < n; ++s) {
            pos.push_back(static_cast<int32_t>(random.below(16 * kPageTokens)));
            rows.push_back(static_cast<int32_t>(1 + random.below(600)));
            lengths.push_back((pos.back() + rows.back() - 1) / kPageTokens + 1);
        }
        int32_t shared = common;  // own pages are never shared
        for (const int32_t p : pos)
            shared = std::min(shared, p / kPageTokens);
        const Tables tables = make_tables(lengths, shared, random);
        std::vector<StagedSeq> seqs;
        for (size_t s = 0; s < pos.size(); ++s)
            seqs.push_back({pos[s], rows[s], tables.pages[s].data()});
        const auto half = static_cast<int32_t>(1 + random.below(20));
        const ArenaShape shape = arena_shape(half, tables.pool, 2400, n);
        StagingPlan plan(shape);
        if (!plan.make(seqs)) {
            EXPECT_LT(half, n) << "an arena that takes a page of every sequence takes all";
            continue;
        }
        ++made;
        several += plan.passes() > 1;
        check_plan(plan, shape, seqs);
        ASSERT_TRUE(plan.make({seqs.data(), 1}));  // a plan is used again
        check_plan(plan, shape, {seqs[0]});
    }
    EXPECT_GT(made, 300);
    EXPECT_GT(several, 100);
}

TEST(Staging, NeighbouringPagesAreOneCopy) {
    const int32_t table[] = {4, 5, 6, 9, 8, 7, 0};
    const ArenaShape shape = arena_shape(16, 10, 600, 1);
    StagingPlan plan(shape);
    const StagedSeq seq{6 * kPageTokens + 17, 64, table};
    ASSERT_TRUE(plan.make({&seq, 1}));
    ASSERT_EQ(plan.passes(), 1);
    ASSERT_EQ(plan.runs(0).size(), 1u);
    EXPECT_EQ(plan.runs(0)[0].page, 4);
    EXPECT_EQ(plan.runs(0)[0].pages, 6);
    ASSERT_EQ(plan.heads().size(), 1u);
    EXPECT_EQ(plan.heads()[0].page, 0);
    EXPECT_EQ(plan.heads()[0].tokens, 17);
}

// Items in a row go to one half and the other, also where a layer has an odd number of passes.
TEST(Staging, ItemsInARowAlternateBetweenTheHalves) {
    std::vector<int32_t> table(12);
    for (size_t i = 0; i < table.size(); ++i)
        table[i] = static_cast<int32_t>(i);
    for (const int32_t half : {1, 2, 3, 4, 12}) {
        StagingPlan plan(arena_shape(half, 12, 600, 1));
        const StagedSeq seq{9 * kPageTokens, 64, table.data()};
        ASSERT_TRUE(plan.make({&seq, 1}));
        EXPECT_EQ(plan.passes(), (9 + half - 1) / half);
        for (int32_t item = 0; item < 5 * plan.passes(); ++item) {
            const int32_t layer = item / plan.passes(), pass = item % plan.passes();
            EXPECT_EQ(plan.half(layer, pass), item % 2);
            // The table of a layer is that of its parity.
            EXPECT_EQ(plan.half(layer, pass), plan.half(layer % 2, pass));
        }
    }
}

TEST(Staging, AStepWithoutHistoryHasOnePassOfNothing) {
    const int32_t table[] = {3, 1};
    StagingPlan plan(arena_shape(1, 4, 600, 1));
    const StagedSeq seq{0, 400, table};
    ASSERT_TRUE(plan.make({&seq, 1}));
    EXPECT_EQ(plan.passes(), 1);
    EXPECT_TRUE(plan.runs(0).empty());
    EXPECT_TRUE(plan.heads().empty());
}

}  // namespace
}  // namespace terrace::test
