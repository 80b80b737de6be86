// The GPUs that a release has code for, as plans see them: what is decided on the host can be tested
// for all of them on any machine.
// SPDX-License-Identifier: MIT
#pragma once
#include <array>
#include <string>

#include "cuda/env.h"

namespace terrace::test {

constexpr const char* kReleaseArchs = "80-real,86-real,89-real,90a-real,120-real";

inline cuda::DeviceInfo device_class(int cc, int sms, size_t block_kib, size_t sm_kib,
                                     std::string name) {
    cuda::DeviceInfo info;
    info.cc = cc;
    info.code = cuda::features_of(cuda::code_for(kReleaseArchs, cc));
    info.sms = sms;
    info.smem_per_block = block_kib * 1024;
    info.smem_per_sm = sm_kib * 1024;
    info.name = std::move(name);
    return info;
}

inline std::array<cuda::DeviceInfo, 6> device_classes() {
    return {device_class(80, 108, 163, 164, "A100"),   device_class(86, 82, 99, 100, "RTX 3090"),
            device_class(86, 28, 99, 100, "RTX 3060"), device_class(89, 128, 99, 100, "RTX 4090"),
            device_class(90, 132, 227, 228, "H200"),   device_class(120, 170, 99, 100, "RTX 5090")};
}

}  // namespace terrace::test
