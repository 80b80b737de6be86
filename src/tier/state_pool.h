// Recurrent state of the sequences: one slot each, in every gated-delta layer and every n-gram
// injection (model spec 3.6, 3.7). A checkpoint is a slot too. Engine thread only.
//
//   gdn    per layer [slots][v_heads][k_dim][v_dim]
//   conv   per layer [slots][kernel-1][channels]
//   ple    per injection [slots][(kernel-1)*dilation][streams*hidden]
// All f32.
// SPDX-License-Identifier: MIT
#pragma once
#include <vector>

#include "base/types.h"
#include "tier/budget.h"

namespace terrace {

struct StateGeometry {
    int32_t slots = 0;
    int32_t gdn_layers = 0, v_heads = 0, k_dim = 0, v_dim = 0, conv_rows = 0, channels = 0;
    int32_t ple_layers = 0, ple_rows = 0, ple_width = 0;

    size_t gdn_floats() const;  // of one layer and slot
    size_t conv_floats() const;
    size_t ple_floats() const;
    size_t bytes_per_slot() const;
};

class StatePool {
  public:
    static Result<StatePool> create(Device& device, Budget& budget, const StateGeometry& geometry);

    const StateGeometry& geometry() const { return geometry_; }
    DevSpan<float> gdn(int32_t layer) const { return gdn_[size_t(layer)].buffer.span<float>(); }
    DevSpan<float> conv(int32_t layer) const { return conv_[size_t(layer)].buffer.span<float>(); }
    DevSpan<float> ple(int32_t layer) const { return ple_[size_t(layer)].buffer.span<float>(); }

    Result<SlotId> acquire();  // contents unspecified: clear() or copy() comes next
    void release(SlotId slot);
    int32_t free_slots() const { return static_cast<int32_t>(free_.size()); }

    Status clear(Stream& stream, SlotId slot) const;
    Status copy(Stream& stream, SlotId from, SlotId to) const;

  private:
    StateGeometry geometry_;
    std::vector<ChargedBuffer> gdn_, conv_, ple_;
    std::vector<SlotId> free_;
};

}  // namespace terrace
