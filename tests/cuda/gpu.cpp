// SPDX-License-Identifier: MIT
#include "gpu.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "cuda/cuda_backend.h"
#include "cuda/device/cuda_device.h"
#include "device_classes.h"

namespace terrace::test {

namespace {

std::unique_ptr<Device> posing_as(std::string_view cc, Device& real) {
    cuda::DeviceInfo info = static_cast<cuda::CudaDevice&>(real).info();
    for (const cuda::DeviceInfo& other : device_classes())
        if (std::to_string(other.cc) == cc) {
            info.sms = std::min(info.sms, other.sms);  // some blocks wait for each other
            info.smem_per_block =
                other.smem_per_block - 2048;  // static memory is not seen at launch
            info.smem_per_sm = other.smem_per_sm;
            info.code.wgmma = info.code.wgmma && other.code.wgmma;
            info.code.most_cluster = std::min(info.code.most_cluster, other.code.most_cluster);
        }
    return std::make_unique<cuda::CudaDevice>(info);
}

}  // namespace

Rig* gpu() {
    static const std::unique_ptr<Rig> rig = [] {
        std::unique_ptr<Rig> r;
        if (!probe_cuda().usable()) return r;
        auto device = must(make_cuda_device(0));
        if (const char* wanted = std::getenv("TERRACE_TEST_DEVICE"))
            device = posing_as(wanted, *device);
        auto ops = must(make_cuda_ops(*device));
        r = std::make_unique<Rig>(std::move(device), std::move(ops));
        return r;
    }();
    return rig.get();
}

Rig& reference() {
    static Rig rig(make_host_device(), make_reference_ops());
    return rig;
}

void expect_equal_bits(const std::vector<float>& a, const std::vector<float>& b,
                       const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
            << what << ": element " << i << ": " << a[i] << " and " << b[i];
}

void conforms(const std::function<Lists(Rig&)>& run, double limit, const std::string& what) {
    SCOPED_TRACE(what);
    const Lists expected = run(reference()), got = run(*gpu()), again = run(*gpu());
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LT(nmse(got[i], expected[i]), limit) << what << ", output " << i;
        expect_equal_bits(again[i], got[i], what + ", again, output " + std::to_string(i));
    }
}

}  // namespace terrace::test
