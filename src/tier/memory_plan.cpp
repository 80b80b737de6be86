// SPDX-License-Identifier: MIT
#include "tier/memory_plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

namespace terrace {

uint64_t MemoryPlan::total() const {
    uint64_t sum = 0;
    for (const MemoryRow& r : rows)
        sum += r.bytes;
    return sum;
}

uint64_t MemoryPlan::bytes(Role role) const {
    uint64_t sum = 0;
    for (const MemoryRow& r : rows)
        if (r.role == role) sum += r.bytes;
    return sum;
}

uint64_t MemoryPlan::total(MemSpace space) const {
    uint64_t sum = 0;
    for (const MemoryRow& r : rows)
        if ((r.space == MemSpace::device) == (space == MemSpace::device)) sum += r.bytes;
    return sum;
}

Status MemoryPlan::check() const {
    for (const MemSpace space : {MemSpace::device, MemSpace::host}) {
        const bool device = space == MemSpace::device;
        const uint64_t have = device ? device_limit : limit, need = total(space);
        if (have == 0 || need <= have) continue;
        MemoryRow largest;
        for (const MemoryRow& r : rows)
            if ((r.space == MemSpace::device) == device && r.bytes > largest.bytes) largest = r;
        return Error{
            Code::out_of_memory,
            fmt::format("{}: the plan needs {}, {} are available; the largest part is {} "
                        "with {} ({}): lower --ctx or --max-seqs, or raise {}",
                        device ? "GPU memory" : "host memory", human_bytes(need), human_bytes(have),
                        to_string(largest.role), human_bytes(largest.bytes), largest.detail,
                        device ? "--vram-limit" : "--host-limit")};
    }
    return {};
}

std::string MemoryPlan::table() const {
    std::string out = fmt::format("{:<20} {:>12}  {:<12} {}\n", "memory", "bytes", "where", "what");
    for (const MemoryRow& r : rows)
        if (r.bytes > 0)
            out += fmt::format("{:<20} {:>12}  {:<12} {}\n", to_string(r.role),
                               human_bytes(r.bytes), r.where, r.detail);
    out += fmt::format("{:<20} {:>12}\n", "total", human_bytes(total()));
    return out;
}

std::string human_bytes(uint64_t bytes) {
    static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(kUnits)) {
        value /= 1024;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

uint64_t available_memory() {
    std::ifstream in("/proc/meminfo");
    std::string key, unit;
    uint64_t value = 0;
    while (in >> key >> value >> unit)
        if (key == "MemAvailable:") return value * 1024;
    return 0;
}

}  // namespace terrace
