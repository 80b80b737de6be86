// SPDX-License-Identifier: MIT
#include "base/worker_pool.h"

#include <immintrin.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace terrace {
namespace {

// 20 to 130 us (a pause takes 40 cycles on older processors, 140 on newer): longer than the gap
// between two operations of a decode step, shorter than anything a person or a power meter notices.
constexpr int kSpins = 2000;

// The NUMA node of a CPU, 0 where the system does not say.
int node_of(int cpu) {
    for (int node = 0; node < 64; ++node) {
        const std::string path =
            "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/node" + std::to_string(node);
        if (::access(path.c_str(), F_OK) == 0) return node;
    }
    return 0;
}

// CPUs this process may use, node by node: neighbouring workers hold neighbouring index ranges, and
// share the caches and the memory of one node.
std::vector<int> allowed_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<std::pair<int, int>> placed;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int c = 0; c < CPU_SETSIZE; ++c)
            if (CPU_ISSET(c, &set)) placed.emplace_back(node_of(c), c);
    std::sort(placed.begin(), placed.end());
    std::vector<int> cpus;
    cpus.reserve(placed.size());
    for (const auto& [node, cpu] : placed)
        cpus.push_back(cpu);
    return cpus;
}

}  // namespace

WorkerPool::WorkerPool(int n_threads, Pinning pinning) : n_threads_(std::max(1, n_threads)) {
    const std::vector<int> cpus = pinning == Pinning::cores ? allowed_cpus() : std::vector<int>{};
    threads_.reserve(static_cast<size_t>(n_threads_ - 1));
    for (int w = 1; w < n_threads_; ++w) {
        try {
            threads_.emplace_back([this, w] { worker_main(w); });
        } catch (const std::system_error&) {
            // Workers read the size only after their first job is published: lowering it is safe.
            n_threads_ = w;
            log_warn("worker pool: the system refused another thread: computing with " +
                     std::to_string(w) + "; lower --threads or raise the process limit");
            break;
        }
        if (!cpus.empty()) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpus[static_cast<size_t>(w) % cpus.size()], &one);
            pthread_setaffinity_np(threads_.back().native_handle(), sizeof one, &one);
        }
    }
}

WorkerPool::~WorkerPool() {
    stop_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    for (std::thread& t : threads_)
        t.join();
}

void WorkerPool::worker_main(int worker) {
    uint32_t seen = 0;
    for (;;) {
        int spins = 0;
        while (generation_.load(std::memory_order_acquire) == seen) {
            if (++spins < kSpins)
                _mm_pause();
            else
                generation_.wait(seen, std::memory_order_acquire);
        }
        ++seen;
        if (stop_.load(std::memory_order_relaxed)) return;
        (*job_)(worker, n_threads_);
        if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
    }
}

void WorkerPool::run(FunctionRef<void(int, int)> fn) {
    if (n_threads_ == 1) {
        fn(0, 1);
        return;
    }
    TERRACE_CHECK(job_ == nullptr);  // a run inside a run would wait for itself
    job_ = &fn;
    remaining_.store(n_threads_ - 1, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    fn(0, n_threads_);
    int spins = 0;
    for (int left; (left = remaining_.load(std::memory_order_acquire)) != 0;) {
        if (++spins < kSpins)
            _mm_pause();
        else
            remaining_.wait(left, std::memory_order_acquire);
    }
    job_ = nullptr;
}

void WorkerPool::ranges(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> fn) {
    TERRACE_DCHECK(grain > 0);
    if (n <= 0) return;
    const int64_t units = (n + grain - 1) / grain;
    if (n_threads_ == 1 || units == 1) {
        fn(0, n, 0);
        return;
    }
    run([&](int worker, int workers) {
        const int64_t first = units * worker / workers * grain;
        const int64_t last = std::min(n, units * (worker + 1) / workers * grain);
        if (first < last) fn(first, last, worker);
    });
}

}  // namespace terrace
