// What a launch needs to know: stream, device properties, scratch memory, and how to start a kernel.
// Internal to src/cuda; engine thread only.
//
// Scratch: operations of one Ops run one after another on one stream, so all share one arena; an
// operation may not expect anything to survive in it. Counters: zeroed words for "the last block to
// arrive finishes the job"; whoever takes the last ticket resets its counter to zero, so that they
// are zero between operations (and graph replays).
// Boxes: words through which the blocks of a launch hand each other values (util/mailbox.cuh); zero
// at first, later what the operation that they belong to makes of them.
// SPDX-License-Identifier: MIT
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "cuda/device/arch.h"

namespace terrace::cuda {

struct DeviceInfo {
    int ordinal = 0;
    int cc = 0;         // compute capability, 90 for 9.0
    CodeFeatures code;  // of what this build has for it
    int sms = 0;
    size_t smem_per_block = 0;  // largest dynamic shared memory of a block
    size_t smem_per_sm = 0;
    size_t l2_bytes = 0;
    size_t memory_bytes = 0;
    std::string name;
};

constexpr int32_t kCounters = 1 << 16;
constexpr int32_t kBoxes = 1 << 14;

struct Launch {
    cudaStream_t stream = nullptr;
    const DeviceInfo* info = nullptr;
    std::byte* scratch = nullptr;
    size_t scratch_bytes = 0;
    uint32_t* counters = nullptr;  // [kCounters], zero between operations
    uint32_t* boxes = nullptr;     // [kBoxes], hyper_read's
};

inline Error cuda_error(cudaError_t e, const char* what) {
    return Error{e == cudaErrorMemoryAllocation ? Code::out_of_memory : Code::internal,
                 std::string(what) + ": " + cudaGetErrorName(e) + ": " + cudaGetErrorString(e)};
}

#define TERRACE_CUDA_TRY(expr)                                          \
    do {                                                                \
        const cudaError_t terrace_cuda_e_ = (expr);                     \
        if (terrace_cuda_e_ != cudaSuccess)                             \
            return ::terrace::cuda::cuda_error(terrace_cuda_e_, #expr); \
    } while (0)

// Overlap of a kernel's start with the end of its predecessor (programmatic dependent launch). Such
// a kernel calls pdl_wait() (util/common.cuh) in every thread before it touches anything that an
// earlier kernel writes or reads as activations; only immutable weights may be read before.
enum class Start : uint8_t { after_previous, overlapping };

// Starts a kernel; `what` names it in errors. A launch that asks for more shared memory than the device
// has is refused by name: it is a plan's mistake. Shared memory beyond 48 KiB is allowed for here (static
// shared memory counts too, hence the lower border).
// `cluster` neighbouring blocks of x form a cluster, at most code.most_cluster.
template <class... P, class... A>
Status start_clusters(const Launch& l, const char* what, void (*kernel)(P...), dim3 grid,
                      dim3 block, unsigned cluster, size_t smem, Start mode, A&&... args) {
    if (smem > l.info->smem_per_block)
        return Error{Code::internal, std::string(what) + ": needs " + std::to_string(smem) +
                                         " bytes of shared memory, this device has " +
                                         std::to_string(l.info->smem_per_block)};
    if (smem > 40 * 1024)
        TERRACE_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(smem)));
    if (cluster > 8)
        TERRACE_CUDA_TRY(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                              cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = l.stream;
    cudaLaunchAttribute attribute[2];
    unsigned n = 0;
    if (mode == Start::overlapping && l.info->code.overlap) {
        attribute[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attribute[n].id = cudaLaunchAttributeClusterDimension;
        attribute[n].val.clusterDim.x = cluster;
        attribute[n].val.clusterDim.y = 1;
        attribute[n++].val.clusterDim.z = 1;
    }
    config.attrs = attribute;
    config.numAttrs = n;
    const cudaError_t e = cudaLaunchKernelEx(&config, kernel, P(args)...);
    if (e != cudaSuccess) return cuda_error(e, what);
    return {};
}

template <class... P, class... A>
Status start(const Launch& l, const char* what, void (*kernel)(P...), dim3 grid, dim3 block,
             size_t smem, Start mode, A&&... args) {
    return start_clusters(l, what, kernel, grid, block, 1, smem, mode, args...);
}

// Carves an operation's scratch into 256-byte aligned pieces. With a null arena it only counts, so
// that one function gives both the size and the addresses.
class Carve {
  public:
    explicit Carve(std::byte* base) : base_(base) {}
    template <class T>
    T* take(size_t n) {
        T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
        used_ += (n * sizeof(T) + 255) / 256 * 256;
        return p;
    }
    size_t used() const { return used_; }

  private:
    std::byte* base_;
    size_t used_ = 0;
};

}  // namespace terrace::cuda
