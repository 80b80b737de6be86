// Device, Stream, Event and Graph over the CUDA runtime. One device per object, current for the
// engine thread. Streams do not synchronise with the default stream. Device memory is exact
// cudaMalloc, charged by the caller. Small pinned memory comes from the driver; large slabs are
// anonymous maps with huge pages, touched by several threads and registered piece by piece while
// this device is current (KV offload A1): exact sizes, at 3.7 GiB/s instead of the driver's 2.7.
// SPDX-License-Identifier: MIT
#pragma once
#include <map>
#include <mutex>
#include <vector>

#include "cuda/env.h"
#include "device/growing.h"

namespace terrace::cuda {

class CudaDevice final : public Device, public GrowsPinned {
  public:
    explicit CudaDevice(DeviceInfo info) : info_(std::move(info)) {}
    const DeviceInfo& info() const { return info_; }

    DeviceKind kind() const override { return DeviceKind::cuda; }
    const std::string& name() const override { return info_.name; }
    bool unified() const override { return false; }
    bool has_graphs() const override { return true; }
    size_t free_bytes() const override;
    Result<Buffer> allocate(size_t bytes, MemSpace space, Fill fill) override;
    Result<std::unique_ptr<Stream>> make_stream() override;
    Result<std::unique_ptr<Event>> make_event() override;
    Result<Buffer> reserve_pinned(size_t bytes) override;
    Status grow_pinned(const Buffer& buffer, size_t from, size_t to) override;

  protected:
    void release(std::byte* data, size_t bytes, MemSpace space) override;

  private:
    Result<Buffer> allocate_slab(size_t bytes);
    Result<std::byte*> map_slab(size_t bytes) const;
    DeviceInfo info_;
    std::mutex growing_mutex_;
    std::map<std::byte*, std::vector<size_t>> growing_;  // where registered pieces start
};

class CudaEvent final : public Event {
  public:
    explicit CudaEvent(cudaEvent_t event) : event_(event) {}
    ~CudaEvent() override { cudaEventDestroy(event_); }
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;
    cudaEvent_t handle() const { return event_; }
    bool reached() const override { return cudaEventQuery(event_) == cudaSuccess; }
    Status wait_host() override;
    Result<double> since(const Event& earlier) const override;

  private:
    cudaEvent_t event_;
};

class CudaGraph final : public Graph {
  public:
    explicit CudaGraph(cudaGraphExec_t exec) : exec_(exec) {}
    ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
    CudaGraph(const CudaGraph&) = delete;
    CudaGraph& operator=(const CudaGraph&) = delete;
    cudaGraphExec_t handle() const { return exec_; }

  private:
    cudaGraphExec_t exec_;
};

class CudaStream final : public Stream {
  public:
    CudaStream(CudaDevice& device, cudaStream_t stream) : device_(device), stream_(stream) {}
    ~CudaStream() override { cudaStreamDestroy(stream_); }
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;
    cudaStream_t handle() const { return stream_; }

    Device& device() override { return device_; }
    Status copy(void* to, const void* from, size_t bytes) override;
    Status fill(void* to, std::byte value, size_t bytes) override;
    Status record(Event& event) override;
    Status wait(Event& event) override;
    Status synchronize() override;
    Status begin_capture() override;
    Result<std::unique_ptr<Graph>> end_capture() override;
    Status launch(Graph& graph) override;

  private:
    CudaDevice& device_;
    cudaStream_t stream_;
};

}  // namespace terrace::cuda
