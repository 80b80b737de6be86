// SPDX-License-Identifier: MIT
#include "gpu.h"

#include <bit>

#include "cuda/cuda_backend.h"

namespace terrace::test {

Rig* gpu() {
    static const std::unique_ptr<Rig> rig = [] {
        std::unique_ptr<Rig> r;
        if (!probe_cuda().usable()) return r;
        auto device = must(make_cuda_device(0));
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
