// The only place that reads the environment. Every flag --some-name has a twin TERRACE_SOME_NAME;
// the flag wins.
// SPDX-License-Identifier: MIT
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace terrace {

std::optional<std::string> read_env(std::string_view name);

}  // namespace terrace
