// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <new>

#include "base/cpu_features.h"
#include "device/device.h"

namespace terrace {

Buffer::~Buffer() {
    if (data_) owner_->release(data_, bytes_, space_);
}

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class HostEvent final : public Event {
  public:
    bool reached() const override { return true; }
    Status wait_host() override { return {}; }
    Result<double> since(const Event& earlier) const override {
        const auto from = static_cast<const HostEvent&>(earlier).at_;
        return std::chrono::duration<double, std::milli>(at_ - from).count();
    }
    void mark() { at_ = std::chrono::steady_clock::now(); }

  private:
    std::chrono::steady_clock::time_point at_;
};

class HostStream final : public Stream {
  public:
    explicit HostStream(Device& device) : device_(device) {}
    Device& device() override { return device_; }
    Status copy(void* to, const void* from, size_t bytes) override {
        if (bytes > 0) std::memmove(to, from, bytes);
        return {};
    }
    Status fill(void* to, std::byte value, size_t bytes) override {
        if (bytes > 0) std::memset(to, static_cast<int>(value), bytes);
        return {};
    }
    Status record(Event& event) override {
        static_cast<HostEvent&>(event).mark();
        return {};
    }
    Status wait(Event&) override { return {}; }
    Status synchronize() override { return {}; }
    Status begin_capture() override { return no_graphs(); }
    Result<std::unique_ptr<Graph>> end_capture() override { return no_graphs(); }
    Status launch(Graph&) override { return no_graphs(); }

  private:
    static Error no_graphs() {
        return Error{Code::unsupported, "the host device has no graphs: work runs as it is queued"};
    }
    Device& device_;
};

class HostDevice final : public Device {
  public:
    HostDevice() : name_(cpu_features().name) {}
    DeviceKind kind() const override { return DeviceKind::host; }
    const std::string& name() const override { return name_; }
    bool unified() const override { return true; }
    bool has_graphs() const override { return false; }
    size_t free_bytes() const override { return 0; }

    Result<Buffer> allocate(size_t bytes, MemSpace space, Fill fill) override {
        if (bytes == 0) return Buffer{};
        // A mapping is granted whatever its size and the process is killed when it is touched: so
        // what can never fit is refused here. Also keeps the rounding below from overflowing.
        if (bytes > machine_bytes()) return no_memory(bytes);
        std::byte* data = nullptr;
        if (bytes >= kHugePage) {
            // Anonymous pages arrive zeroed. One huge page more than asked, to align by hand:
            // aligned 2 MiB extents are what transparent huge pages need.
            const size_t mapped = mapped_bytes(bytes);
            void* p = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (p == MAP_FAILED) return no_memory(bytes);
            const auto base = reinterpret_cast<uintptr_t>(p);
            const uintptr_t aligned = (base + kHugePage - 1) / kHugePage * kHugePage;
            if (aligned > base) ::munmap(p, aligned - base);
            const size_t used = (bytes + page() - 1) / page() * page();
            const size_t tail = mapped - (aligned - base) - used;
            if (tail > 0) ::munmap(reinterpret_cast<void*>(aligned + used), tail);
            ::madvise(reinterpret_cast<void*>(aligned), used, MADV_HUGEPAGE);
            data = reinterpret_cast<std::byte*>(aligned);
        } else {
            data =
                static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}, std::nothrow));
            if (!data) return no_memory(bytes);
            if (fill == Fill::zero) std::memset(data, 0, bytes);
        }
#if defined(TERRACE_DCHECKS)
        if (fill == Fill::unspecified && bytes < (size_t{256} << 20))
            std::memset(data, 0xff, bytes);
#endif
        return Buffer(this, data, bytes, space);
    }
    Result<std::unique_ptr<Stream>> make_stream() override {
        return std::unique_ptr<Stream>(std::make_unique<HostStream>(*this));
    }
    Result<std::unique_ptr<Event>> make_event() override {
        return std::unique_ptr<Event>(std::make_unique<HostEvent>());
    }

  protected:
    void release(std::byte* data, size_t bytes, MemSpace) override {
        if (bytes >= kHugePage)
            ::munmap(data, (bytes + page() - 1) / page() * page());
        else
            ::operator delete(data, std::align_val_t{64});
    }

  private:
    static size_t page() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }
    static size_t mapped_bytes(size_t bytes) {
        return (bytes + page() - 1) / page() * page() + kHugePage;
    }
    static Error no_memory(size_t bytes) {
        return Error{Code::out_of_memory,
                     fmt::format("host memory: need {} bytes, have {} with swap: lower --ctx or "
                                 "--max-seqs, or free memory",
                                 bytes, machine_bytes())};
    }
    static size_t machine_bytes() {
        struct sysinfo info = {};
        if (::sysinfo(&info) != 0) return size_t{1} << 46;
        return (size_t{info.totalram} + size_t{info.totalswap}) * info.mem_unit;
    }
    std::string name_;
};

}  // namespace

std::unique_ptr<Device> make_host_device() {
    return std::make_unique<HostDevice>();
}

}  // namespace terrace
