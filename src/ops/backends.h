// The one seam where backends meet the rest: a program links one definition of open_backend()
// (apps/compose_*.cpp), which picks a device and its operations. Called once, by the thread that
// will be the engine thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace terrace {

struct BackendOptions {
    std::string device = "auto";        // auto | cpu | reference | cuda | cuda:N | emulated:SEED
    std::string isa = "auto";           // auto | avx2 | avx512 | avx512vbmi
    std::string activations = "int16";  // of EXL3 products: int16 | f32
    int threads = 0;                    // 0: every CPU of the process
    Pinning pinning = Pinning::off;
};

// Destroyed in reverse order: operations before the threads and the device they use.
struct Backend {
    std::unique_ptr<Device> inner;  // of operations that another device's are built on
    std::unique_ptr<Device> device;
    std::unique_ptr<WorkerPool> pool;
    std::unique_ptr<Ops> ops;
    std::vector<std::string> notes;    // what is slower than asked and why; the caller prints them
    std::vector<std::string> remarks;  // what `auto` chose and why
};

Result<Backend> open_backend(const BackendOptions& options);

// For people: "cpu reference cuda (1 devices)".
std::string backend_names();

}  // namespace terrace
