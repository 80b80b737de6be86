// SPDX-License-Identifier: MIT
#include "cuda/moe/moe_ops.h"

namespace terrace::cuda {
Status route(const Launch&, const RouteArgs&) {
    return Error{Code::unsupported, "route: not on the GPU yet"};
}
}  // namespace terrace::cuda
