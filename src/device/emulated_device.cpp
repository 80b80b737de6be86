// SPDX-License-Identifier: MIT
#include "device/emulated_device.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iterator>
#include <new>

#include "base/log.h"

namespace terrace {
namespace {

constexpr size_t kPage = 4096;

size_t pages(size_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
}

// The arena of the device in use, for the fault message. One device at a time is the rule; with
// more, the message names the last.
const std::byte* g_arena = nullptr;
size_t g_arena_bytes = 0;
struct sigaction g_previous = {};

void on_fault(int signal, siginfo_t* info, void* context) {
    const auto* at = static_cast<const std::byte*>(info->si_addr);
    if (g_arena && at >= g_arena && at < g_arena + g_arena_bytes) {
        constexpr char kMessage[] =
            "terrace: emulated device: memory of the device was touched while the host ran, or "
            "after it was freed\n";
        const auto written = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
        (void)written;
    }
    // Back to whoever handled it before: the access is repeated and ends the process there.
    ::sigaction(signal, &g_previous, nullptr);
    (void)context;
}

class EmulatedGraph final : public Graph {
  public:
    explicit EmulatedGraph(std::vector<EmulatedTask> captured) : tasks(std::move(captured)) {}
    std::vector<EmulatedTask> tasks;
};

}  // namespace

Result<std::unique_ptr<EmulatedDevice>> EmulatedDevice::create(uint64_t seed, size_t bytes) {
    std::unique_ptr<EmulatedDevice> d(new EmulatedDevice(seed, bytes));
    // Freed addresses are never used again: eight times the memory in addresses.
    d->arena_bytes_ = pages(8 * bytes + (size_t{1} << 30));
    void* p = ::mmap(nullptr, d->arena_bytes_, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return Error{Code::out_of_memory,
                     fmt::format("emulated device: the system refused {} bytes of addresses",
                                 d->arena_bytes_)};
    d->arena_ = static_cast<std::byte*>(p);
    g_arena = d->arena_;
    g_arena_bytes = d->arena_bytes_;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &g_previous);
    return d;
}

EmulatedDevice::EmulatedDevice(uint64_t seed, size_t bytes)
    : name_(fmt::format("emulated device, seed {}", seed)), state_(seed), capacity_(bytes) {
    constexpr uint32_t kEagerness[] = {0, 64, 200};
    eagerness_ = kEagerness[random() % 3];
}

EmulatedDevice::~EmulatedDevice() {
    for (const std::string& f : faults_)
        log_warn("emulated device: " + f);
    if (!arena_) return;
    ::munmap(arena_, arena_bytes_);
    if (g_arena == arena_) {
        g_arena = nullptr;
        ::sigaction(SIGSEGV, &g_previous, nullptr);
    }
}

uint64_t EmulatedDevice::random() {
    uint64_t v = state_ += 0x9E3779B97F4A7C15u;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

Error EmulatedDevice::fault(std::string message) {
    faults_.push_back(message);
    return Error{Code::internal, "emulated device: " + std::move(message)};
}

// ---- memory

Result<Buffer> EmulatedDevice::allocate(size_t bytes, MemSpace space, Fill fill) {
    if (bytes == 0) return Buffer{};
    if (fail_allocation_ >= 0 && fail_allocation_-- == 0)
        return Error{Code::out_of_memory,
                     fmt::format("{}: need {} bytes: made to fail", name_, bytes)};
    const std::byte value = fill == Fill::zero ? std::byte{0} : std::byte{0xff};
    if (space != MemSpace::device) {
        auto* p =
            static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kPage}, std::nothrow));
        if (!p) return Error{Code::out_of_memory, fmt::format("host memory: need {} bytes", bytes)};
        std::memset(p, static_cast<int>(value), bytes);
        live_[p] = {bytes, false};
        return Buffer(this, p, bytes, space);
    }
    // One page without access between any two allocations.
    const size_t take = pages(bytes) + kPage;
    if (bytes > capacity_ - used_ || take > arena_bytes_ - arena_used_)
        return Error{Code::out_of_memory,
                     fmt::format("{}: need {} bytes, {} are free: lower --ctx or --max-seqs", name_,
                                 bytes, capacity_ - used_)};
    std::byte* p = arena_ + arena_used_;
    arena_used_ += take;
    used_ += bytes;
    ::mprotect(p, pages(bytes), PROT_READ | PROT_WRITE);
    if (fill != Fill::zero) std::memset(p, 0xff, bytes);  // fresh pages are zero
    if (depth_ == 0) ::mprotect(p, pages(bytes), PROT_NONE);
    live_[p] = {bytes, true};
    return Buffer(this, p, bytes, space);
}

Result<Buffer> EmulatedDevice::reserve_pinned(size_t bytes) {
    if (fail_allocation_ >= 0 && fail_allocation_-- == 0)
        return Error{Code::out_of_memory,
                     fmt::format("{}: need {} bytes of addresses: made to fail", name_, bytes)};
    void* p = ::mmap(nullptr, pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
    if (p == MAP_FAILED)
        return Error{Code::out_of_memory,
                     fmt::format("{}: the system refused {} bytes of addresses", name_, bytes)};
    auto* data = static_cast<std::byte*>(p);
    growing_.try_emplace(data, bytes);
    return Buffer(this, data, bytes, MemSpace::host_pinned);
}

Status EmulatedDevice::grow_pinned(const Buffer& buffer, size_t from, size_t to) {
    if (fail_growth_ >= 0 && fail_growth_-- == 0)
        return Error{Code::out_of_memory,
                     fmt::format("{}: pinning {} bytes: made to fail", name_, to - from)};
    Growing& g = growing_.at(buffer.device_pointer());
    TERRACE_CHECK(g.usable == from && from < to && to <= g.bytes);
    ::mprotect(buffer.device_pointer() + from, pages(to - from), PROT_READ | PROT_WRITE);
    std::memset(buffer.device_pointer() + from, 0xff, to - from);
    g.usable = to;
    return {};
}

void EmulatedDevice::release(std::byte* data, size_t bytes, MemSpace space) {
    if (growing_.erase(data) > 0) {
        ::munmap(data, pages(bytes));
        return;
    }
    live_.erase(data);
    if (space != MemSpace::device) {
        // Poison first: a copy that still reads it then shows.
        std::memset(data, 0xff, bytes);
        ::operator delete(data, std::align_val_t{kPage});
        return;
    }
    used_ -= bytes;
    ::madvise(data, pages(bytes), MADV_DONTNEED);
    ::mprotect(data, pages(bytes), PROT_NONE);
    for (const Lane& lane : lanes_)
        if (!lane.queue.empty()) {
            (void)fault(
                fmt::format("{} bytes of device memory are freed while \"{}\" is queued: "
                            "wait for the stream first",
                            bytes, lane.queue.front().task.what));
            return;
        }
}

void EmulatedDevice::protect(int protection) {
    for (const auto& [at, region] : live_)
        if (region.device) ::mprotect(const_cast<std::byte*>(at), pages(region.bytes), protection);
}

// ---- order

void EmulatedDevice::join(Clock& into, const Clock& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i)
        into[i] = std::max(into[i], from[i]);
}

Status EmulatedDevice::push(size_t lane, Queued queued) {
    queued.after = host_;
    lanes_[lane].queue.push_back(std::move(queued));
    // Sometimes the device is quick.
    while (random() % 256 < eagerness_) {
        const bool any = std::any_of(lanes_.begin(), lanes_.end(),
                                     [this](const Lane& l) { return runnable(l); });
        if (!any) break;
        protect(PROT_READ | PROT_WRITE);
        ++depth_;
        const Status ran = step();
        --depth_;
        protect(PROT_NONE);
        TERRACE_TRY(ran);
    }
    return {};
}

bool EmulatedDevice::runnable(const Lane& lane) const {
    if (lane.queue.empty()) return false;
    const uint64_t wait = lane.queue.front().wait_id;
    return wait == 0 || fulfilled_.contains(wait);
}

Status EmulatedDevice::step() {
    std::vector<size_t> ready;
    for (size_t i = 0; i < lanes_.size(); ++i)
        if (runnable(lanes_[i])) ready.push_back(i);
    return run_task(ready[random() % ready.size()]);
}

Status EmulatedDevice::run_task(size_t index) {
    Lane& lane = lanes_[index];
    Queued q = std::move(lane.queue.front());
    lane.queue.pop_front();
    join(lane.clock, q.after);
    if (q.wait_id != 0) join(lane.clock, fulfilled_[q.wait_id]);
    if (lane.clock.size() < lanes_.size()) lane.clock.resize(lanes_.size());
    const uint64_t number = ++lane.run;
    ++tasks_run_;
    Status status;
    if (q.task.run) {
        std::vector<MemoryAccess> touched;
        if (q.task.touch) q.task.touch(touched);
        status = check_access(index, number, lane.clock, q.task.what, touched);
        if (status) status = q.task.run();
    }
    lane.clock[index] = number;
    if (q.record_id != 0) fulfilled_[q.record_id] = lane.clock;
    if (seen_.size() > 4096) forget_ordered();
    return status;
}

Status EmulatedDevice::check_access(size_t index, uint64_t number, const Clock& clock,
                                    const std::string& what,
                                    const std::vector<MemoryAccess>& touched) {
    for (const MemoryAccess& a : touched) {
        if (a.bytes == 0) continue;
        if (a.data >= arena_ && a.data < arena_ + arena_bytes_) {
            const auto behind = live_.upper_bound(a.data);
            const bool inside =
                behind != live_.begin() &&
                a.data + a.bytes <= std::prev(behind)->first + std::prev(behind)->second.bytes;
            if (!inside)
                return fault(
                    fmt::format("\"{}\" touches {} bytes of device memory that are not "
                                "allocated (any more)",
                                what, a.bytes));
        }
        const auto above = growing_.upper_bound(a.data);
        if (above != growing_.begin()) {
            const auto& [at, growing] = *std::prev(above);
            const size_t first = static_cast<size_t>(a.data - at);
            if (first < growing.bytes && first + a.bytes > growing.usable)
                return fault(
                    fmt::format("\"{}\" touches pinned memory that is not usable yet", what));
        }
        for (const Seen& s : seen_) {
            if (s.lane == index || s.number <= (s.lane < clock.size() ? clock[s.lane] : 0))
                continue;
            if (a.kind == AccessKind::read && s.access.kind == AccessKind::read) continue;
            if (a.data + a.bytes <= s.access.data || s.access.data + s.access.bytes <= a.data)
                continue;
            const auto verb = [](AccessKind k) {
                return k == AccessKind::read ? "reads" : "writes";
            };
            return fault(fmt::format(
                "\"{}\" on stream {} {} bytes that \"{}\" on stream {} {}: no event orders them",
                what, index, verb(a.kind), s.what, s.lane, verb(s.access.kind)));
        }
        seen_.push_back({a, index, number, what});
    }
    return {};
}

// An access that every stream and the host already know to be over can race with nothing new.
void EmulatedDevice::forget_ordered() {
    std::erase_if(seen_, [this](const Seen& s) {
        const auto knows = [&](const Clock& c) {
            return s.lane < c.size() && c[s.lane] >= s.number;
        };
        for (size_t i = 0; i < lanes_.size(); ++i) {
            if (i == s.lane || !lanes_[i].alive) continue;
            if (!knows(lanes_[i].clock) && !knows(host_)) return false;
        }
        return true;
    });
}

Status EmulatedDevice::run_until(const std::function<bool()>& done, const char* waiter) {
    if (done()) return {};
    protect(PROT_READ | PROT_WRITE);
    ++depth_;
    Status status;
    while (status && !done()) {
        const bool any = std::any_of(lanes_.begin(), lanes_.end(),
                                     [this](const Lane& l) { return runnable(l); });
        status = any ? step()
                     : Status(fault(fmt::format("{} waits for an event that no queued work records",
                                                waiter)));
    }
    --depth_;
    protect(PROT_NONE);
    return status;
}

Result<std::unique_ptr<Stream>> EmulatedDevice::make_stream() {
    lanes_.emplace_back();
    return std::unique_ptr<Stream>(std::make_unique<EmulatedStream>(*this, lanes_.size() - 1));
}

Result<std::unique_ptr<Event>> EmulatedDevice::make_event() {
    return std::unique_ptr<Event>(std::make_unique<EmulatedEvent>(*this));
}

// ---- streams

EmulatedStream::~EmulatedStream() {
    EmulatedDevice::Lane& lane = device_.lanes_[index_];
    if (!lane.queue.empty())
        (void)device_.fault(fmt::format("a stream dies with \"{}\" queued: synchronize it first",
                                        lane.queue.front().task.what));
    lane.queue.clear();
    lane.alive = false;
}

Device& EmulatedStream::device() {
    return device_;
}

Status EmulatedStream::enqueue(EmulatedTask task) {
    if (capturing_) {
        captured_.push_back(std::move(task));
        return {};
    }
    return device_.push(index_, {std::move(task), {}, 0, 0});
}

Status EmulatedStream::copy(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return {};
    auto* t = static_cast<std::byte*>(to);
    const auto* f = static_cast<const std::byte*>(from);
    return enqueue({fmt::format("copy of {} bytes", bytes),
                    [=](std::vector<MemoryAccess>& a) {
                        a.push_back({f, bytes, AccessKind::read});
                        a.push_back({t, bytes, AccessKind::write});
                    },
                    [=]() -> Status {
                        std::memmove(t, f, bytes);
                        return {};
                    }});
}

Status EmulatedStream::fill(void* to, std::byte value, size_t bytes) {
    if (bytes == 0) return {};
    auto* t = static_cast<std::byte*>(to);
    return enqueue(
        {fmt::format("fill of {} bytes", bytes),
         [=](std::vector<MemoryAccess>& a) { a.push_back({t, bytes, AccessKind::write}); },
         [=]() -> Status {
             std::memset(t, static_cast<int>(value), bytes);
             return {};
         }});
}

Status EmulatedStream::record(Event& event) {
    auto& e = static_cast<EmulatedEvent&>(event);
    e.record_ = device_.next_record_++;
    return device_.push(index_, {{"record", nullptr, nullptr}, {}, e.record_, 0});
}

Status EmulatedStream::wait(Event& event) {
    const uint64_t record = static_cast<EmulatedEvent&>(event).record_;
    if (record == 0) return {};  // never recorded: nothing to wait for, as on a GPU
    return device_.push(index_, {{"wait", nullptr, nullptr}, {}, 0, record});
}

Status EmulatedStream::synchronize() {
    const auto& lane = device_.lanes_[index_];
    TERRACE_TRY(device_.run_until([&] { return lane.queue.empty(); }, "the host"));
    EmulatedDevice::join(device_.host_, lane.clock);
    return {};
}

Status EmulatedStream::begin_capture() {
    if (capturing_) return device_.fault("begin_capture: the stream is being captured already");
    capturing_ = true;
    return {};
}

Result<std::unique_ptr<Graph>> EmulatedStream::end_capture() {
    if (!capturing_) return device_.fault("end_capture: the stream is not being captured");
    capturing_ = false;
    return std::unique_ptr<Graph>(std::make_unique<EmulatedGraph>(std::move(captured_)));
}

Status EmulatedStream::launch(Graph& graph) {
    for (const EmulatedTask& task : static_cast<EmulatedGraph&>(graph).tasks)
        TERRACE_TRY(enqueue(task));
    return {};
}

// ---- events

bool EmulatedEvent::reached() const {
    return record_ == 0 || device_.fulfilled_.contains(record_);
}

Status EmulatedEvent::wait_host() {
    TERRACE_TRY(device_.run_until([this] { return reached(); }, "the host"));
    if (record_ != 0) EmulatedDevice::join(device_.host_, device_.fulfilled_[record_]);
    return {};
}

Result<double> EmulatedEvent::since(const Event&) const {
    return 0.0;  // nothing takes time here
}

}  // namespace terrace
