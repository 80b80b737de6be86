// SPDX-License-Identifier: MIT
#include "cuda/recurrent/recurrent_ops.h"

namespace terrace::cuda {
Status ple_inject(const Launch&, const PleInjectArgs&) {
    return Error{Code::unsupported, "ple_inject: not on the GPU yet"};
}
}  // namespace terrace::cuda
