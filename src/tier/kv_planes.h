// The K/V, raw and pooled planes of every sparse-attention layer, all pages of the pool (model spec
// 3.5). Engine thread only. Each plane is a buffer of its own, so that each can live in its own
// memory; kernels reach K and V through a RowSource only.
//
//   K/V     [page][64 blocks][K: 4 tokens][kv_heads][head_dim], then V the same: one extent a block
//   raw     [page][256][index_dim]      before norm and rope
//   pooled  [page][64][index_dim]       mean, norm, rope at the block's first position
// SPDX-License-Identifier: MIT
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "base/types.h"
#include "device/planes.h"
#include "tier/budget.h"
#include "tier/kv_mirror.h"
#include "tier/plane_growth.h"

namespace terrace {

struct PlaneGeometry {
    int32_t layers = 0;  // sparse-attention layers
    int32_t pages = 0;
    int32_t kv_heads = 0, head_dim = 0, index_dim = 0, block_tokens = 4;
    PlaneType type = PlaneType::f16;
    // Where K and V, and raw index keys, live: device or host_pinned. Pooled rows are read whole by
    // every step and always lie in the device's memory (KV offload A2).
    MemSpace kv_space = MemSpace::device, raw_space = MemSpace::device;
    // Not 0: planes in pinned host memory start with so many pages, and grow in the background by as
    // many at a time, where the device can do that (device/growing.h).
    int32_t growth_pages = 0;

    size_t kv_bytes_per_token() const;      // of one layer
    size_t raw_bytes_per_token() const;     // of one layer
    size_t pooled_bytes_per_token() const;  // of one layer; rounded down if a block does not divide
    size_t pooled_bytes_per_page() const;   // of one layer; exact
};

class KvPlanes {
  public:
    // Planes of the device's memory are charged to `budget`, others to `host_budget`.
    static Result<KvPlanes> create(Device& device, Budget& budget, Budget& host_budget,
                                   const PlaneGeometry& geometry);

    const PlaneGeometry& geometry() const { return geometry_; }
    // Blocks until pages [0, n) can be used; an error when no more memory could be pinned.
    Status wait_for(int32_t n) const { return growth_ ? growth_->wait_for(n) : Status(); }
    int32_t usable_pages() const { return growth_ ? growth_->ready() : geometry_.pages; }
    void grow_in_background() {
        if (growth_) growth_->start();
    }
    RowSource rows(int32_t plane_layer) const;  // 0-based among sparse-attention layers
    IndexPlanes index(int32_t plane_layer) const;

    // First n tokens of page `from` to page `to` in all planes of all layers: K, V and raw rows
    // [0, n), pooled rows [0, ceil(n / block)) (the last may be partial, which is harmless: it is
    // never scored, and is rebuilt when its block completes). 1 <= n <= 256.
    Status copy_page(Stream& stream, PageId from, PageId to, int32_t n) const;

    // Copies of hot blocks in faster memory; rows() then leads readers there. Whoever writes K or V
    // at home by other ways than operations or copy_page() calls forget() for the page.
    void add_mirror(KvMirror mirror) { mirror_ = std::move(mirror); }
    const KvMirror* mirror() const { return mirror_ ? &*mirror_ : nullptr; }
    Status forget(Stream& stream, PageId page) const {
        return mirror_ ? mirror_->forget(stream, page) : Status{};
    }

  private:
    struct Layer {
        ChargedBuffer kv, raw, pooled;
    };
    PlaneGeometry geometry_;
    std::vector<Layer> layers_;
    std::unique_ptr<PlaneGrowth> growth_;  // dies before the planes
    std::optional<KvMirror> mirror_;
};

}  // namespace terrace
