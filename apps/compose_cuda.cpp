// A program that computes on an NVIDIA GPU where there is one, and on the CPU elsewhere. The only place
// that names src/cuda.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <charconv>

#include "base/cpu_features.h"
#include "compose.h"
#include "cuda/cuda_backend.h"

namespace terrace {
namespace {

// "cuda" and "cuda:N"; nothing else.
Result<int> ordinal_of(const std::string& device) {
    if (device == "cuda") return 0;
    int n = -1;
    const char* end = device.data() + device.size();
    const auto [at, error] = std::from_chars(device.data() + 5, end, n);
    if (device[4] != ':' || error != std::errc{} || at != end || n < 0)
        return Error{Code::invalid_argument,
                     fmt::format("--device {}: legal values are auto, cpu, reference, cuda, cuda:N",
                                 device)};
    return n;
}

Result<Backend> open_cuda_backend(const BackendOptions& o, int ordinal) {
    Backend b;
    TERRACE_ASSIGN(b.device, make_cuda_device(ordinal));
    b.notes = cuda_notes(*b.device);
    // Threads make synthetic weights and gather n-gram rows; the GPU computes.
    b.pool = std::make_unique<WorkerPool>(
        o.threads > 0 ? o.threads : cpu_features().physical_threads, o.pinning);
    TERRACE_ASSIGN(b.ops, make_cuda_ops(*b.device));
    return b;
}

}  // namespace

std::string backend_names() {
    const CudaProbe probe = probe_cuda();
    return fmt::format("cpu reference cuda ({})",
                       probe.usable() ? fmt::format("{} devices", probe.devices) : probe.reason);
}

Result<Backend> open_backend(const BackendOptions& o) {
    if (o.device.starts_with("cuda")) {
        TERRACE_ASSIGN(const int ordinal, ordinal_of(o.device));
        return open_cuda_backend(o, ordinal);
    }
    if (o.device != "auto" && o.device != "cpu" && o.device != "reference" &&
        !o.device.starts_with("emulated"))
        return Error{
            Code::invalid_argument,
            fmt::format(
                "--device {}: legal values are auto, cpu, reference, cuda, cuda:N, emulated:SEED",
                o.device)};
    if (o.device != "auto") return open_cpu_backend(o);
    const CudaProbe probe = probe_cuda();
    if (probe.usable() && o.isa == "auto") return open_cuda_backend(o, 0);
    TERRACE_ASSIGN(Backend b, open_cpu_backend(o));
    b.remarks.push_back(probe.devices > 0 ? "--isa asks for the CPU: the GPU is not used"
                                          : fmt::format("{}: computing on the CPU", probe.reason));
    return b;
}

}  // namespace terrace
