// Memory of the hot-block mirrors: for every sparse-attention layer, copies of some K/V blocks whose
// home is pinned host memory, in slots of the device's. Which block is where is decided by
// resolve_blocks on the device (device/block_mirror.h); this class makes the memory, forgets pages
// that are written behind the operations' back, and reads the counters. Engine thread only. Never a
// reader of K or V.
//
//   slots    [n][one block extent]     n * 8 KiB of the real model
//   tables   slot of every block of the pool, owner and last use of every slot, two lists of spares
// SPDX-License-Identifier: MIT
#pragma once
#include <vector>

#include "base/types.h"
#include "device/block_mirror.h"
#include "device/planes.h"
#include "tier/budget.h"

namespace terrace {

struct PlaneGeometry;

class KvMirror {
  public:
    // n_slots slots a layer, at least 1; `budget` is the device's. The tables are cleared by `stream`.
    static Result<KvMirror> create(Device& device, Stream& stream, Budget& budget,
                                   const PlaneGeometry& geometry, int32_t n_slots);
    // What create() takes.
    static uint64_t bytes(const PlaneGeometry& geometry, int32_t n_slots);

    int32_t n_slots() const { return n_slots_; }
    const BlockMirror& tables(int32_t layer) const {
        return layers_[static_cast<size_t>(layer)].tables;
    }
    // Gives a layer's source its mirror.
    void apply(int32_t layer, RowSource& rows) const;

    // Page `page` gets new bytes at home other than by an operation: its blocks are absent from here
    // on, in stream order.
    Status forget(Stream& stream, PageId page) const;

    // Of every layer; waits for the stream.
    Result<std::vector<MirrorCounters>> read_counters(Stream& stream) const;

  private:
    struct Layer {
        ChargedBuffer slots, memory;
        BlockMirror tables;
    };
    int32_t n_slots_ = 0, blocks_per_page_ = 0;
    std::vector<Layer> layers_;
};

}  // namespace terrace
