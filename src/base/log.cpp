// SPDX-License-Identifier: MIT
#include "base/log.h"

#include <atomic>
#include <cstdio>

namespace terrace {
namespace {
std::atomic<LogLevel> g_level{LogLevel::warn};
}

void set_log_level(LogLevel level) {
    g_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() {
    return g_level.load(std::memory_order_relaxed);
}

void log(LogLevel level, std::string_view line) {
    if (level > log_level()) return;
    const char* tag = level == LogLevel::warn    ? "warning: "
                      : level == LogLevel::debug ? "debug: "
                                                 : "";
    // One call, so that lines of different threads do not mix.
    std::fprintf(stderr, "%s%.*s\n", tag, static_cast<int>(line.size()), line.data());
}

}  // namespace terrace
