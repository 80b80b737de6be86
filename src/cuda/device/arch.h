// Which GPUs a build has code for: a pure function of CMake's list of architectures.
// SPDX-License-Identifier: MIT
#pragma once
#include <string_view>

namespace terrace::cuda {

// `archs`: entries of CMAKE_CUDA_ARCHITECTURES joined by ',', such as "80-real,90a-real,120". cc: 10 *
// major + minor. Machine code runs within its major version from its minor on; code of an 'a'
// architecture on exactly that one; PTX (an entry without -real) on everything from it on.
constexpr bool has_code_for(std::string_view archs, int cc) {
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
        if (arch == cc || (!exact && cc / 10 == arch / 10 && cc >= arch)) return true;
        if (!exact && entry != "-real" && cc >= arch) return true;
    }
    return false;
}

static_assert(has_code_for("90a-real", 90) && !has_code_for("90a-real", 80) &&
              !has_code_for("90a-real", 100));
static_assert(has_code_for("80-real,90a-real", 86) && !has_code_for("80-real,90a-real", 120));
static_assert(has_code_for("80-real,120", 120) && has_code_for("80-real,120", 130));
static_assert(!has_code_for("86-real", 80) && !has_code_for("", 90));

}  // namespace terrace::cuda
