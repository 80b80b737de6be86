// The CUDA backend's public face: no CUDA type in it. Opening a device makes it current for the
// calling thread, the engine thread, and the only one that may use it.
// SPDX-License-Identifier: MIT
#pragma once
#include <memory>
#include <string>

#include "ops/ops.h"

namespace terrace {

// What is there: 0 devices and the driver's reason when none is usable. Never fails.
struct CudaProbe {
    int devices = 0;
    std::string reason;  // "no CUDA driver", ...
};
CudaProbe probe_cuda();

// unsupported when there is no such device, or when this build has no code for it.
Result<std::unique_ptr<Device>> make_cuda_device(int ordinal);

// `device` must be a CUDA device and outlive the operations.
Result<std::unique_ptr<Ops>> make_cuda_ops(Device& device);

}  // namespace terrace
