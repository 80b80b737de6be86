// The abstract machine: a Device makes buffers, streams and events; order across streams comes from
// events only. Implementations: host (compute on the CPU, one memory space, streams run inline),
// emulated (device/emulated_device.h) and CUDA (src/cuda). Engine thread only, except where a method
// says otherwise.
//
// A DevSpan names memory of a device and has no operator[]: only a backend, which knows where the
// address is valid, may take device_pointer().
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"

namespace terrace {

enum class DeviceKind : uint8_t { host, emulated, cuda };

// Where a buffer's bytes are. On the host device all three are ordinary memory.
enum class MemSpace : uint8_t { device, host_pinned, host };

enum class Fill : uint8_t { unspecified, zero };

// n elements of T at a device address. Copies freely, owns nothing.
template <class T>
class DevSpan {
  public:
    DevSpan() = default;
    DevSpan(T* pointer, size_t size) : pointer_(pointer), size_(size) {}
    template <class U>
        requires std::is_convertible_v<U (*)[], T (*)[]>
    DevSpan(DevSpan<U> o) : pointer_(o.device_pointer()), size_(o.size()) {}  // NOLINT

    constexpr size_t size() const { return size_; }
    constexpr bool empty() const { return size_ == 0; }
    constexpr T* device_pointer() const { return pointer_; }
    DevSpan sub(size_t first, size_t n) const {
        TERRACE_DCHECK(first + n <= size_);
        return {pointer_ + first, n};
    }
    DevSpan from(size_t first) const { return sub(first, size_ - first); }

  private:
    T* pointer_ = nullptr;
    size_t size_ = 0;
};

class Device;

// Owns bytes of one device; freed with the object. 64-byte aligned, 2 MiB aligned from 2 MiB up.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Device* owner, std::byte* data, size_t bytes, MemSpace space)
        : owner_(owner), data_(data), bytes_(bytes), space_(space) {}
    Buffer(Buffer&& o) noexcept { swap(o); }
    Buffer& operator=(Buffer&& o) noexcept {
        Buffer moved(std::move(o));
        swap(moved);
        return *this;
    }
    ~Buffer();

    size_t bytes() const { return bytes_; }
    MemSpace space() const { return space_; }
    std::byte* device_pointer() const { return data_; }
    template <class T>
    DevSpan<T> span() const {
        return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
    }

  private:
    void swap(Buffer& o) noexcept {
        std::swap(owner_, o.owner_);
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
        std::swap(space_, o.space_);
    }
    Device* owner_ = nullptr;
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
    MemSpace space_ = MemSpace::host;
};

// A point in a stream's work. Reusable: the last record counts.
class Event {
  public:
    virtual ~Event() = default;
    virtual bool reached() const = 0;  // peek, never blocks; any thread
    virtual Status wait_host() = 0;    // blocks the calling thread; any thread
    // Milliseconds between two reached events of one device.
    virtual Result<double> since(const Event& earlier) const = 0;
};

// Captured work of a stream, to be launched again and again with the same addresses.
class Graph {
  public:
    virtual ~Graph() = default;
};

// An in-order queue of work.
class Stream {
  public:
    virtual ~Stream() = default;
    virtual Device& device() = 0;
    // Enqueues a copy of `bytes`; both addresses must be valid on this stream's device or pinned.
    virtual Status copy(void* to, const void* from, size_t bytes) = 0;
    virtual Status fill(void* to, std::byte value, size_t bytes) = 0;
    virtual Status record(Event& event) = 0;  // the event is reached when all before it is done
    virtual Status wait(Event& event) = 0;    // later work of this stream waits for the event
    virtual Status synchronize() = 0;         // blocks the host; never inside a decode step

    // Between the two calls work is recorded instead of run. Error unsupported where the device has
    // no graphs (Device::has_graphs()).
    virtual Status begin_capture() = 0;
    virtual Result<std::unique_ptr<Graph>> end_capture() = 0;
    virtual Status launch(Graph& graph) = 0;
};

class Device {
  public:
    virtual ~Device() = default;
    virtual DeviceKind kind() const = 0;
    virtual const std::string& name() const = 0;
    // True when device memory is the host's: pointers of either are valid for both.
    virtual bool unified() const = 0;
    virtual bool has_graphs() const = 0;
    // Free bytes for MemSpace::device; 0 = not known.
    virtual size_t free_bytes() const = 0;
    // Error out_of_memory names need and have.
    virtual Result<Buffer> allocate(size_t bytes, MemSpace space, Fill fill) = 0;
    virtual Result<std::unique_ptr<Stream>> make_stream() = 0;
    virtual Result<std::unique_ptr<Event>> make_event() = 0;

  protected:
    friend class Buffer;
    virtual void release(std::byte* data, size_t bytes, MemSpace space) = 0;
};

// Compute on the CPU: one memory space, work runs when it is enqueued. In builds with
// TERRACE_DCHECKS fresh `unspecified` memory holds 0xff bytes (NaN in every float format), so that
// reading what nobody wrote shows.
std::unique_ptr<Device> make_host_device();

}  // namespace terrace
