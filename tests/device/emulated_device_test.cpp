// The emulated device itself: what it promises to catch, it catches; what is ordered, it keeps.
// SPDX-License-Identifier: MIT
#include "device/emulated_device.h"

#include <gmock/gmock.h>

#include <cstring>
#include <set>

#include "support/support.h"

namespace terrace::test {
namespace {

using testing::HasSubstr;

constexpr size_t kMemory = size_t{64} << 20;
constexpr size_t kBytes = 4096;

struct Rig {
    explicit Rig(uint64_t seed)
        : device(must(EmulatedDevice::create(seed, kMemory))),
          a(must(device->make_stream())),
          b(must(device->make_stream())),
          event(must(device->make_event())) {}
    Buffer memory(MemSpace space = MemSpace::device) {
        return must(device->allocate(kBytes, space, Fill::unspecified));
    }
    void drain() {
        (void)a->synchronize();
        (void)b->synchronize();
    }
    std::unique_ptr<EmulatedDevice> device;
    std::unique_ptr<Stream> a, b;
    std::unique_ptr<Event> event;
};

TEST(EmulatedDevice, OneStreamRunsInOrderOverManySeeds) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Rig r(seed);
        const Buffer x = r.memory(), out = r.memory(MemSpace::host_pinned);
        for (int i = 0; i < 5; ++i)
            ASSERT_OK(r.a->fill(x.device_pointer(), static_cast<std::byte>(i), kBytes));
        ASSERT_OK(r.a->copy(out.device_pointer(), x.device_pointer(), kBytes));
        ASSERT_OK(r.a->synchronize());
        EXPECT_EQ(out.device_pointer()[17], std::byte{4});
        EXPECT_THAT(r.device->faults(), testing::IsEmpty());
    }
}

TEST(EmulatedDevice, EventsOrderStreamsOverManySeeds) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Rig r(seed);
        const Buffer x = r.memory(), out = r.memory(MemSpace::host_pinned);
        ASSERT_OK(r.a->fill(x.device_pointer(), std::byte{1}, kBytes));
        ASSERT_OK(r.a->fill(x.device_pointer(), std::byte{2}, kBytes));
        ASSERT_OK(r.a->record(*r.event));
        ASSERT_OK(r.b->wait(*r.event));
        ASSERT_OK(r.b->copy(out.device_pointer(), x.device_pointer(), kBytes));
        ASSERT_OK(r.b->synchronize());
        EXPECT_EQ(out.device_pointer()[0], std::byte{2});
        r.drain();
        EXPECT_THAT(r.device->faults(), testing::IsEmpty());
    }
}

TEST(EmulatedDevice, MissingEventIsARaceWhateverTheSchedule) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Rig r(seed);
        const Buffer x = r.memory(), out = r.memory(MemSpace::host_pinned);
        (void)r.a->fill(x.device_pointer(), std::byte{1}, kBytes);
        (void)r.b->copy(out.device_pointer(), x.device_pointer(), kBytes);
        r.drain();
        ASSERT_EQ(r.device->faults().size(), 1u) << "seed " << seed;
        EXPECT_THAT(r.device->faults()[0], HasSubstr("no event orders them"));
    }
}

TEST(EmulatedDevice, HostWaitOrdersWhatIsQueuedAfterIt) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
        Rig r(seed);
        const Buffer x = r.memory(), out = r.memory(MemSpace::host_pinned);
        ASSERT_OK(r.a->fill(x.device_pointer(), std::byte{7}, kBytes));
        ASSERT_OK(r.a->record(*r.event));
        ASSERT_OK(r.event->wait_host());
        ASSERT_OK(r.b->copy(out.device_pointer(), x.device_pointer(), kBytes));
        r.drain();
        EXPECT_EQ(out.device_pointer()[9], std::byte{7});
        EXPECT_THAT(r.device->faults(), testing::IsEmpty());
    }
}

// The second write needs the reader's event too: a slot that is refilled while it is read.
TEST(EmulatedDevice, ReuseWithoutAFenceBehindTheReaderIsARace) {
    for (uint64_t seed = 0; seed < 50; ++seed)
        for (const bool fenced : {true, false}) {
            Rig r(seed);
            const Buffer slot = r.memory(), out = r.memory();
            const auto read = must(r.device->make_event());
            (void)r.a->fill(slot.device_pointer(), std::byte{1}, kBytes);
            (void)r.a->record(*r.event);
            (void)r.b->wait(*r.event);
            (void)r.b->copy(out.device_pointer(), slot.device_pointer(), kBytes);
            (void)r.b->record(*read);
            if (fenced) (void)r.a->wait(*read);
            (void)r.a->fill(slot.device_pointer(), std::byte{2}, kBytes);
            r.drain();
            EXPECT_EQ(r.device->faults().size(), fenced ? 0u : 1u) << "seed " << seed;
        }
}

TEST(EmulatedDevice, SchedulesDifferBetweenSeedsAndRepeatForOne) {
    const auto schedule = [](uint64_t seed) {
        Rig r(seed);
        std::string order;
        for (int i = 0; i < 6; ++i)
            for (auto* s : {r.a.get(), r.b.get()})
                must(static_cast<EmulatedStream*>(s)->enqueue(
                    {"note", nullptr, [&order, s, &r]() -> Status {
                         order += s == r.a.get() ? 'a' : 'b';
                         return {};
                     }}));
        r.drain();
        return order;
    };
    std::set<std::string> seen;
    for (uint64_t seed = 0; seed < 40; ++seed) {
        seen.insert(schedule(seed));
        EXPECT_EQ(schedule(seed), schedule(seed));
    }
    EXPECT_GT(seen.size(), 10u);
}

TEST(EmulatedDevice, WorkMayBeDelayedUntilTheHostWaits) {
    int late = 0;
    for (uint64_t seed = 0; seed < 40; ++seed) {
        Rig r(seed);
        bool ran = false;
        must(static_cast<EmulatedStream&>(*r.a).enqueue({"note", nullptr, [&ran]() -> Status {
                                                             ran = true;
                                                             return {};
                                                         }}));
        late += ran ? 0 : 1;
        r.drain();
        EXPECT_TRUE(ran);
    }
    EXPECT_GT(late, 5);
    EXPECT_LT(late, 40);
}

TEST(EmulatedDeviceDeath, HostAccessToDeviceMemoryFaults) {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    EXPECT_DEATH(
        {
            Rig r(1);
            const Buffer x = r.memory();
            x.device_pointer()[0] = std::byte{1};
        },
        "touched while the host ran");
}

TEST(EmulatedDeviceDeath, TaskThatTouchesFreedMemoryFaults) {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    EXPECT_DEATH(
        {
            Rig r(1);
            std::byte* gone = nullptr;
            {
                const Buffer x = r.memory();
                gone = x.device_pointer();
            }
            must(static_cast<EmulatedStream&>(*r.a).enqueue({"late", nullptr, [gone]() -> Status {
                                                                 *gone = std::byte{1};
                                                                 return {};
                                                             }}));
            r.drain();
        },
        "after it was freed");
}

TEST(EmulatedDevice, CopyOutOfFreedMemoryIsRefusedByName) {
    Rig r(3);
    const Buffer out = r.memory(MemSpace::host_pinned);
    std::byte* gone = nullptr;
    {
        const Buffer x = r.memory();
        gone = x.device_pointer();
    }
    (void)r.a->copy(out.device_pointer(), gone, kBytes);
    r.drain();
    ASSERT_EQ(r.device->faults().size(), 1u);
    EXPECT_THAT(r.device->faults()[0], HasSubstr("not allocated"));
}

TEST(EmulatedDevice, FreeingUnderQueuedWorkIsAFault) {
    int caught = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        Rig r(seed);
        {
            const Buffer x = r.memory();
            (void)r.a->fill(x.device_pointer(), std::byte{1}, kBytes);
        }
        caught += r.device->faults().empty() ? 0 : 1;  // a quick device may be done already
        r.drain();
    }
    EXPECT_GT(caught, 5);
}

TEST(EmulatedDevice, FreshMemoryIsPoison) {
    Rig r(1);
    const Buffer x = r.memory(), out = r.memory(MemSpace::host_pinned);
    ASSERT_OK(r.a->copy(out.device_pointer(), x.device_pointer(), kBytes));
    ASSERT_OK(r.a->synchronize());
    EXPECT_EQ(out.device_pointer()[100], std::byte{0xff});
}

TEST(EmulatedDevice, HasOnlyTheMemoryItWasGiven) {
    Rig r(1);
    const auto refused = r.device->allocate(kMemory + 1, MemSpace::device, Fill::zero);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::out_of_memory);
    EXPECT_THAT(refused.error().message, HasSubstr("are free"));
}

TEST(EmulatedDevice, GraphsRunAgainWithNewContents) {
    Rig r(5);
    const Buffer x = r.memory(), y = r.memory(), out = r.memory(MemSpace::host_pinned);
    ASSERT_OK(r.a->begin_capture());
    ASSERT_OK(r.a->copy(y.device_pointer(), x.device_pointer(), kBytes));
    const auto graph = must(r.a->end_capture());
    for (const int v : {1, 2, 3}) {
        ASSERT_OK(r.a->fill(x.device_pointer(), static_cast<std::byte>(v), kBytes));
        ASSERT_OK(r.a->launch(*graph));
        ASSERT_OK(r.a->copy(out.device_pointer(), y.device_pointer(), kBytes));
        ASSERT_OK(r.a->synchronize());
        EXPECT_EQ(out.device_pointer()[0], static_cast<std::byte>(v));
    }
}

}  // namespace
}  // namespace terrace::test
