// Residual streams on the GPU: embedding, hyper-connections, row gather. Entry points.
// SPDX-License-Identifier: MIT
#pragma once
#include "cuda/env.h"
#include "ops/ops.h"

namespace terrace::cuda {

size_t stream_scratch_bytes(const DeviceInfo& info, const OpsLimits& limits);
Status embed(const Launch& launch, const EmbedArgs& args);
Status hyper_read(const Launch& launch, const HyperReadArgs& args);
Status hyper_write(const Launch& launch, const HyperWriteArgs& args);
Status gather_rows(const Launch& launch, const GatherRowsArgs& args);

}  // namespace terrace::cuda
