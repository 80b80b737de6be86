// What one core can read: the floor that the benchmarks print beside their figures. Four streams with
// several vector loads in flight, the best of five passes; needs AVX2, which the kernels need too.
// SPDX-License-Identifier: MIT
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace terrace::bench {

__attribute__((target("avx2"))) inline uint64_t sum_of(std::span<const uint64_t> data) {
    const size_t quarter = data.size() / 4 / 16 * 16;
    const auto* p = reinterpret_cast<const __m256i*>(data.data());
    const size_t step = quarter / 4;  // vectors of four words
    __m256i a[4] = {}, b[4] = {};
    for (size_t i = 0; i + 2 <= step; i += 2)
        for (size_t s = 0; s < 4; ++s) {
            a[s] = _mm256_add_epi64(a[s], _mm256_loadu_si256(p + s * step + i));
            b[s] = _mm256_add_epi64(b[s], _mm256_loadu_si256(p + s * step + i + 1));
        }
    uint64_t words[4], sum = 0;
    for (size_t s = 0; s < 4; ++s) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_add_epi64(a[s], b[s]));
        sum += words[0] + words[1] + words[2] + words[3];
    }
    return sum;
}

// Bytes per second; `clock` returns seconds. `sink` keeps the sums alive.
template <class Clock>
double read_bandwidth(std::span<const uint64_t> data, Clock&& clock, uint64_t& sink) {
    double best = 1e30;
    for (int r = 0; r < 5; ++r) {
        const double start = clock();
        sink += sum_of(data);
        best = std::min(best, clock() - start);
    }
    return static_cast<double>(data.size() * 8) / best;
}

}  // namespace terrace::bench
