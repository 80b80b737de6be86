// Charges: limits, roles, what comes back when a reservation dies, and what a refusal says.
// SPDX-License-Identifier: MIT
#include "tier/budget.h"

#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "support/support.h"

namespace terrace::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Budget, GrantsUpToTheLastByteAndNotOneMore) {
    Budget budget("host memory", 100);
    const auto a = must(budget.reserve(Role::weights, 60, "a"));
    const auto b = must(budget.reserve(Role::kv, 40, "b"));
    EXPECT_EQ(budget.used(), 100u);
    EXPECT_FALSE(budget.reserve(Role::kv, 1, "c"));
    EXPECT_TRUE(budget.reserve(Role::kv, 0, "nothing"));
    EXPECT_EQ(budget.used(), 100u);
}

TEST(Budget, ARequestThatWouldOverflowTheSumIsRefused) {
    Budget budget("host memory", 100);
    const auto a = must(budget.reserve(Role::weights, 60, "a"));
    EXPECT_FALSE(budget.reserve(Role::kv, std::numeric_limits<size_t>::max() - 10, "b"));
    EXPECT_EQ(budget.used(), 60u);
}

TEST(Budget, EachRoleIsCountedByItself) {
    Budget budget("host memory", 0);
    std::vector<Reservation> held;
    for (int r = 0; r < kRoles; ++r)
        held.push_back(must(
            budget.reserve(static_cast<Role>(r), size_t{1} << r, to_string(static_cast<Role>(r)))));
    for (int r = 0; r < kRoles; ++r)
        EXPECT_EQ(budget.used(static_cast<Role>(r)), size_t{1} << r);
    EXPECT_EQ(budget.used(), (size_t{1} << kRoles) - 1);
    held.erase(held.begin() + 3);
    EXPECT_EQ(budget.used(static_cast<Role>(3)), 0u);
    EXPECT_EQ(budget.used(), (size_t{1} << kRoles) - 1 - 8);
}

TEST(Budget, RolesHaveNamesOfTheirOwn) {
    std::set<std::string_view> names;
    for (int r = 0; r < kRoles; ++r)
        EXPECT_TRUE(names.insert(to_string(static_cast<Role>(r))).second) << r;
}

TEST(Budget, WithoutALimitEverythingIsGrantedAndCounted) {
    Budget budget("host memory", 0);
    const auto a = must(budget.reserve(Role::experts, size_t{1} << 50, "a"));
    EXPECT_EQ(budget.used(Role::experts), size_t{1} << 50);
    EXPECT_EQ(budget.limit(), 0u);
}

TEST(Budget, ADyingReservationGivesItsBytesBackOnce) {
    Budget budget("host memory", 100);
    {
        Reservation a = must(budget.reserve(Role::kv, 70, "a"));
        Reservation b = std::move(a);
        EXPECT_EQ(a.bytes(), 0u);  // NOLINT: a moved-from charge is empty
        EXPECT_EQ(b.bytes(), 70u);
        EXPECT_EQ(budget.used(), 70u);
        b = must(budget.reserve(Role::state, 20, "c"));  // frees the 70
        EXPECT_EQ(budget.used(), 20u);
        EXPECT_EQ(budget.used(Role::kv), 0u);
        b = Reservation{};
        EXPECT_EQ(budget.used(), 0u);
        b = must(budget.reserve(Role::state, 5, "d"));
    }
    EXPECT_EQ(budget.used(), 0u);
}

TEST(Budget, ARefusalNamesWhatNeedHaveLargestRolesAndRemedy) {
    Budget budget("host memory", 1000);
    const auto a = must(budget.reserve(Role::kv, 100, "planes"));
    const auto b = must(budget.reserve(Role::weights, 500, "weights"));
    const auto c = must(budget.reserve(Role::state, 50, "state"));
    const auto d = must(budget.reserve(Role::logits, 1, "logits"));
    const auto r = budget.reserve(Role::pooled_index, 777, "attention layer 3 of 12");
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::out_of_memory);
    const std::string& text = r.error().message;
    for (const char* part : {"host memory", "attention layer 3 of 12", "pooled index plane",
                             "needs 777", "349 of 1000", "taken: weights 500, K/V planes 100, ",
                             "recurrent state 50", "lower --ctx"})
        EXPECT_THAT(text, HasSubstr(part));
    EXPECT_THAT(text, Not(HasSubstr("logits")));  // the largest three only
    EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Budget, AnEmptyBudgetsRefusalListsNoRoles) {
    Budget budget("VRAM", 10);
    const auto r = budget.reserve(Role::kv, 11, "planes");
    ASSERT_FALSE(r);
    EXPECT_THAT(r.error().message, HasSubstr("10 of 10 are free: "));
}

TEST(ChargedBuffer, TheChargeLivesAsLongAsTheBuffer) {
    const auto device = make_host_device();
    Budget budget("host memory", 4096);
    {
        const ChargedBuffer b = must(allocate_charged(*device, budget, Role::kv, 4096,
                                                      MemSpace::device, Fill::zero, "planes"));
        EXPECT_EQ(b.buffer.bytes(), 4096u);
        EXPECT_EQ(budget.used(Role::kv), 4096u);
        EXPECT_FALSE(
            allocate_charged(*device, budget, Role::kv, 1, MemSpace::device, Fill::zero, "more"));
    }
    EXPECT_EQ(budget.used(), 0u);
}

TEST(ChargedBuffer, WhatTheDeviceRefusesIsNotCharged) {
    const auto device = make_host_device();
    Budget budget("host memory", 0);
    const auto r = allocate_charged(*device, budget, Role::kv, size_t{1} << 60, MemSpace::device,
                                    Fill::unspecified, "attention layer 1 of 2");
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::out_of_memory);
    EXPECT_THAT(r.error().message, HasSubstr("attention layer 1 of 2: "));
    EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace terrace::test
