// What crossed the link on behalf of K and V. Engine thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>

namespace terrace {

struct KvTraffic {
    int64_t staged_steps = 0;  // steps whose prefilled rows read by way of the arena
    int64_t staged_pages = 0;  // pages of one layer that were copied there, whole
    int64_t staged_bytes = 0;  // all that was copied there
};

}  // namespace terrace
