// SPDX-License-Identifier: MIT
#include "cuda/device/notes.h"

#include <fmt/format.h>

namespace terrace::cuda {

std::vector<std::string> notes_of(const DeviceInfo& info) {
    std::vector<std::string> notes;
    const CodeFeatures& code = info.code;
    const auto note = [&](const std::string& what) {
        notes.push_back(fmt::format("{} ({}.{}): {}", info.name, info.cc / 10, info.cc % 10, what));
    };
    if (code.arch / 10 != info.cc / 10)
        note(
            fmt::format("runs code for {}.{}, compiled when it is first loaded: build with "
                        "-DTERRACE_CUDA_ARCHITECTURES={}{}",
                        code.arch / 10, code.arch % 10, info.cc, info.cc == 90 ? "a" : ""));
    if (!code.wgmma) note("prompts take the general matrix kernels, no wgmma: untuned");
    if (code.most_cluster == 1) note("parts of a row meet in global memory, no clusters: untuned");
    return notes;
}

}  // namespace terrace::cuda
