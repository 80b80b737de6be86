// The list of blocks of a row.
// SPDX-License-Identifier: MIT
#pragma once

namespace terrace::cuda {

// How many of the first `n` entries are blocks below `border`; without a list entry i is block i.
__device__ __forceinline__ int entries_below(const int* list, int n, int border) {
    if (!list) return min(n, border);
    int low = 0, high = n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (list[middle] < border)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

}  // namespace terrace::cuda
