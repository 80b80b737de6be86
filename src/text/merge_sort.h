// A stable sort that stays in bounds whatever the order says: templates can compare NaN, which has
// none. Stands in for std::stable_sort because clang 19 rejects libstdc++ 12's (it uses
// std::get_temporary_buffer, deprecated). O(n log n), one buffer of n. Any thread, no state.
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace terrace {

// Sorts v[begin, end); less may throw, which leaves v with moved-from elements.
template <class T, class Less>
void merge_sort(std::vector<T>& v, size_t begin, size_t end, Less&& less) {
    std::vector<T> merged;
    merged.reserve(end - begin);
    for (size_t run = 1; run < end - begin; run *= 2) {
        merged.clear();
        for (size_t low = begin; low < end; low += 2 * run) {
            const size_t middle = std::min(low + run, end), high = std::min(low + 2 * run, end);
            size_t a = low, b = middle;
            while (a < middle && b < high)
                merged.push_back(std::move(less(v[b], v[a]) ? v[b++] : v[a++]));
            while (a < middle)
                merged.push_back(std::move(v[a++]));
            while (b < high)
                merged.push_back(std::move(v[b++]));
        }
        std::move(merged.begin(), merged.end(), v.begin() + static_cast<ptrdiff_t>(begin));
    }
}

}  // namespace terrace
