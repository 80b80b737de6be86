// SPDX-License-Identifier: MIT
#include "cuda/device/cuda_device.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/device/arch.h"
#include "cuda/device/notes.h"

namespace terrace {

CudaProbe probe_cuda() {
    CudaProbe probe;
    const cudaError_t e = cudaGetDeviceCount(&probe.devices);
    if (e == cudaSuccess && probe.devices > 0) {
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
        if (!cuda::has_code_for(TERRACE_CUDA_ARCHS, 10 * major + minor))
            probe.reason = fmt::format(
                "this build has no code for compute capability {}.{} (it has {}): build with "
                "-DTERRACE_CUDA_ARCHITECTURES={}{}",
                major, minor, TERRACE_CUDA_ARCHS, major, minor);
        return probe;
    }
    probe.devices = 0;
    probe.reason = e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice || e == cudaSuccess
                       ? "no NVIDIA driver or no GPU"
                       : cudaGetErrorString(e);
    cudaGetLastError();  // an earlier failure must not show up in a later call
    return probe;
}

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
    const CudaProbe probe = probe_cuda();
    if (ordinal < 0 || ordinal >= probe.devices)
        return Error{Code::unsupported,
                     fmt::format("--device cuda:{}: {}", ordinal,
                                 probe.devices == 0 ? probe.reason + ": use --device cpu"
                                                    : fmt::format("this machine has devices 0..{}",
                                                                  probe.devices - 1))};
    TERRACE_CUDA_TRY(cudaSetDevice(ordinal));
    cudaDeviceProp p = {};
    TERRACE_CUDA_TRY(cudaGetDeviceProperties(&p, ordinal));
    if (!cuda::has_code_for(TERRACE_CUDA_ARCHS, 10 * p.major + p.minor))
        return Error{
            Code::unsupported,
            fmt::format("--device cuda:{}: {} has compute capability {}.{}, this build has "
                        "code for {}: build with -DTERRACE_CUDA_ARCHITECTURES={}{}, or use "
                        "--device cpu",
                        ordinal, p.name, p.major, p.minor, TERRACE_CUDA_ARCHS, p.major, p.minor)};
    cuda::DeviceInfo info;
    info.ordinal = ordinal;
    info.cc = 10 * p.major + p.minor;
    info.code = cuda::features_of(cuda::code_for(TERRACE_CUDA_ARCHS, info.cc));
    info.sms = p.multiProcessorCount;
    info.smem_per_block = p.sharedMemPerBlockOptin;
    info.smem_per_sm = p.sharedMemPerMultiprocessor;
    info.l2_bytes = static_cast<size_t>(p.l2CacheSize);
    info.memory_bytes = p.totalGlobalMem;
    info.name = p.name;
    return std::unique_ptr<Device>(std::make_unique<cuda::CudaDevice>(std::move(info)));
}

std::vector<std::string> cuda_notes(const Device& device) {
    return cuda::notes_of(static_cast<const cuda::CudaDevice&>(device).info());
}

namespace cuda {
namespace {

constexpr size_t kSlabBytes = size_t{256} << 20;  // from here on a slab
constexpr size_t kPieceBytes = size_t{512} << 20;

size_t slab_bytes(size_t bytes) {
    constexpr size_t kPage = 4096;
    return (bytes + kPage - 1) / kPage * kPage;
}

Error slab_refused(size_t bytes, const std::string& why) {
    return Error{Code::out_of_memory,
                 fmt::format("pinned host memory: need {} bytes: {}: lower --ctx or --max-seqs, "
                             "or free memory of the host",
                             bytes, why)};
}

// The memory node that is nearest to a GPU; -1 when the machine has one node or does not say.
int numa_node(int ordinal) {
    char bus[32] = {};
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) != cudaSuccess) return -1;
    for (char& c : bus)
        if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
    std::ifstream file(fmt::format("/sys/bus/pci/devices/{}/numa_node", bus));
    int node = -1;
    return file >> node ? node : -1;
}

}  // namespace

size_t CudaDevice::free_bytes() const {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

Result<Buffer> CudaDevice::allocate(size_t bytes, MemSpace space, Fill fill) {
    if (bytes == 0) return Buffer{};
    if (space == MemSpace::host_pinned && bytes >= kSlabBytes) return allocate_slab(bytes);
    void* p = nullptr;
    const cudaError_t e = space == MemSpace::device
                              ? cudaMalloc(&p, bytes)
                              : cudaHostAlloc(&p, bytes, cudaHostAllocPortable);
    if (e != cudaSuccess) {
        cudaGetLastError();
        if (space == MemSpace::device)
            return Error{
                Code::out_of_memory,
                fmt::format("{}: need {} bytes, {} are free: lower --ctx or --max-seqs, or "
                            "free memory of the GPU",
                            info_.name, bytes, free_bytes())};
        return Error{Code::out_of_memory, fmt::format("pinned host memory: need {} bytes: {}",
                                                      bytes, cudaGetErrorString(e))};
    }
    Buffer buffer(this, static_cast<std::byte*>(p), bytes, space);
    if (space == MemSpace::device) {
#if defined(TERRACE_DCHECKS)
        const bool poison = fill == Fill::unspecified;
#else
        const bool poison = false;
#endif
        if (fill == Fill::zero || poison) {
            TERRACE_CUDA_TRY(cudaMemset(p, poison ? 0xff : 0, bytes));
            TERRACE_CUDA_TRY(cudaDeviceSynchronize());  // other streams do not wait for this one
        }
    } else if (fill == Fill::zero) {
        std::fill_n(static_cast<std::byte*>(p), bytes, std::byte{0});
    }
    return buffer;
}

// Addresses for a slab: huge pages, from the GPU's own node while that has memory.
Result<std::byte*> CudaDevice::map_slab(size_t bytes) const {
    const size_t mapped = slab_bytes(bytes);
    void* p = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return slab_refused(bytes, std::strerror(errno));
    ::madvise(p, mapped, MADV_HUGEPAGE);
    ::madvise(p, mapped, MADV_DONTFORK);
    if (const int node = numa_node(info_.ordinal); node >= 0 && node < 64) {
        const unsigned long nodes = 1ul << node;
        // Refused where the system forbids it; memory then comes from wherever it comes.
        (void)::syscall(SYS_mbind, p, mapped, MPOL_PREFERRED, &nodes, 65, 0);
    }
    return static_cast<std::byte*>(p);
}

// Fresh anonymous pages are zero, which satisfies either Fill.
Result<Buffer> CudaDevice::allocate_slab(size_t bytes) {
    const size_t mapped = slab_bytes(bytes);
    TERRACE_ASSIGN(std::byte * data, map_slab(bytes));
    const size_t pieces = (mapped + kPieceBytes - 1) / kPieceBytes;
    const auto length = [&](size_t i) { return std::min(kPieceBytes, mapped - i * kPieceBytes); };
    // One thread touches about a GiB/s of fresh pages; registering then finds them there.
    const size_t n_threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 16);
    std::vector<std::jthread> touchers;
    for (size_t t = 0; t < std::min(n_threads, pieces); ++t)
        touchers.emplace_back([&, t] {
            for (size_t i = t; i < pieces; i += n_threads)
                for (size_t at = 0; at < length(i); at += 4096)
                    data[i * kPieceBytes + at] = std::byte{0};
        });
    touchers.clear();
    for (size_t i = 0; i < pieces; ++i) {
        const cudaError_t e = cudaHostRegister(data + i * kPieceBytes, length(i),
                                               cudaHostRegisterPortable | cudaHostRegisterMapped);
        if (e == cudaSuccess) continue;
        cudaGetLastError();
        while (i-- > 0)
            cudaHostUnregister(data + i * kPieceBytes);
        ::munmap(data, mapped);
        return slab_refused(bytes, cudaGetErrorString(e));
    }
    return Buffer(this, data, bytes, MemSpace::host_pinned);
}

Result<Buffer> CudaDevice::reserve_pinned(size_t bytes) {
    TERRACE_ASSIGN(std::byte * data, map_slab(bytes));
    const std::lock_guard lock(growing_mutex_);
    growing_[data];
    return Buffer(this, data, bytes, MemSpace::host_pinned);
}

// Registering touches the pages too. The thread may be new to the driver.
Status CudaDevice::grow_pinned(const Buffer& buffer, size_t from, size_t to) {
    TERRACE_CUDA_TRY(cudaSetDevice(info_.ordinal));
    std::byte* const data = buffer.device_pointer();
    const cudaError_t e = cudaHostRegister(data + from, slab_bytes(to - from),
                                           cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return slab_refused(to - from, cudaGetErrorString(e));
    }
    const std::lock_guard lock(growing_mutex_);
    growing_.at(data).push_back(from);
    return {};
}

// Registration goes before the mapping.
void CudaDevice::release(std::byte* data, size_t bytes, MemSpace space) {
    if (space == MemSpace::host_pinned) {
        const std::lock_guard lock(growing_mutex_);
        if (const auto found = growing_.find(data); found != growing_.end()) {
            for (const size_t piece : found->second)
                cudaHostUnregister(data + piece);
            growing_.erase(found);
            ::munmap(data, slab_bytes(bytes));
            return;
        }
    }
    if (space == MemSpace::device) {
        cudaFree(data);
    } else if (bytes < kSlabBytes) {
        cudaFreeHost(data);
    } else {
        const size_t mapped = slab_bytes(bytes);
        for (size_t at = 0; at < mapped; at += kPieceBytes)
            cudaHostUnregister(data + at);
        ::munmap(data, mapped);
    }
}

Result<std::unique_ptr<Stream>> CudaDevice::make_stream() {
    cudaStream_t s = nullptr;
    TERRACE_CUDA_TRY(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return std::unique_ptr<Stream>(std::make_unique<CudaStream>(*this, s));
}

Result<std::unique_ptr<Event>> CudaDevice::make_event() {
    cudaEvent_t e = nullptr;
    TERRACE_CUDA_TRY(cudaEventCreate(&e));
    return std::unique_ptr<Event>(std::make_unique<CudaEvent>(e));
}

Status CudaEvent::wait_host() {
    TERRACE_CUDA_TRY(cudaEventSynchronize(event_));
    return {};
}

Result<double> CudaEvent::since(const Event& earlier) const {
    float ms = 0;
    TERRACE_CUDA_TRY(
        cudaEventElapsedTime(&ms, static_cast<const CudaEvent&>(earlier).event_, event_));
    return static_cast<double>(ms);
}

Status CudaStream::copy(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return {};
    TERRACE_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
    return {};
}

Status CudaStream::fill(void* to, std::byte value, size_t bytes) {
    if (bytes == 0) return {};
    TERRACE_CUDA_TRY(cudaMemsetAsync(to, static_cast<int>(value), bytes, stream_));
    return {};
}

Status CudaStream::record(Event& event) {
    TERRACE_CUDA_TRY(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), stream_));
    return {};
}

Status CudaStream::wait(Event& event) {
    TERRACE_CUDA_TRY(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).handle(), 0));
    return {};
}

Status CudaStream::synchronize() {
    TERRACE_CUDA_TRY(cudaStreamSynchronize(stream_));
    return {};
}

Status CudaStream::begin_capture() {
    TERRACE_CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    return {};
}

Result<std::unique_ptr<Graph>> CudaStream::end_capture() {
    cudaGraph_t graph = nullptr;
    TERRACE_CUDA_TRY(cudaStreamEndCapture(stream_, &graph));
    cudaGraphExec_t exec = nullptr;
    const cudaError_t e = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    if (e != cudaSuccess) return cuda_error(e, "cudaGraphInstantiate");
    cudaGraphUpload(exec, stream_);
    return std::unique_ptr<Graph>(std::make_unique<CudaGraph>(exec));
}

Status CudaStream::launch(Graph& graph) {
    TERRACE_CUDA_TRY(cudaGraphLaunch(static_cast<CudaGraph&>(graph).handle(), stream_));
    return {};
}

}  // namespace cuda
}  // namespace terrace
