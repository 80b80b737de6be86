// Planes that grow in the background: pages become usable in order, a use too early is caught, a
// refusal in the middle leaves what was granted and fails only those who need more.
// SPDX-License-Identifier: MIT
#include "tier/plane_growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/emulated_device.h"
#include "support/support.h"
#include "tier/sequence_store.h"

namespace terrace {
namespace {

using testing::HasSubstr;

PlaneGeometry geometry(int32_t pages, int32_t growth) {
    PlaneGeometry g;
    g.layers = 2;
    g.pages = pages;
    g.kv_heads = 1;
    g.head_dim = 16;
    g.index_dim = 8;
    g.kv_space = g.raw_space = MemSpace::host_pinned;
    g.growth_pages = growth;
    return g;
}

struct Rig {
    std::unique_ptr<EmulatedDevice> device = std::move(EmulatedDevice::create(1, 64 << 20)).value();
    Budget device_budget{"device memory", 0}, host{"host memory", 0};

    Result<KvPlanes> planes(int32_t pages, int32_t growth) {
        return KvPlanes::create(*device, device_budget, host, geometry(pages, growth));
    }
};

TEST(PlaneGrowth, FirstPagesAtOnceTheRestOnDemand) {
    Rig rig;
    auto planes = rig.planes(100, 8);
    ASSERT_TRUE(planes) << planes.error().message;
    EXPECT_EQ(planes->usable_pages(), 8);
    ASSERT_TRUE(planes->wait_for(8));
    EXPECT_EQ(planes->usable_pages(), 8);
    ASSERT_TRUE(planes->wait_for(9));
    EXPECT_EQ(planes->usable_pages(), 16);
    ASSERT_TRUE(planes->wait_for(100));
    EXPECT_EQ(planes->usable_pages(), 100);
}

TEST(PlaneGrowth, BackgroundReachesTheEnd) {
    Rig rig;
    auto planes = rig.planes(1000, 3);
    ASSERT_TRUE(planes) << planes.error().message;
    planes->grow_in_background();
    for (const int32_t n : {5, 500, 999, 1000}) {
        ASSERT_TRUE(planes->wait_for(n));
        EXPECT_GE(planes->usable_pages(), n);
    }
}

TEST(PlaneGrowth, EndsWithThePlanesWhileTheThreadRuns) {
    Rig rig;
    for (int i = 0; i < 20; ++i) {
        auto planes = rig.planes(2000, 1);
        ASSERT_TRUE(planes);
        planes->grow_in_background();
    }
    EXPECT_EQ(rig.host.used(), 0u);
}

TEST(PlaneGrowth, UseBeforeItsTimeIsCaught) {
    Rig rig;
    auto planes = rig.planes(100, 8);
    ASSERT_TRUE(planes);
    auto stream = std::move(rig.device->make_stream()).value();
    ASSERT_TRUE(planes->copy_page(*stream, PageId{0}, PageId{7}, 256));
    ASSERT_TRUE(stream->synchronize());
    Status late = planes->copy_page(*stream, PageId{0}, PageId{8}, 256);
    if (late) late = stream->synchronize();
    ASSERT_FALSE(late);
    EXPECT_THAT(late.error().message, HasSubstr("not usable yet"));
    while (!stream->synchronize()) {
    }
}

TEST(PlaneGrowth, RefusalAtTheStartGivesNothing) {
    for (int n = 0; n < 6; ++n) {
        Rig rig;
        rig.device->fail_allocation(n);
        const auto planes = rig.planes(100, 8);
        ASSERT_FALSE(planes) << "allocation " << n;
        EXPECT_THAT(planes.error().message, HasSubstr("made to fail"));
        EXPECT_EQ(rig.host.used() + rig.device_budget.used(), 0u) << "allocation " << n;
    }
    for (int n = 0; n < 4; ++n) {
        Rig rig;
        rig.device->fail_growth(n);
        ASSERT_FALSE(rig.planes(100, 8)) << "piece " << n;
        EXPECT_EQ(rig.host.used(), 0u);
    }
}

// Pinning stops half-way: sequences within what was granted go on, one that needs more is refused
// with the numbers and changes nothing.
TEST(PlaneGrowth, RefusalHalfWayFailsOnlyWhoNeedsMore) {
    for (const bool background : {false, true}) {
        Rig rig;
        auto planes = rig.planes(100, 8);
        ASSERT_TRUE(planes);
        StateGeometry states;
        states.slots = 4;
        auto pool = StatePool::create(*rig.device, rig.device_budget, states);
        ASSERT_TRUE(pool) << pool.error().message;
        rig.device->fail_growth(4);  // planes of the second step pass, the third fails
        if (background) planes->grow_in_background();
        auto stream = std::move(rig.device->make_stream()).value();
        SequenceStore store(std::move(*planes), std::move(*pool));
        {
            auto seq = store.create(*stream, 100);
            ASSERT_TRUE(seq) << seq.error().message;
            ASSERT_TRUE(store.reserve(*stream, *seq, 16 * kPageTokens));
            store.commit(*seq, 16 * kPageTokens);
            const int32_t free = store.pages().free_pages();
            const Status more = store.reserve(*stream, *seq, 1);
            ASSERT_FALSE(more);
            EXPECT_THAT(more.error().message,
                        HasSubstr("need 17 pages of 256 tokens, 16 could be"));
            EXPECT_EQ(store.pages().free_pages(), free);
            EXPECT_EQ(seq->block_table().size(), 16u);
        }
        auto again = store.create(*stream, 100);
        ASSERT_TRUE(again);
        EXPECT_TRUE(store.reserve(*stream, *again, 16 * kPageTokens));
        ASSERT_TRUE(stream->synchronize());
    }
}

}  // namespace
}  // namespace terrace
