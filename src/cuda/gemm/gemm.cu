// SPDX-License-Identifier: MIT
#include "cuda/gemm/gemm.h"

namespace terrace::cuda {

size_t gemm_scratch_bytes(const DeviceInfo&, const OpsLimits&) {
    return 0;
}
Status gemm_linear(const Launch&, const LinearArgs&, int, int) {
    return Error{Code::unsupported, "gemm_linear: not on the GPU yet"};
}
Status gemm_plain(const Launch&, const PlainTensor&, int, int, const __half*, int64_t, int, float*,
                  int64_t) {
    return Error{Code::unsupported, "gemm_plain: not on the GPU yet"};
}
Status moe_prefill(const Launch&, const MoeArgs&, int, int) {
    return Error{Code::unsupported, "moe_prefill: not on the GPU yet"};
}

}  // namespace terrace::cuda
