// What a device does more slowly than the fastest kernels here could: a pure function, for people.
// SPDX-License-Identifier: MIT
#pragma once
#include <string>
#include <vector>

#include "cuda/env.h"

namespace terrace::cuda {

std::vector<std::string> notes_of(const DeviceInfo& info);

}  // namespace terrace::cuda
