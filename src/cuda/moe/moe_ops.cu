// SPDX-License-Identifier: MIT
#include "cuda/moe/moe_ops.h"

namespace terrace::cuda {
size_t moe_scratch_bytes(const DeviceInfo&, const OpsLimits&) {
    return 0;
}
Status moe(const Launch&, const MoeArgs&) {
    return Error{Code::unsupported, "moe: not on the GPU yet"};
}
}  // namespace terrace::cuda
