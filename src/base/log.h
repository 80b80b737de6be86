// One line to stderr per event, level chosen once at start. Any thread. Never used inside the
// decode step. `warn` is for anything that ended up slower or smaller than asked (no silent
// fallback).
// SPDX-License-Identifier: MIT
#pragma once
#include <string_view>

namespace terrace {

enum class LogLevel { quiet, warn, info, debug };

void set_log_level(LogLevel level);
LogLevel log_level();
void log(LogLevel level, std::string_view line);
inline void log_warn(std::string_view line) {
    log(LogLevel::warn, line);
}
inline void log_info(std::string_view line) {
    log(LogLevel::info, line);
}
inline void log_debug(std::string_view line) {
    log(LogLevel::debug, line);
}

}  // namespace terrace
