// Operations for the emulated device: every call is queued on its stream with what it reads and
// writes, and runs later through the operations it wraps (those of a host backend). What a call
// needs beyond the call is copied when it is queued; of the host's copies of sequences only what may
// shape a launch survives (StepRows::host_seqs), so that a backend or model that leans on more shows.
// SPDX-License-Identifier: MIT
#pragma once
#include "ops/ops.h"

namespace terrace {

// The streams given to it must be of an EmulatedDevice.
std::unique_ptr<Ops> make_emulated_ops(std::unique_ptr<Ops> inner);

}  // namespace terrace
