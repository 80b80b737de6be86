// SPDX-License-Identifier: MIT
#include "tier/plane_growth.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/types.h"
#include "device/planes.h"

namespace terrace {
namespace {

// Borders of steps inside a plane: pinned memory comes in system pages. The last one is the end.
size_t border(size_t page_bytes, int32_t pages, int32_t all, size_t bytes) {
    constexpr size_t kSystemPage = 4096;
    if (pages == all) return bytes;
    return (page_bytes * static_cast<size_t>(pages) + kSystemPage - 1) / kSystemPage * kSystemPage;
}

}  // namespace

PlaneGrowth::PlaneGrowth(GrowsPinned& device, std::vector<Plane> planes, int32_t pages,
                         int32_t step)
    : device_(device), planes_(std::move(planes)), pages_(pages), step_(std::max(step, 1)) {}

PlaneGrowth::~PlaneGrowth() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
}

Status PlaneGrowth::step() {
    const int32_t from = ready(), to = std::min(from + step_, pages_);
    for (const Plane& p : planes_) {
        const size_t bytes = p.buffer->bytes();
        const size_t begin = std::min(border(p.page_bytes, from, pages_, bytes), bytes);
        const size_t end = std::min(border(p.page_bytes, to, pages_, bytes), bytes);
        if (begin == end) continue;
        if (Status s = device_.grow_pinned(*p.buffer, begin, end); !s) {
            const std::lock_guard lock(mutex_);
            failure_ = s.error().message;
            over_ = true;
            changed_.notify_all();
            return s;
        }
    }
    {
        const std::lock_guard lock(mutex_);
        ready_.store(to, std::memory_order_release);
    }
    changed_.notify_all();
    return {};
}

void PlaneGrowth::start() {
    if (!done()) thread_ = std::thread([this] { run(); });
}

void PlaneGrowth::run() {
    while (!stop_ && !done())
        if (Status s = step(); !s) {
            log_warn(
                fmt::format("K/V planes: {} of {} pages of {} tokens are pinned, no more can be: "
                            "{}; requests that need more will be refused",
                            ready(), pages_, kPageTokens, s.error().message));
            break;
        }
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
}

Status PlaneGrowth::wait_for(int32_t pages) {
    if (pages <= ready()) return {};
    std::unique_lock lock(mutex_);
    if (!thread_.joinable()) {
        while (failure_.empty() && ready() < pages) {
            lock.unlock();
            (void)step();
            lock.lock();
        }
    } else {
        changed_.wait(lock, [&] { return over_ || ready() >= pages; });
    }
    if (ready() >= pages) return {};
    return Error{Code::out_of_memory,
                 fmt::format("K/V planes: need {} pages of {} tokens, {} could be pinned: {}",
                             pages, kPageTokens, ready(), failure_)};
}

}  // namespace terrace
