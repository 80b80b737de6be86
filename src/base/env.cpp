// SPDX-License-Identifier: MIT
#include "base/env.h"

#include <cstdlib>

namespace terrace {

std::optional<std::string> read_env(std::string_view name) {
    const char* value = std::getenv(std::string(name).c_str());
    if (!value) return std::nullopt;
    return std::string(value);
}

}  // namespace terrace
