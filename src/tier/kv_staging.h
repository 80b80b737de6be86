// Staged prefill: the K and V of a chunk's history lie in host memory and cross the link once per
// chunk and layer, over a copy stream of their own, into an arena in device memory, while the layers
// before are computed (KV offload A5). Which pages and when is staging_plan.h; here are the memory,
// the copies and the order. Engine thread only; a step neither allocates nor waits on the host.
//
// Order across streams, by events alone. C is the compute stream, X the copy stream; items are the
// passes of all layers in a row, item i in half i % 2:
//
//   begin     X waits for what C was given before the step: it may have written pages that are
//             copied now, and read the arena last.
//   freed     X copies item i when C has attended from item i - 2, the last user of its half; then
//             also layer - 2, the last user of the layer's own region, is done.
//   heads     C writes a layer's rows when X has copied the earlier tokens of its own pages, whose
//             blocks the rows complete.
//   filled    C attends from item i when X has copied it.
//
// Every copy is waited for by C before its step ends, so whoever waits for C may change pages, tables
// and what the step was made of.
// SPDX-License-Identifier: MIT
#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "tier/kv_planes.h"
#include "tier/kv_traffic.h"
#include "tier/staging_plan.h"

namespace terrace {

struct StagingGeometry {
    PlaneGeometry planes;
    ArenaShape arena;  // half_pages 0: nothing is staged
    // What rows keep between passes, when there may be several: running sums and selected blocks.
    size_t state_bytes = 0;
    int32_t rows = 0, top = 0;

    bool many_passes() const { return arena.most_passes > 1; }
    size_t page_bytes() const;    // K and V of a page of one layer
    size_t device_bytes() const;  // 0 without an arena
    size_t host_bytes() const;
};

class KvStaging {
  public:
    // Charged to `budget` as Role::kv_arena, the host's side of the tables to `host_budget`.
    static Result<std::unique_ptr<KvStaging>> create(Device& device, Budget& budget,
                                                     Budget& host_budget,
                                                     const StagingGeometry& geometry);
    virtual ~KvStaging() = default;

    const StagingGeometry& geometry() const { return geometry_; }

    // Begins a step and its first copies, once all other work that precedes the layers is in
    // `compute`. False: nothing is staged in this step.
    Result<bool> begin(Stream& compute, const KvPlanes& planes, std::span<const StagedSeq> seqs);

    // Of the step begun last. Layers are asked for in ascending order, and their passes.
    int32_t passes() const { return plan_.passes(); }
    int32_t begin_page(int32_t pass) const { return plan_.begin(pass); }
    int32_t end_page(int32_t pass) const { return plan_.end(pass); }
    // The layer's planes with the pass's pages in the arena, and own pages in any pass.
    RowSource rows(int32_t layer, int32_t pass) const;
    Status before_rows_are_written(Stream& compute, int32_t layer);
    Status before_pass(Stream& compute, int32_t layer, int32_t pass);
    Status after_pass(Stream& compute, int32_t layer, int32_t pass);

    // For steps of several passes: [rows][top], [rows], and AttendArgs::state.
    DevSpan<int32_t> blocks() const { return blocks_; }
    DevSpan<int32_t> counts() const { return counts_; }
    DevSpan<std::byte> state() const { return state_; }

    const KvTraffic& traffic() const { return traffic_; }
    int64_t copied_bytes(int32_t layer) const { return by_layer_[static_cast<size_t>(layer)]; }

  protected:
    enum class Fence : uint8_t { begin, freed, heads, filled };
    explicit KvStaging(const StagingGeometry& geometry)
        : geometry_(geometry), plan_(geometry.arena) {}
    Status allocate(Device& device, Budget& budget, Budget& host_budget);
    // Every order between the streams is made here.
    virtual Status hold(Fence, Stream& later, Event& event) { return later.wait(event); }

  private:
    Status copy_item(int32_t layer, int32_t pass);
    std::byte* place(int32_t page) const {
        return memory_.buffer.device_pointer() + static_cast<size_t>(page) * geometry_.page_bytes();
    }
    const int32_t* table(int32_t layer, int32_t pass) const;

    StagingGeometry geometry_;
    StagingPlan plan_;
    ChargedBuffer memory_, host_tables_;
    DevSpan<int32_t> tables_, blocks_, counts_;
    DevSpan<std::byte> state_;
    std::unique_ptr<Stream> copies_;
    std::unique_ptr<Event> begun_;
    std::array<std::unique_ptr<Event>, 2> freed_, filled_;  // by half
    std::array<std::unique_ptr<Event>, 2> headed_;          // by parity of the layer
    const KvPlanes* planes_ = nullptr;                      // of the step
    KvTraffic traffic_;
    std::vector<int64_t> by_layer_;
};

}  // namespace terrace
