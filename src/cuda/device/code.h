// Which code the driver took for the current device, asked of one kernel that stands for all.
// SPDX-License-Identifier: MIT
#pragma once
#include "base/error.h"

namespace terrace::cuda {

// The architecture it was compiled for, 10 * major + minor.
Result<int> loaded_code();

}  // namespace terrace::cuda
