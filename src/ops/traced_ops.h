// A timeline of operations: wraps any Ops, puts an event on the stream before and after each call,
// and writes a Chrome trace (chrome://tracing, Perfetto) when it dies. Device times, not the time of
// queueing. Slows what it watches; a captured step cannot be watched, so callers launch eagerly.
// SPDX-License-Identifier: MIT
#pragma once
#include <filesystem>

#include "ops/ops.h"

namespace terrace {

// `device` makes the events and must outlive the result. Error io when the file cannot be written.
Result<std::unique_ptr<Ops>> make_traced_ops(std::unique_ptr<Ops> inner, Device& device,
                                             const std::filesystem::path& file);

}  // namespace terrace
