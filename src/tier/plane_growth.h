// Makes the pages of planes in pinned host memory usable in the background: page by page in all
// planes at once, ascending, so that the first [0, ready()) pages of the pool can be handed out. Owns
// the thread; the buffers belong to KvPlanes and outlive it.
//
// Threads: made, started and destroyed by the engine thread, which alone calls wait_for(); ready() and
// failure() are for any thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/growing.h"

namespace terrace {

class PlaneGrowth {
  public:
    // A plane: its reserved buffer and the bytes of one page in it.
    struct Plane {
        const Buffer* buffer;
        size_t page_bytes;
    };
    // `step` pages are made usable at a time.
    PlaneGrowth(GrowsPinned& device, std::vector<Plane> planes, int32_t pages, int32_t step);
    ~PlaneGrowth();
    PlaneGrowth(const PlaneGrowth&) = delete;
    PlaneGrowth& operator=(const PlaneGrowth&) = delete;

    // One step on the calling thread; not after start(). Error: what the system refused.
    Status step();
    void start();  // the rest in the background

    int32_t ready() const { return ready_.load(std::memory_order_acquire); }
    bool done() const { return ready() == pages_; }
    // Blocks until `pages` are usable. Without start() it makes the steps itself. An error, with the
    // reason, when growth stopped before.
    Status wait_for(int32_t pages);

  private:
    void run();

    GrowsPinned& device_;
    std::vector<Plane> planes_;
    int32_t pages_, step_;
    std::atomic<int32_t> ready_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string failure_;  // guarded by mutex_; empty: none
    bool over_ = false;    // guarded by mutex_: the thread makes no more steps
    std::thread thread_;
};

}  // namespace terrace
