// A device without hardware, for proving that everything around kernels is right: its own memory
// space, asynchronous streams and events, and a seeded scheduler that delays and reorders whatever
// events do not order. One run is a function of its seed alone.
//
//   order    Work is queued and runs later: when the host waits, or a few tasks at a time at moments
//            that the seed picks. Among streams whose next task may run the seed picks one.
//   memory   Device memory is mapped without access while the host runs, so that a host access
//            faults with a message; fresh memory holds 0xff bytes (NaN); freed memory stays without
//            access for the device's life, so that a late use faults too. Freeing memory that queued
//            work still needs is a fault.
//   races    Every task says what it reads and writes when it runs. Two tasks that touch the same
//            bytes, one of them writing, without an event, a stream or a host wait between them, are
//            a fault, whichever order they happened to run in (vector clocks).
//
// Faults are errors of the call that met them, and are kept in faults(). Everything, tasks too,
// runs on the calling thread: a schedule can be repeated from its seed. Engine thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "device/growing.h"

namespace terrace {

enum class AccessKind : uint8_t { read, write };

struct MemoryAccess {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    AccessKind kind = AccessKind::read;
};

class EmulatedDevice;

// A unit of work. `touch` is asked right before `run`, with device memory readable, since what a task
// touches may lie in device memory (page tables).
struct EmulatedTask {
    std::string what;
    std::function<void(std::vector<MemoryAccess>&)> touch;
    std::function<Status()> run;
};

class EmulatedStream final : public Stream {
  public:
    EmulatedStream(EmulatedDevice& device, size_t index) : device_(device), index_(index) {}
    ~EmulatedStream() override;
    Device& device() override;
    Status enqueue(EmulatedTask task);

    Status copy(void* to, const void* from, size_t bytes) override;
    Status fill(void* to, std::byte value, size_t bytes) override;
    Status record(Event& event) override;
    Status wait(Event& event) override;
    Status synchronize() override;
    Status begin_capture() override;
    Result<std::unique_ptr<Graph>> end_capture() override;
    Status launch(Graph& graph) override;

  private:
    friend class EmulatedDevice;
    EmulatedDevice& device_;
    size_t index_;
    bool capturing_ = false;
    std::vector<EmulatedTask> captured_;
};

class EmulatedDevice final : public Device, public GrowsPinned {
  public:
    // `bytes` of device memory; allocations beyond it fail as on a GPU.
    static Result<std::unique_ptr<EmulatedDevice>> create(uint64_t seed, size_t bytes);
    ~EmulatedDevice() override;

    DeviceKind kind() const override { return DeviceKind::emulated; }
    const std::string& name() const override { return name_; }
    bool unified() const override { return false; }
    bool has_graphs() const override { return true; }
    size_t free_bytes() const override { return capacity_ - used_; }
    Result<Buffer> allocate(size_t bytes, MemSpace space, Fill fill) override;
    Result<std::unique_ptr<Stream>> make_stream() override;
    Result<std::unique_ptr<Event>> make_event() override;
    Result<Buffer> reserve_pinned(size_t bytes) override;
    Status grow_pinned(const Buffer& buffer, size_t from, size_t to) override;

    // The call number `n` from now on (0: the next) of allocate() or grow_pinned() fails as if memory
    // had run out; -1: none.
    void fail_allocation(int n) { fail_allocation_ = n; }
    void fail_growth(int n) { fail_growth_ = n; }

    // What went wrong so far, one line each; tests and exits look here.
    const std::vector<std::string>& faults() const { return faults_; }
    int64_t tasks_run() const { return tasks_run_; }

  protected:
    void release(std::byte* data, size_t bytes, MemSpace space) override;

  private:
    friend class EmulatedStream;
    friend class EmulatedEvent;
    using Clock = std::vector<uint64_t>;  // per stream: tasks known to be finished before

    struct Queued {
        EmulatedTask task;
        Clock after;             // of the host and of events, when it was queued
        uint64_t record_id = 0;  // not 0: reaching this task fulfils that record
        uint64_t wait_id = 0;    // not 0: may run only when that record is fulfilled
    };
    struct Lane {
        std::deque<Queued> queue;
        Clock clock;       // of its last task that ran
        uint64_t run = 0;  // tasks that ran
        bool alive = true;
    };
    struct Seen {
        MemoryAccess access;
        size_t lane;
        uint64_t number;  // of the task in its lane, from 1
        std::string what;
    };
    struct Region {
        size_t bytes;
        bool device;
    };
    // Pinned memory that grows: without access behind `usable`.
    struct Growing {
        explicit Growing(size_t n) : bytes(n) {}
        size_t bytes;
        std::atomic<size_t> usable{0};
    };

    EmulatedDevice(uint64_t seed, size_t bytes);
    uint64_t random();
    Status push(size_t lane, Queued queued);
    bool runnable(const Lane& lane) const;
    Status step();  // runs one task of a lane the seed picks
    Status run_until(const std::function<bool()>& done, const char* waiter);
    Status run_task(size_t lane);
    Status check_access(size_t lane, uint64_t number, const Clock& clock, const std::string& what,
                        const std::vector<MemoryAccess>& touched);
    void forget_ordered();
    Error fault(std::string message);
    void protect(int protection);
    static void join(Clock& into, const Clock& from);

    std::string name_;
    uint64_t state_;
    uint32_t eagerness_;  // of 256: chance that a queued task lets others run at once
    size_t capacity_, used_ = 0;
    std::byte* arena_ = nullptr;
    size_t arena_bytes_ = 0, arena_used_ = 0;
    std::map<const std::byte*, Region> live_;
    std::map<const std::byte*, Growing> growing_;
    int fail_allocation_ = -1;
    std::atomic<int> fail_growth_{-1};
    std::vector<Lane> lanes_;
    Clock host_;
    std::map<uint64_t, Clock> fulfilled_;  // record id -> clock of that point
    uint64_t next_record_ = 1;
    std::vector<Seen> seen_;
    std::vector<std::string> faults_;
    int64_t tasks_run_ = 0;
    int depth_ = 0;  // of protect(): nested runs
};

class EmulatedEvent final : public Event {
  public:
    explicit EmulatedEvent(EmulatedDevice& device) : device_(device) {}
    bool reached() const override;
    Status wait_host() override;
    Result<double> since(const Event& earlier) const override;

  private:
    friend class EmulatedStream;
    EmulatedDevice& device_;
    uint64_t record_ = 0;  // last one; 0 = never recorded
};

}  // namespace terrace
