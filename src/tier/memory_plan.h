// What an engine will take, before it takes it: one row per role, as a value that prints as a
// table. After loading, the same rows are filled from the Budget; a test holds the two equal to the
// byte.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <vector>

#include "tier/budget.h"

namespace terrace {

struct MemoryRow {
    Role role = Role::weights;
    uint64_t bytes = 0;
    std::string where;                // "file map", "host memory", "GPU memory"
    std::string detail;               // "8 layers x 32 pages of 256 tokens"
    MemSpace space = MemSpace::host;  // whose limit it counts against: device, or anything else
};

struct MemoryPlan {
    std::vector<MemoryRow> rows;
    uint64_t limit = 0;         // of host memory; 0: none
    uint64_t device_limit = 0;  // of a device with its own memory; 0: none
    uint64_t total() const;
    uint64_t total(MemSpace space) const;  // device, or the rest
    uint64_t bytes(Role role) const;
    // Refuses a plan beyond a limit: the error names the largest rows, need, have and remedy.
    Status check() const;
    std::string table() const;
};

// "1.25 GiB", "640 KiB", "17 B".
std::string human_bytes(uint64_t bytes);

// Bytes that the system says can be had without swapping; 0 when it does not say.
uint64_t available_memory();

}  // namespace terrace
