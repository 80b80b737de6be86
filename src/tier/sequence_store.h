// Where a sequence's memory is: its block table, its state slot, its length; and the edits that
// keep all of them in step: reserve, commit, rollback, checkpoint, fork, free (model spec 3.5.4).
// Knows nothing of tokens. Engine thread only; copies go through the given stream, in order with
// compute.
//
// Rollback: planes need only a shorter length (stale rows are beyond the score bound, pooled rows
// are rebuilt from raw). Recurrent state cannot go back by itself: a checkpoint slot holds it as of
// an earlier length, restore() brings it back, and the caller runs the tokens since then again, in
// the same kinds of rows as the first time, which gives the same bits.
// SPDX-License-Identifier: MIT
#pragma once
#include <optional>
#include <vector>

#include "tier/kv_planes.h"
#include "tier/page_pool.h"
#include "tier/state_pool.h"

namespace terrace {

class SequenceStore;

// One sequence's memory. Move-only; gives everything back when it dies.
class SequenceMemory {
  public:
    SequenceMemory(SequenceMemory&& o) noexcept { swap(o); }
    SequenceMemory& operator=(SequenceMemory&& o) noexcept {
        SequenceMemory moved(std::move(o));
        swap(moved);
        return *this;
    }
    ~SequenceMemory();

    int32_t length() const { return length_; }  // tokens whose state and planes are in place
    SlotId slot() const { return slot_; }
    const std::vector<int32_t>& block_table() const { return table_; }  // physical pages
    std::optional<int32_t> checkpoint_length() const {
        return has_checkpoint_ ? std::optional<int32_t>(checkpoint_length_) : std::nullopt;
    }

  private:
    friend class SequenceStore;
    SequenceMemory() = default;
    void swap(SequenceMemory& o) noexcept;

    SequenceStore* store_ = nullptr;
    std::vector<int32_t> table_;
    int32_t length_ = 0;
    SlotId slot_{};
    bool has_checkpoint_ = false;
    SlotId checkpoint_{};
    int32_t checkpoint_length_ = 0;
};

class SequenceStore {
  public:
    SequenceStore(KvPlanes planes, StatePool states);
    SequenceStore(const SequenceStore&) = delete;
    SequenceStore& operator=(const SequenceStore&) = delete;

    const KvPlanes& planes() const { return planes_; }
    void grow_in_background() { planes_.grow_in_background(); }
    const StatePool& states() const { return states_; }
    const PagePool& pages() const { return pages_; }

    // An empty sequence with cleared state. Its table can grow to max_pages without allocating.
    Result<SequenceMemory> create(Stream& stream, int32_t max_pages);

    // Makes room for n more tokens: acquires pages, and copies the page that the next token goes to
    // if it is shared. All or nothing: on an error nothing has changed.
    Status reserve(Stream& stream, SequenceMemory& seq, int32_t n);
    void commit(SequenceMemory& seq, int32_t n);  // n tokens were computed

    // Lowers the length to `length` and frees pages behind it. The state is then too new: restore()
    // a checkpoint at or before `length` and recompute from there, unless length == current. A
    // checkpoint ahead of `length` is dropped.
    void truncate(SequenceMemory& seq, int32_t length);

    // Remembers the state at the current length (one per sequence; a newer one replaces it).
    Status checkpoint(Stream& stream, SequenceMemory& seq);
    // State and length go back to the checkpoint, which stays. Error when there is none.
    Status restore(Stream& stream, SequenceMemory& seq);

    // A second sequence with the same history: full pages are shared, a partial last page is
    // copied, the state is copied. The checkpoint is not inherited.
    Result<SequenceMemory> fork(Stream& stream, const SequenceMemory& seq, int32_t max_pages);

  private:
    friend class SequenceMemory;
    void free(SequenceMemory& seq);
    void drop_checkpoint(SequenceMemory& seq);

    KvPlanes planes_;
    StatePool states_;
    PagePool pages_;
};

}  // namespace terrace
