// The worker pool: every index once, borders on the grain, hand-over of many small jobs, and its
// end in every state a worker can be in (spinning, parked, never woken).
// SPDX-License-Identifier: MIT
#include "base/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/error.h"
#include "support/support.h"

namespace terrace::test {
namespace {

struct Range {
    int64_t begin, end;
    int worker;
};

std::vector<Range> ranges_of(WorkerPool& pool, int64_t n, int64_t grain) {
    std::mutex mutex;
    std::vector<Range> out;
    pool.ranges(n, grain, [&](int64_t begin, int64_t end, int worker) {
        const std::lock_guard lock(mutex);
        out.push_back({begin, end, worker});
    });
    std::sort(out.begin(), out.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    return out;
}

TEST(WorkerPool, EveryIndexComesOnceAndBordersAreMultiplesOfTheGrain) {
    for (const int threads : {1, 2, 3, 5, 8}) {
        WorkerPool pool(threads);
        for (const int64_t grain : {1, 2, 7, 16, 1000})
            for (const int64_t n : {1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 63, 100, 1000, 1001, 12345}) {
                const auto ranges = ranges_of(pool, n, grain);
                int64_t next = 0;
                for (const Range& r : ranges) {
                    ASSERT_EQ(r.begin, next) << threads << " " << grain << " " << n;
                    ASSERT_LT(r.begin, r.end);
                    ASSERT_EQ(r.begin % grain, 0);
                    ASSERT_TRUE(r.end % grain == 0 || r.end == n);
                    ASSERT_TRUE(r.worker >= 0 && r.worker < threads);
                    next = r.end;
                }
                ASSERT_EQ(next, n) << threads << " " << grain;
            }
    }
}

TEST(WorkerPool, PartitionIsTheSameEveryTimeAndBalanced) {
    WorkerPool pool(3);
    const auto first = ranges_of(pool, 100, 8);  // 13 units
    ASSERT_EQ(first.size(), 3u);
    for (int i = 0; i < 50; ++i) {
        const auto again = ranges_of(pool, 100, 8);
        ASSERT_EQ(again.size(), first.size());
        for (size_t r = 0; r < first.size(); ++r) {
            ASSERT_EQ(again[r].begin, first[r].begin);
            ASSERT_EQ(again[r].worker, first[r].worker);
        }
    }
    for (const Range& r : first)
        EXPECT_TRUE((r.end - r.begin + 7) / 8 == 4 || (r.end - r.begin + 7) / 8 == 5);
}

TEST(WorkerPool, NothingToDoCallsNobody) {
    WorkerPool pool(2);
    EXPECT_TRUE(ranges_of(pool, 0, 4).empty());
    EXPECT_TRUE(ranges_of(pool, -3, 4).empty());
}

TEST(WorkerPool, OneRangeRunsOnTheCallersThread) {
    WorkerPool pool(4);
    std::thread::id id;
    pool.ranges(16, 16, [&](int64_t, int64_t, int worker) {
        id = std::this_thread::get_id();
        EXPECT_EQ(worker, 0);
    });
    EXPECT_EQ(id, std::this_thread::get_id());
}

TEST(WorkerPool, RunCallsEveryWorkerOnceAndTheCallerIsWorkerZero) {
    WorkerPool pool(5);
    std::vector<std::atomic<int>> calls(5);
    std::vector<std::thread::id> ids(5);
    pool.run([&](int worker, int workers) {
        EXPECT_EQ(workers, 5);
        ids[static_cast<size_t>(worker)] = std::this_thread::get_id();
        ++calls[static_cast<size_t>(worker)];
    });
    for (const auto& c : calls)
        EXPECT_EQ(c.load(), 1);
    EXPECT_EQ(ids[0], std::this_thread::get_id());
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST(WorkerPool, SizeIsAtLeastOne) {
    for (const int n : {-1, 0, 1}) {
        WorkerPool pool(n);
        EXPECT_EQ(pool.size(), 1);
        int calls = 0;
        pool.run([&](int, int workers) { calls += workers; });
        EXPECT_EQ(calls, 1);
    }
}

// Plain, not atomic: the pool's own hand-over must order one job's writes before the next job's
// reads, by another worker. A sanitizer or a wrong sum shows when it does not.
TEST(WorkerPool, ManySmallJobsSeeEachOthersWrites) {
    WorkerPool pool(2);
    constexpr int kJobs = 40000;
    int64_t cells[2] = {0, 0};
    for (int job = 0; job < kJobs; ++job)
        pool.run([&](int worker, int) { cells[(worker + job) % 2] += 1 + worker; });
    EXPECT_EQ(cells[0] + cells[1], int64_t{3} * kJobs);
    EXPECT_EQ(cells[0], cells[1]);
}

TEST(WorkerPool, MoreWorkersThanProcessorsStillFinishEveryJob) {
    WorkerPool pool(7);
    std::vector<int64_t> sums(7 * 8);  // one cache line each
    for (int job = 0; job < 1500; ++job)
        pool.run([&](int worker, int) { sums[static_cast<size_t>(worker) * 8] += job; });
    for (size_t w = 0; w < 7; ++w)
        EXPECT_EQ(sums[w * 8], int64_t{1500} * 1499 / 2);
}

TEST(WorkerPool, WorkAfterAPauseLongEnoughToParkIsDone) {
    WorkerPool pool(3);
    std::atomic<int> calls{0};
    for (int i = 0; i < 5; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        pool.run([&](int, int) { ++calls; });
    }
    EXPECT_EQ(calls.load(), 15);
}

TEST(WorkerPool, PoolsEndWhileWorkersAreStartingSpinningOrParked) {
    for (int i = 0; i < 100; ++i) {
        {
            const WorkerPool unused(3);
        }
        WorkerPool pool(3);
        std::atomic<int> calls{0};
        pool.run([&](int, int) { ++calls; });
        ASSERT_EQ(calls.load(), 3);
        if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

TEST(WorkerPool, PinnedWorkersComputeTheSame) {
    WorkerPool pool(3, Pinning::cores);
    int64_t next = 0;
    for (const Range& r : ranges_of(pool, 1000, 3)) {
        EXPECT_EQ(r.begin, next);
        next = r.end;
    }
    EXPECT_EQ(next, 1000);
}

TEST(WorkerPoolDeathTest, ARunInsideARunIsABrokenPromise) {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    EXPECT_DEATH(
        {
            WorkerPool pool(2);
            pool.run([&](int worker, int) {
                if (worker == 0) pool.run([](int, int) {});
            });
        },
        "worker_pool.cpp");
}

}  // namespace
}  // namespace terrace::test
