// A program that computes on the CPU.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "compose.h"

namespace terrace {

std::string backend_names() {
    return "cpu reference (built without cuda)";
}

Result<Backend> open_backend(const BackendOptions& o) {
    if (o.device.starts_with("cuda"))
        return Error{Code::unsupported,
                     fmt::format("--device {}: this program was built without CUDA: use cpu, or "
                                 "build where nvcc is installed",
                                 o.device)};
    if (o.device != "auto" && o.device != "cpu" && o.device != "reference" &&
        !o.device.starts_with("emulated"))
        return Error{
            Code::invalid_argument,
            fmt::format("--device {}: legal values are auto, cpu, reference, emulated:SEED",
                        o.device)};
    return open_cpu_backend(o);
}

}  // namespace terrace
