// Backends that programs are composed of: apps/compose_*.cpp define them, and exactly one of
// compose_cpu_only.cpp and compose_cuda.cpp defines open_backend().
// SPDX-License-Identifier: MIT
#pragma once
#include "ops/backends.h"

namespace terrace {

// device: auto, cpu, reference or emulated:SEED.
Result<Backend> open_cpu_backend(const BackendOptions& options);

}  // namespace terrace
