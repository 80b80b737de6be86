// SPDX-License-Identifier: MIT
#include "cuda/attn/attn_ops.h"

namespace terrace::cuda {
size_t attn_scratch_bytes(const DeviceInfo&, const OpsLimits&) {
    return 0;
}
Status qsa_prepare(const Launch&, const QsaPrepareArgs&) {
    return Error{Code::unsupported, "qsa_prepare: not on the GPU yet"};
}
Status qsa_pool(const Launch&, const QsaPoolArgs&) {
    return Error{Code::unsupported, "qsa_pool: not on the GPU yet"};
}
Status index_scores(const Launch&, const IndexScoresArgs&) {
    return Error{Code::unsupported, "index_scores: not on the GPU yet"};
}
Status select_blocks(const Launch&, const SelectBlocksArgs&) {
    return Error{Code::unsupported, "select_blocks: not on the GPU yet"};
}
Status attend(const Launch&, const AttendArgs&) {
    return Error{Code::unsupported, "attend: not on the GPU yet"};
}
}  // namespace terrace::cuda
