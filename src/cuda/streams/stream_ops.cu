// SPDX-License-Identifier: MIT
#include "cuda/streams/stream_ops.h"

namespace terrace::cuda {
size_t stream_scratch_bytes(const DeviceInfo&, const OpsLimits&) {
    return 0;
}
Status embed(const Launch&, const EmbedArgs&) {
    return Error{Code::unsupported, "embed: not on the GPU yet"};
}
Status hyper_read(const Launch&, const HyperReadArgs&) {
    return Error{Code::unsupported, "hyper_read: not on the GPU yet"};
}
Status hyper_write(const Launch&, const HyperWriteArgs&) {
    return Error{Code::unsupported, "hyper_write: not on the GPU yet"};
}
Status gather_rows(const Launch&, const GatherRowsArgs&) {
    return Error{Code::unsupported, "gather_rows: not on the GPU yet"};
}
}  // namespace terrace::cuda
