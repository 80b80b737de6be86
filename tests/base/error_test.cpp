// Result, Status and the two macros that pass errors on.
// SPDX-License-Identifier: MIT
#include "base/error.h"

#include <memory>

#include "support/support.h"

namespace terrace::test {
namespace {

Result<int> half_of(int v) {
    if (v % 2 != 0) return Error{Code::invalid_argument, "odd"};
    return v / 2;
}

Status halve_twice(int& v, int& reached) {
    TERRACE_ASSIGN(v, half_of(v));
    reached = 1;
    TERRACE_ASSIGN(const int again, half_of(v));
    reached = 2;
    v = again;
    return {};
}

Result<std::string> try_status(const Status& status, int& reached) {
    TERRACE_TRY(status);
    reached = 1;
    TERRACE_TRY(half_of(4));  // a temporary works too
    reached = 2;
    return std::string("done");
}

TEST(Result, AssignBindsTheValueAndGoesOn) {
    int v = 12, reached = 0;
    EXPECT_OK(halve_twice(v, reached));
    EXPECT_EQ(v, 3);
    EXPECT_EQ(reached, 2);
}

TEST(Result, AssignReturnsTheFirstErrorAndStopsThere) {
    int v = 6, reached = 0;
    const Status s = halve_twice(v, reached);
    ASSERT_FALSE(s);
    EXPECT_EQ(s.error().code, Code::invalid_argument);
    EXPECT_EQ(s.error().message, "odd");
    EXPECT_EQ(reached, 1);
    EXPECT_EQ(v, 3);
}

TEST(Result, TryPassesAnErrorToAnotherResultType) {
    int reached = 0;
    const auto r = try_status(Error{Code::io, "disk"}, reached);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::io);
    EXPECT_EQ(r.error().message, "disk");
    EXPECT_EQ(reached, 0);
}

TEST(Result, TryLeavesTheCallersStatusIntact) {
    const Status status = Error{Code::io, "disk"};
    int reached = 0;
    EXPECT_FALSE(try_status(status, reached));
    EXPECT_EQ(status.error().message, "disk");
    EXPECT_TRUE(try_status({}, reached));
    EXPECT_EQ(reached, 2);
}

TEST(Result, AssignMovesWhatCannotBeCopied) {
    const auto make = [](bool good) -> Result<std::unique_ptr<int>> {
        if (!good) return Error{Code::internal, "no"};
        return std::make_unique<int>(7);
    };
    const auto use = [&](bool good) -> Result<int> {
        TERRACE_ASSIGN(const std::unique_ptr<int> p, make(good));
        return *p;
    };
    EXPECT_EQ(use(true).value(), 7);
    EXPECT_FALSE(use(false));
}

TEST(Error, InPutsThePlaceInFrontAndKeepsTheCode) {
    const Error e{Code::corrupt_data, "need 4, have 3"};
    const Error outer = e.in("config.json").in("model");
    EXPECT_EQ(outer.message, "model: config.json: need 4, have 3");
    EXPECT_EQ(outer.code, Code::corrupt_data);
    EXPECT_EQ(e.message, "need 4, have 3");
}

TEST(Error, EveryCodeHasANameOfItsOwn) {
    std::vector<std::string_view> names;
    for (const Code c :
         {Code::invalid_argument, Code::not_found, Code::unsupported, Code::corrupt_data,
          Code::out_of_memory, Code::io, Code::cancelled, Code::internal}) {
        for (const std::string_view other : names)
            EXPECT_NE(to_string(c), other);
        names.push_back(to_string(c));
    }
}

TEST(CheckDeathTest, ABrokenPromiseStopsWithThePlaceAndTheExpression) {
    EXPECT_DEATH(TERRACE_CHECK(1 + 1 == 3), "error_test.cpp:.*1 \\+ 1 == 3");
}

}  // namespace
}  // namespace terrace::test
