// The device itself: copies, fills, events, graphs; and what a machine without a GPU says.
// SPDX-License-Identifier: MIT
#include "cuda/cuda_backend.h"
#include "gpu.h"

namespace terrace::test {
namespace {

TEST(CudaProbe, SaysWhyThereIsNoDevice) {
    const CudaProbe probe = probe_cuda();
    EXPECT_EQ(probe.usable(), probe.reason.empty());
    const auto missing = make_cuda_device(probe.devices);
    ASSERT_FALSE(missing);
    EXPECT_NE(missing.error().message.find(probe.devices == 0 ? "--device cpu" : "devices 0.."),
              std::string::npos)
        << missing.error().message;
}

class CudaDeviceTest : public GpuTest {};

TEST_F(CudaDeviceTest, GraphReplaysWithNewContents) {
    auto device = must(make_cuda_device(0));
    auto stream = must(device->make_stream());
    const Buffer a = must(device->allocate(1024, MemSpace::device, Fill::zero));
    const Buffer b = must(device->allocate(1024, MemSpace::device, Fill::zero));
    must(stream->begin_capture());
    must(stream->copy(b.device_pointer(), a.device_pointer(), 1024));
    const auto graph = must(stream->end_capture());
    for (const int value : {3, 250}) {
        must(stream->fill(a.device_pointer(), static_cast<std::byte>(value), 1024));
        must(stream->launch(*graph));
        std::vector<std::byte> host(1024);
        must(stream->copy(host.data(), b.device_pointer(), 1024));
        must(stream->synchronize());
        EXPECT_EQ(host, std::vector<std::byte>(1024, static_cast<std::byte>(value)));
    }
}

TEST_F(CudaDeviceTest, EventsOrderStreamsAndMeasureTime) {
    auto device = must(make_cuda_device(0));
    auto first = must(device->make_stream()), second = must(device->make_stream());
    const auto from = must(device->make_event()), to = must(device->make_event());
    constexpr size_t kBytes = size_t{64} << 20;
    const Buffer a = must(device->allocate(kBytes, MemSpace::device, Fill::zero));
    const Buffer b = must(device->allocate(kBytes, MemSpace::device, Fill::zero));
    must(first->record(*from));
    for (int i = 1; i <= 5; ++i)
        must(first->fill(a.device_pointer(), static_cast<std::byte>(i), kBytes));
    must(first->record(*to));
    must(second->wait(*to));
    must(second->copy(b.device_pointer(), a.device_pointer(), kBytes));
    std::vector<std::byte> host(kBytes);
    must(second->copy(host.data(), b.device_pointer(), kBytes));
    must(second->synchronize());
    EXPECT_TRUE(to->reached());
    EXPECT_EQ(host.front(), std::byte{5});
    EXPECT_EQ(host.back(), std::byte{5});
    EXPECT_GT(must(to->since(*from)), 0.0);
}

TEST_F(CudaDeviceTest, SlabsOfPinnedMemoryAreReadByTheDeviceAndGivenBack) {
    auto device = must(make_cuda_device(0));
    auto stream = must(device->make_stream());
    constexpr size_t kBytes = (size_t{600} << 20) + 123;  // two pieces, the last one odd
    for (int round = 0; round < 2; ++round) {
        const Buffer slab = must(device->allocate(kBytes, MemSpace::host_pinned, Fill::zero));
        const Buffer out = must(device->allocate(4096, MemSpace::device, Fill::unspecified));
        EXPECT_EQ(slab.device_pointer()[kBytes - 1], std::byte{0});
        slab.device_pointer()[kBytes - 1] = std::byte{77};
        must(stream->copy(out.device_pointer(), slab.device_pointer() + kBytes - 4096, 4096));
        std::vector<std::byte> host(4096);
        must(stream->copy(host.data(), out.device_pointer(), 4096));
        must(stream->synchronize());
        EXPECT_EQ(host.back(), std::byte{77});
    }
}

TEST_F(CudaDeviceTest, AsksForTooMuchMemoryWithNeedAndHave) {
    auto device = must(make_cuda_device(0));
    const auto refused = device->allocate(size_t{1} << 44, MemSpace::device, Fill::unspecified);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::out_of_memory);
    EXPECT_NE(refused.error().message.find("free"), std::string::npos);
}

}  // namespace
}  // namespace terrace::test
