// The host device: alignment, contents of fresh memory, order of copies, and refusals.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include <cstring>
#include <limits>

#include "device/device.h"
#include "device/planes.h"
#include "support/support.h"

namespace terrace::test {
namespace {

using ::testing::HasSubstr;
constexpr size_t kMiB = size_t{1} << 20;
const MemSpace kSpaces[] = {MemSpace::device, MemSpace::host_pinned, MemSpace::host};

bool all_are(const Buffer& b, std::byte value) {
    const std::byte* p = b.device_pointer();
    return b.bytes() == 0 || (p[0] == value && std::memcmp(p, p + 1, b.bytes() - 1) == 0);
}

TEST(HostDevice, BuffersAreAlignedTo64BytesAndBigOnesTo2MiB) {
    const auto device = make_host_device();
    EXPECT_EQ(device->kind(), DeviceKind::host);
    EXPECT_FALSE(device->name().empty());
    for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4097},
                               2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB + 12345})
        for (const MemSpace space : kSpaces) {
            // Two of each, as one alone may be aligned by luck.
            const Buffer a = must(device->allocate(bytes, space, Fill::unspecified));
            const Buffer b = must(device->allocate(bytes, space, Fill::unspecified));
            for (const Buffer* buffer : {&a, &b}) {
                const size_t alignment = bytes >= 2 * kMiB ? 2 * kMiB : 64;
                EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->device_pointer()) % alignment, 0u)
                    << bytes;
                EXPECT_EQ(buffer->bytes(), bytes);
                EXPECT_EQ(buffer->space(), space);
                // Every byte is ours to write.
                std::memset(buffer->device_pointer(), 0x5a, bytes);
            }
        }
}

TEST(HostDevice, ZeroFilledMemoryIsZeroEvenWhereFreedMemoryWasNot) {
    const auto device = make_host_device();
    for (const size_t bytes : {size_t{1}, size_t{4096}, kMiB, 3 * kMiB + 1})
        for (int round = 0; round < 3; ++round) {
            const Buffer b = must(device->allocate(bytes, MemSpace::device, Fill::zero));
            EXPECT_TRUE(all_are(b, std::byte{0})) << bytes;
            std::memset(b.device_pointer(), 0xab, bytes);
        }
}

TEST(HostDevice, FreshUnspecifiedMemoryIsPoisonInCheckedBuilds) {
#if defined(TERRACE_DCHECKS)
    const auto device = make_host_device();
    for (const size_t bytes : {size_t{1}, size_t{4096}, 3 * kMiB + 1})
        for (int round = 0; round < 2; ++round) {
            const Buffer b = must(device->allocate(bytes, MemSpace::device, Fill::unspecified));
            EXPECT_TRUE(all_are(b, std::byte{0xff})) << bytes;
            std::memset(b.device_pointer(), 0, bytes);
        }
#else
    GTEST_SKIP() << "built without TERRACE_DCHECKS";
#endif
}

TEST(HostDevice, NoBytesAreABufferWithoutAnAddress) {
    const auto device = make_host_device();
    const Buffer b = must(device->allocate(0, MemSpace::device, Fill::zero));
    EXPECT_EQ(b.bytes(), 0u);
    EXPECT_TRUE(b.span<float>().empty());
}

// The last ones overflow when rounded up to whole pages.
TEST(HostDevice, MoreThanTheMachineHasIsAnErrorThatNamesNeedAndHave) {
    const auto device = make_host_device();
    const size_t most = std::numeric_limits<size_t>::max();
    for (const size_t bytes :
         {size_t{1} << 45, size_t{1} << 48, size_t{1} << 62, most - 3 * kMiB, most - 4096, most})
        for (const Fill fill : {Fill::zero, Fill::unspecified}) {
            const auto r = device->allocate(bytes, MemSpace::device, fill);
            ASSERT_FALSE(r) << bytes;
            EXPECT_EQ(r.error().code, Code::out_of_memory);
            EXPECT_THAT(r.error().message, HasSubstr("need " + std::to_string(bytes)));
            EXPECT_THAT(r.error().message, HasSubstr("have "));
        }
}

TEST(HostDevice, WorkOfAStreamHappensInOrder) {
    const auto device = make_host_device();
    const auto stream = must(device->make_stream());
    EXPECT_EQ(&stream->device(), device.get());
    const Buffer b = must(device->allocate(64, MemSpace::device, Fill::zero));
    std::byte* p = b.device_pointer();
    EXPECT_OK(stream->fill(p, std::byte{1}, 32));
    EXPECT_OK(stream->copy(p + 32, p, 16));       // ones
    EXPECT_OK(stream->fill(p, std::byte{2}, 8));  // after the copy: not copied
    EXPECT_OK(stream->copy(p + 48, p, 16));       // 8 twos, 8 ones
    EXPECT_OK(stream->copy(p, nullptr, 0));       // nothing, from nowhere
    EXPECT_OK(stream->fill(nullptr, std::byte{9}, 0));
    const auto event = must(device->make_event());
    EXPECT_OK(stream->record(*event));
    EXPECT_OK(stream->wait(*event));
    EXPECT_OK(event->wait_host());
    EXPECT_TRUE(event->reached());
    EXPECT_OK(stream->synchronize());
    for (int i = 0; i < 64; ++i) {
        const int want = i < 8 ? 2 : i < 32 ? 1 : i < 48 ? 1 : i < 56 ? 2 : 1;
        EXPECT_EQ(std::to_integer<int>(p[i]), want) << i;
    }
}

TEST(Buffer, MovesKeepOneOwner) {
    const auto device = make_host_device();
    Buffer a = must(device->allocate(100, MemSpace::host, Fill::zero));
    std::byte* p = a.device_pointer();
    Buffer b(std::move(a));
    EXPECT_EQ(b.device_pointer(), p);
    EXPECT_EQ(a.device_pointer(), nullptr);  // NOLINT: a moved-from buffer is empty
    EXPECT_EQ(a.bytes(), 0u);
    b = must(device->allocate(200, MemSpace::device, Fill::zero));
    EXPECT_EQ(b.bytes(), 200u);
    Buffer& same = b;
    b = std::move(same);
    EXPECT_EQ(b.bytes(), 200u);
    EXPECT_NE(b.device_pointer(), nullptr);
}

TEST(DevSpan, SubspansNameTheRightElements) {
    int values[10] = {};
    const DevSpan<int> all(values, 10);
    const DevSpan<const int> tail = all.from(7);
    EXPECT_EQ(tail.size(), 3u);
    EXPECT_EQ(tail.device_pointer(), values + 7);
    EXPECT_EQ(all.sub(2, 3).device_pointer(), values + 2);
    EXPECT_TRUE(all.from(10).empty());
}

TEST(RowSource, BlocksAreExtentsOfKThenV) {
    std::byte base[1];
    RowSource rows;
    rows.base = base;
    rows.kv_heads = 2;
    rows.head_dim = 8;
    for (const PlaneType type : {PlaneType::f16, PlaneType::f32}) {
        rows.type = type;
        const size_t half = 4 * 2 * 8 * (type == PlaneType::f16 ? 2 : 4);
        EXPECT_EQ(rows.half_extent_bytes(), half);
        EXPECT_EQ(rows.block(0, 0), base);
        EXPECT_EQ(rows.block(0, 1) - base, static_cast<ptrdiff_t>(2 * half));
        EXPECT_EQ(rows.block(3, 5) - base, static_cast<ptrdiff_t>((3 * 64 + 5) * 2 * half));
        // Beyond 2^31 bytes.
        EXPECT_EQ(rows.block(1 << 20, 0) - base,
                  static_cast<ptrdiff_t>((size_t{1} << 26) * 2 * half));
    }
}

}  // namespace
}  // namespace terrace::test
