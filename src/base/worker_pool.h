// A fixed team of threads for CPU kernels and start-up work. Partition is static, by index, so
// which worker computes an element never changes what is computed. The caller is worker 0.
//
// run() may be called by one thread at a time (the engine thread) and never from inside a job;
// workers spin for a while after their work, because the next operation of a step comes within
// microseconds, then park on an atomic. Nothing is allocated per call. Workers are pinned node by node
// to the CPUs that the process may use when asked (Pinning::cores), else left to the scheduler.
// SPDX-License-Identifier: MIT
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace terrace {

// Non-owning reference to a callable: two words, no allocation.
template <class Sig>
class FunctionRef;

template <class R, class... A>
class FunctionRef<R(A...)> {
  public:
    template <class F>
        requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
    FunctionRef(F&& f)  // NOLINT: meant to bind lambdas at the call
        : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* o, A... a) -> R {
              return (*static_cast<std::remove_reference_t<F>*>(o))(a...);
          }) {}
    R operator()(A... a) const { return call_(object_, a...); }

  private:
    void* object_;
    R (*call_)(void*, A...);
};

enum class Pinning { off, cores };

class WorkerPool {
  public:
    // Fewer threads than asked when the system refuses one: size() says how many, a warning why.
    explicit WorkerPool(int n_threads, Pinning pinning = Pinning::off);
    ~WorkerPool();
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    int size() const { return n_threads_; }

    // Calls fn(worker, n_workers) once on every worker; returns when all are done.
    void run(FunctionRef<void(int, int)> fn);

    // Splits [0, n) into size() contiguous ranges whose borders are multiples of `grain`, and calls
    // fn(begin, end, worker) for the non-empty ones. Runs inline when one range holds everything.
    void ranges(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> fn);

  private:
    void worker_main(int worker);

    int n_threads_;
    std::vector<std::thread> threads_;
    // Generation counter: a new job is a new value; workers wait for the change.
    alignas(64) std::atomic<uint32_t> generation_{0};
    alignas(64) std::atomic<int> remaining_{0};
    std::atomic<bool> stop_{false};
    const FunctionRef<void(int, int)>* job_ = nullptr;
};

}  // namespace terrace
