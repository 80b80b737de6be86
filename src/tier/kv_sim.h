// Replacement policies over recorded selections, as pure functions: how often a mirror of a given size
// would have had the block that a row asked for. One thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace terrace {

enum class MirrorPolicy : uint8_t {
    lru,
    clock,    // second chance
    s3_fifo,  // a small queue (a tenth) for newcomers, a main one, a memory of those that left
    mirror,   // what resolve_blocks does, spares and all (device/block_mirror.h)
    belady,   // knows the future: no policy can have more hits
};
constexpr MirrorPolicy kMirrorPolicies[] = {MirrorPolicy::lru, MirrorPolicy::clock,
                                            MirrorPolicy::s3_fifo, MirrorPolicy::mirror,
                                            MirrorPolicy::belady};
std::string_view to_string(MirrorPolicy policy);

// Calls of one layer in order; each names the blocks that its rows ask for. Hits among them, with
// `slots` slots. A block that a call names twice is a hit the second time if it was admitted.
using MirrorCalls = std::vector<std::vector<uint32_t>>;
int64_t simulated_hits(MirrorPolicy policy, const MirrorCalls& calls, int32_t slots);

}  // namespace terrace
