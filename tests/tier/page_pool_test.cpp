// The page pool's named behaviours.
// SPDX-License-Identifier: MIT
#include "tier/page_pool.h"

#include <gmock/gmock.h>

#include "support/support.h"

namespace terrace::test {
namespace {

TEST(PagePool, FreedPageIsReusedBeforeGrowthLastFreedFirst) {
    PagePool pool(5);
    const PageId a = must(pool.acquire()), b = must(pool.acquire()), c = must(pool.acquire());
    EXPECT_NE(a, b);
    EXPECT_NE(b, c);
    pool.release(a);
    pool.release(c);
    EXPECT_EQ(must(pool.acquire()), c);
    EXPECT_EQ(must(pool.acquire()), a);
    const PageId d = must(pool.acquire());
    EXPECT_TRUE(d != a && d != b && d != c);
}

TEST(PagePool, ASharedPageIsFreeAfterItsLastRelease) {
    PagePool pool(2);
    const PageId a = must(pool.acquire());
    pool.share(a);
    pool.share(a);
    EXPECT_EQ(pool.count(a), 3);
    EXPECT_EQ(pool.free_pages(), 1);
    pool.release(a);
    pool.release(a);
    EXPECT_EQ(pool.count(a), 1);
    EXPECT_EQ(pool.free_pages(), 1);
    pool.release(a);
    EXPECT_EQ(pool.count(a), 0);
    EXPECT_EQ(pool.free_pages(), 2);
}

TEST(PagePool, AllPagesCanBeHeldAndOneMoreIsAnErrorThatSaysWhatToDo) {
    PagePool pool(3);
    std::vector<bool> seen(3);
    for (int i = 0; i < 3; ++i)
        seen[static_cast<size_t>(ix(must(pool.acquire())))] = true;
    EXPECT_EQ(seen, std::vector<bool>(3, true));
    for (int i = 0; i < 2; ++i) {
        const auto r = pool.acquire();
        ASSERT_FALSE(r);
        EXPECT_EQ(r.error().code, Code::out_of_memory);
        EXPECT_THAT(r.error().message, ::testing::HasSubstr("all 3 are in use"));
        EXPECT_THAT(r.error().message, ::testing::HasSubstr("--ctx"));
    }
    EXPECT_EQ(pool.free_pages(), 0);
    pool.release(PageId{1});
    EXPECT_EQ(must(pool.acquire()), PageId{1});
}

TEST(PagePool, AnEmptyPoolHasNothing) {
    PagePool pool(0);
    EXPECT_EQ(pool.free_pages(), 0);
    EXPECT_FALSE(pool.acquire());
}

TEST(PagePoolDeathTest, ReleasingOrSharingAFreePageIsABrokenPromise) {
    PagePool pool(2);
    const PageId a = must(pool.acquire());
    pool.release(a);
    EXPECT_DEATH(pool.release(a), "broken promise");
    EXPECT_DEATH(pool.share(a), "broken promise");
}

}  // namespace
}  // namespace terrace::test
