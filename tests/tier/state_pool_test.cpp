// Slots of recurrent state: acquire and release, and that clear and copy reach all of a slot's
// bytes in every layer and none of another slot's.
// SPDX-License-Identifier: MIT
#include "tier/state_pool.h"

#include <gmock/gmock.h>

#include <set>

#include "support/support.h"

namespace terrace::test {
namespace {

StateGeometry small_geometry() {
    StateGeometry g;
    g.slots = 3;
    g.gdn_layers = 2;
    g.v_heads = 2;
    g.k_dim = 3;
    g.v_dim = 5;
    g.conv_rows = 3;
    g.channels = 7;
    g.ple_layers = 2;
    g.ple_rows = 9;
    g.ple_width = 4;
    return g;
}

struct Rig {
    std::unique_ptr<Device> device = make_host_device();
    std::unique_ptr<Stream> stream = must(device->make_stream());
    Budget budget{"host memory", 0};
    StatePool pool = must(StatePool::create(*device, budget, small_geometry()));

    // Every plane of every layer, with the floats of one slot.
    std::vector<std::pair<float*, size_t>> planes() const {
        const StateGeometry& g = pool.geometry();
        std::vector<std::pair<float*, size_t>> out;
        for (int32_t i = 0; i < g.gdn_layers; ++i) {
            out.emplace_back(pool.gdn(i).device_pointer(), g.gdn_floats());
            out.emplace_back(pool.conv(i).device_pointer(), g.conv_floats());
        }
        for (int32_t i = 0; i < g.ple_layers; ++i)
            out.emplace_back(pool.ple(i).device_pointer(), g.ple_floats());
        return out;
    }
    static float value(size_t plane, size_t slot, size_t i) {
        return static_cast<float>(1 + plane * 10000 + slot * 1000 + i);
    }
    void number_all() {
        const auto all = planes();
        for (size_t p = 0; p < all.size(); ++p)
            for (size_t s = 0; s < 3; ++s)
                for (size_t i = 0; i < all[p].second; ++i)
                    all[p].first[s * all[p].second + i] = value(p, s, i);
    }
    // Slot s holds what slot `of` was numbered with, or zeros for of = -1.
    void expect_slot(size_t s, int of) {
        const auto all = planes();
        for (size_t p = 0; p < all.size(); ++p)
            for (size_t i = 0; i < all[p].second; ++i)
                ASSERT_EQ(all[p].first[s * all[p].second + i],
                          of < 0 ? 0.0f : value(p, static_cast<size_t>(of), i))
                    << "plane " << p << " slot " << s << " float " << i;
    }
};

TEST(StatePool, ClearZeroesOneSlotInAllLayers) {
    Rig rig;
    rig.number_all();
    ASSERT_OK(rig.pool.clear(*rig.stream, SlotId{1}));
    rig.expect_slot(0, 0);
    rig.expect_slot(1, -1);
    rig.expect_slot(2, 2);
}

TEST(StatePool, CopyMakesASlotEqualInAllLayers) {
    Rig rig;
    rig.number_all();
    ASSERT_OK(rig.pool.copy(*rig.stream, SlotId{2}, SlotId{0}));
    rig.expect_slot(0, 2);
    rig.expect_slot(1, 1);
    rig.expect_slot(2, 2);
}

TEST(StatePool, SlotsAreHandedOutOnceAndComeBack) {
    Rig rig;
    std::set<SlotId> seen;
    for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(seen.insert(must(rig.pool.acquire())).second);
    EXPECT_EQ(rig.pool.free_slots(), 0);
    const auto r = rig.pool.acquire();
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::out_of_memory);
    EXPECT_THAT(r.error().message, ::testing::HasSubstr("all 3 slots are in use"));
    EXPECT_THAT(r.error().message, ::testing::HasSubstr("--max-seqs"));
    rig.pool.release(SlotId{1});
    EXPECT_EQ(rig.pool.free_slots(), 1);
    EXPECT_EQ(must(rig.pool.acquire()), SlotId{1});
}

TEST(StatePool, AllBytesAreChargedAndMatchTheGeometry) {
    Rig rig;
    const StateGeometry g = small_geometry();
    EXPECT_EQ(g.bytes_per_slot(), 4u * (2 * (30 + 21) + 2 * 36));
    EXPECT_EQ(rig.budget.used(Role::state), 3 * g.bytes_per_slot());
    EXPECT_EQ(rig.budget.used(), rig.budget.used(Role::state));
}

// Model spec 7.3 gives 36 * 3207168 B for the gated-delta layers with a 16-bit convolution state
// and 184320 B for the injection in 16 bits; here both are f32.
TEST(StatePool, RealModelsSlotHasTheSpecifiedSize) {
    StateGeometry g;
    g.gdn_layers = 36;
    g.v_heads = 48;
    g.k_dim = g.v_dim = 128;
    g.conv_rows = 3;
    g.channels = 10240;
    g.ple_layers = 1;
    g.ple_rows = 9;
    g.ple_width = 10240;
    EXPECT_EQ(4 * g.gdn_floats() + 2 * g.conv_floats(), 3207168u);
    EXPECT_EQ(2 * g.ple_floats(), 184320u);
    EXPECT_EQ(g.bytes_per_slot(), 36u * (3145728 + 122880) + 368640);
}

TEST(StatePool, WithoutRecurrentLayersSlotsAreOnlyNumbers) {
    const auto device = make_host_device();
    const auto stream = must(device->make_stream());
    Budget budget("host memory", 0);
    StateGeometry g;
    g.slots = 1;
    StatePool pool = must(StatePool::create(*device, budget, g));
    const SlotId slot = must(pool.acquire());
    EXPECT_OK(pool.clear(*stream, slot));
    EXPECT_EQ(budget.used(), 0u);
}

TEST(StatePoolDeathTest, ASlotReleasedTwiceOrNeverMadeIsABrokenPromise) {
    Rig rig;
    EXPECT_DEATH(rig.pool.release(SlotId{3}), "broken promise");
    EXPECT_DEATH(rig.pool.release(SlotId{-1}), "broken promise");
#if defined(TERRACE_DCHECKS)
    EXPECT_DEATH(rig.pool.release(SlotId{0}), "broken promise");
#endif
}

}  // namespace
}  // namespace terrace::test
