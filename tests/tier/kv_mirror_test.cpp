// Memory of the mirrors: sizes, charges, cleared tables, and pages that are forgotten when a copy
// gives them other bytes.
// SPDX-License-Identifier: MIT
#include "tier/kv_mirror.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/support.h"
#include "tier/kv_planes.h"

namespace terrace::test {
namespace {

PlaneGeometry geometry() {
    PlaneGeometry g;
    g.layers = 2;
    g.pages = 4;
    g.kv_heads = 2;
    g.head_dim = 6;
    g.index_dim = 5;
    return g;
}

class KvMirrorTest : public ::testing::Test {
  protected:
    KvMirrorTest() {
        for (int32_t layer = 0; layer < 2; ++layer)
            for (size_t i = 0; i < kPlane; ++i)
                planes_.rows(layer).base[i] = static_cast<std::byte>(random_.next());
    }
    // What resolve_blocks does.
    void ask(int32_t layer, int64_t number) {
        const RowSource kv = planes_.rows(layer);
        const BlockMirror& m = planes_.mirror()->tables(layer);
        const size_t extent = 2 * kv.half_extent_bytes();
        const AskedBlock a = ask_block(m, number);
        if (a.what == Asked::copy)
            std::memcpy(kv.mirror + static_cast<size_t>(a.slot) * extent,
                        kv.base + static_cast<size_t>(number) * extent, extent);
        end_epoch(m, 1);
    }
    int32_t published(int32_t layer) {
        const RowSource kv = planes_.rows(layer);
        int32_t n = 0;
        for (int32_t page = 0; page < 4; ++page)
            for (int32_t b = 0; b < 64; ++b) {
                const std::byte* copy = kv.mirrored(page, b);
                if (!copy) continue;
                ++n;
                EXPECT_EQ(std::memcmp(copy, kv.home(page, b), 2 * kv.half_extent_bytes()), 0)
                    << "layer " << layer << ": stale block " << b << " of page " << page;
            }
        return n;
    }

    static constexpr size_t kPlane = size_t{4} * 256 * 2 * 2 * 6 * 2;
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Stream> stream_ = must(device_->make_stream());
    Budget budget_{"device", 0};
    KvPlanes planes_ = must(KvPlanes::create(*device_, budget_, budget_, geometry()));
    Random random_{4};
};

TEST_F(KvMirrorTest, IsChargedToTheByteAndStartsEmpty) {
    for (const int32_t n : {1, 8, 1000}) {
        planes_.add_mirror(must(KvMirror::create(*device_, *stream_, budget_, geometry(), n)));
        EXPECT_EQ(budget_.used(Role::kv_mirror), KvMirror::bytes(geometry(), n));
        EXPECT_EQ(published(0) + published(1), 0);
        for (const MirrorCounters& c : must(planes_.mirror()->read_counters(*stream_)))
            EXPECT_EQ(c.calls + c.rows + c.entries + c.copied + c.at_home, 0u);
    }
    EXPECT_EQ(KvMirror::bytes(geometry(), 0), 0u);
}

TEST_F(KvMirrorTest, ABudgetTooSmallLeavesNothingCharged) {
    Budget small("device", KvMirror::bytes(geometry(), 100) - 1);
    const auto r = KvMirror::create(*device_, *stream_, small, geometry(), 100);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::out_of_memory);
    EXPECT_EQ(small.used(), 0u);
}

TEST_F(KvMirrorTest, LayersDoNotShareSlots) {
    planes_.add_mirror(must(KvMirror::create(*device_, *stream_, budget_, geometry(), 64)));
    for (int i = 0; i < 3; ++i)
        ask(0, 70 + i);
    EXPECT_EQ(published(0), 2);
    EXPECT_EQ(published(1), 0);
    EXPECT_EQ(must(planes_.mirror()->read_counters(*stream_))[0].copied, 2u);
}

// Without it, readers of page 2 would see what page 2 held before.
TEST_F(KvMirrorTest, APageThatIsCopiedOverIsForgotten) {
    planes_.add_mirror(must(KvMirror::create(*device_, *stream_, budget_, geometry(), 400)));
    for (const int64_t number : {0, 0, 1, 2 * 64, 2 * 64 + 9, 2 * 64 + 50, 3 * 64})
        for (const int32_t layer : {0, 1})
            ask(layer, number);
    EXPECT_EQ(published(0), 6);
    ASSERT_OK(planes_.copy_page(*stream_, PageId{1}, PageId{2}, 201));
    EXPECT_EQ(published(0), 3);
    EXPECT_EQ(published(1), 3);
}

}  // namespace
}  // namespace terrace::test
