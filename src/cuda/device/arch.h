// Which code of a build runs on a GPU, and what that code can do: pure functions of CMake's list of
// architectures and of the compute capability. A build for 8.0 runs on a 9.0 device through its PTX;
// then the device has clusters, but the code does not use them.
// SPDX-License-Identifier: MIT
#pragma once
#include <string_view>

namespace terrace::cuda {

// The architecture a kernel was compiled for, 10 * major + minor; `exact` for an 'a' architecture.
struct DeviceCode {
    int arch = 0;  // 0: none that runs
    bool exact = false;
};

// `archs`: entries of CMAKE_CUDA_ARCHITECTURES joined by ',', such as "80-real,90a-real,120". cc: 10 *
// major + minor. As the driver chooses: machine code (an entry without -virtual) runs within its major
// version from its minor on, the latest first; else PTX (an entry without -real) on everything from it
// on, the latest first; code of an 'a' architecture on exactly that one, and first.
constexpr DeviceCode code_for(std::string_view archs, int cc) {
    DeviceCode machine, ptx;
    while (!archs.empty()) {
        const size_t comma = archs.find(',');
        std::string_view entry = archs.substr(0, comma);
        archs = comma == std::string_view::npos ? std::string_view{} : archs.substr(comma + 1);
        int arch = 0;
        while (!entry.empty() && entry.front() >= '0' && entry.front() <= '9') {
            arch = 10 * arch + (entry.front() - '0');
            entry.remove_prefix(1);
        }
        const bool exact = entry.starts_with('a');
        if (exact) entry.remove_prefix(1);
        if (arch > cc || (exact && arch != cc)) continue;
        const auto offer = [&](DeviceCode& best) {
            if (arch > best.arch || exact) best = {arch, exact};
        };
        if (entry != "-virtual" && arch / 10 == cc / 10) offer(machine);
        if (entry != "-real") offer(ptx);
    }
    return machine.arch > 0 ? machine : ptx;
}

constexpr bool has_code_for(std::string_view archs, int cc) {
    return code_for(archs, cc).arch > 0;
}

// What kernels of that code use; the same conditions stand in device code as __CUDA_ARCH__.
struct CodeFeatures {
    int arch = 0;
    bool overlap = false;  // starts of kernels with the end of those before them
    bool wgmma = false;    // and registers that move between warpgroups
    bool large = false;    // kernels that need 227 KiB of shared memory instead of 99 KiB
    int most_cluster = 1;  // blocks of a cluster; 1: blocks meet in global memory
};
constexpr CodeFeatures features_of(DeviceCode code) {
    const bool hopper = code.arch == 90;
    // Clusters of 16 are an extension that 9.0 has; 8 are what every device with clusters allows.
    return {code.arch, code.arch >= 90, hopper && code.exact, hopper,
            code.arch < 90 ? 1
            : hopper       ? 16
                           : 8};
}

}  // namespace terrace::cuda
