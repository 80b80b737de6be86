// The CUDA backend's public face: no CUDA type in it. Opening a device makes it current for the
// calling thread, the engine thread, and the only one that may use it.
// SPDX-License-Identifier: MIT
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace terrace {

// What is there. `reason` says why the first device cannot be used: no driver, no GPU, or no code
// for it in this build; empty when it can. Never fails.
struct CudaProbe {
    int devices = 0;
    std::string reason;
    bool usable() const { return devices > 0 && reason.empty(); }
};
CudaProbe probe_cuda();

// unsupported when there is no such device, or when this build has no code for it.
Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

// What this build does more slowly on `device`, a CUDA device, than the fastest kernels here could; empty
// on the GPUs that they are for.
std::vector<std::string> cuda_notes(const Device& device);

// `device` must be a CUDA device and outlive the operations.
Result<std::unique_ptr<Ops>> make_cuda_ops(Device& device);

}  // namespace terrace
