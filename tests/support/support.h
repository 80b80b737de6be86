// Helpers shared by the tests: check a Result and take its value, scratch folders, seeded numbers.
// SPDX-License-Identifier: MIT
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/error.h"

namespace terrace::test {

// Value of a Result that must have one; prints the error and stops the test binary otherwise.
template <class T>
T must(Result<T> r, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (!r) check_failed("must(result)", file, line, r.error().message);
    if constexpr (!std::is_void_v<T>) return std::move(r).value();
}

// A folder under the system's temporary one, removed with the object.
class TempDir {
  public:
    TempDir();
    ~TempDir();
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

// SplitMix64: the same numbers on every machine, unlike the standard distributions.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next();
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
    double normal();                                                          // mean 0, variance 1
    int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
    std::vector<float> normals(size_t n, float scale = 1.0f);

  private:
    uint64_t state_;
};

// Calls of operator new by this process; only in binaries with support/allocation_counter.cpp.
int64_t allocations_so_far();

void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace terrace::test

#define EXPECT_OK(expr)                                                    \
    do {                                                                   \
        const auto& expect_ok_ = (expr);                                   \
        EXPECT_TRUE(expect_ok_.has_value()) << expect_ok_.error().message; \
    } while (0)
#define ASSERT_OK(expr)                                                    \
    do {                                                                   \
        const auto& expect_ok_ = (expr);                                   \
        ASSERT_TRUE(expect_ok_.has_value()) << expect_ok_.error().message; \
    } while (0)
