// What is asked of the process once: environment, processor, log level; and names of types.
// SPDX-License-Identifier: MIT
#include <cstdlib>
#include <set>
#include <string>

#include "base/cpu_features.h"
#include "base/env.h"
#include "base/log.h"
#include "base/types.h"
#include "support/support.h"

namespace terrace::test {
namespace {

TEST(Environment, AnUnsetVariableIsAbsentAndAnEmptyOneIsEmpty) {
    ::unsetenv("TERRACE_TEST_VALUE");
    EXPECT_FALSE(read_env("TERRACE_TEST_VALUE").has_value());
    ::setenv("TERRACE_TEST_VALUE", "", 1);
    EXPECT_EQ(read_env("TERRACE_TEST_VALUE"), "");
    ::setenv("TERRACE_TEST_VALUE", "two words=2", 1);
    EXPECT_EQ(read_env("TERRACE_TEST_VALUE"), "two words=2");
    // A view into a longer string names only its own characters.
    EXPECT_EQ(read_env(std::string_view("TERRACE_TEST_VALUE_LONGER").substr(0, 18)), "two words=2");
    ::unsetenv("TERRACE_TEST_VALUE");
}

TEST(CpuFeatures, WiderSetsImplyTheNarrowerOnes) {
    const CpuFeatures& f = cpu_features();
    EXPECT_TRUE(!f.avx512 || f.avx2);
    EXPECT_TRUE(!f.avx512_vbmi || f.avx512);
    EXPECT_GE(f.physical_threads, 1);
    EXPECT_FALSE(f.name.empty());
    EXPECT_EQ(&f, &cpu_features());
}

TEST(Log, LinesAboveTheLevelAreNotWritten) {
    const LogLevel before = log_level();
    set_log_level(LogLevel::warn);
    ::testing::internal::CaptureStderr();
    log_info("hidden");
    log_warn("shown 1");
    set_log_level(LogLevel::quiet);
    log_warn("hidden");
    set_log_level(LogLevel::debug);
    log_debug("shown 2");
    const std::string text = ::testing::internal::GetCapturedStderr();
    set_log_level(before);
    EXPECT_EQ(text.find("hidden"), std::string::npos) << text;
    EXPECT_NE(text.find("shown 1\n"), std::string::npos) << text;
    EXPECT_NE(text.find("shown 2\n"), std::string::npos) << text;
}

TEST(DType, EveryTypeHasANameOfItsOwnThatTellsItsSize) {
    std::set<std::string_view> names;
    for (int i = 0; i <= static_cast<int>(DType::f8_e5m2); ++i) {
        const auto t = static_cast<DType>(i);
        const std::string name(to_string(t));
        EXPECT_TRUE(names.insert(to_string(t)).second) << name;
        // "BF16" ends in its bits; F8_E4M3 and BOOL are one byte.
        const size_t digit = name.find_first_of("0123456789");
        const size_t bits = digit == std::string::npos ? 8 : std::stoul(name.substr(digit));
        EXPECT_EQ(dtype_bytes(t), bits / 8) << name;
    }
}

}  // namespace
}  // namespace terrace::test
