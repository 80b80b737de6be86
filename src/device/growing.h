// Pinned host memory that becomes usable piece by piece, so that an engine with a hundred GiB of
// planes serves its first request long before the last page is pinned. An optional side of a Device:
// ask with dynamic_cast; a device without it allocates at once.
// SPDX-License-Identifier: MIT
#pragma once
#include "device/device.h"

namespace terrace {

class GrowsPinned {
  public:
    virtual ~GrowsPinned() = default;
    // `bytes` of addresses in MemSpace::host_pinned, none of them usable yet. Engine thread.
    virtual Result<Buffer> reserve_pinned(size_t bytes) = 0;
    // Makes bytes [from, to) of such a buffer usable by host and device: `from` is where the call
    // before ended, both are multiples of 4096 (`to` may be the end instead). Any thread, one call at
    // a time per device. The error says what the system refused; what was usable stays so.
    virtual Status grow_pinned(const Buffer& buffer, size_t from, size_t to) = 0;
};

}  // namespace terrace
