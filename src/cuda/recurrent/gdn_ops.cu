// SPDX-License-Identifier: MIT
#include "cuda/recurrent/recurrent_ops.h"

namespace terrace::cuda {
size_t recurrent_scratch_bytes(const DeviceInfo&, const OpsLimits&) {
    return 0;
}
Status gdn(const Launch&, const GdnArgs&) {
    return Error{Code::unsupported, "gdn: not on the GPU yet"};
}
}  // namespace terrace::cuda
