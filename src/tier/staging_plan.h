// Which pages a step stages, in which passes, and where each goes: pure functions of the step, so
// that they are printed and tested without a device (KV offload A5 to A7). Allocates nothing after
// construction.
//
// A sequence's pages in a step are of two kinds. *Own* pages hold what its rows write, from the page
// of its first position on: each has a place in the own region, where rows are written a second time,
// so they never cross the link (but for the earlier tokens of the first one). *History* pages are all
// before them, and are copied.
//
// The arena, in pages:  [half 0: S][half 1: S][own of even layers: O][own of odd layers: O]
//
// History is taken in passes of at most S pages: pass p covers the logical pages [begin(p), end(p))
// of every staged sequence; a page that several share is copied once. Number the passes of all layers
// in a row: item (layer, pass) is layer * passes + pass, and goes to half item % 2.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// A sequence's prefilled rows gather all they select, or the history is staged once for all of them:
// direct while that reads at most twice the history (KV offload A6).
struct Gather {
    int64_t rows = 0;        // prefilled ones
    int64_t history = 0;     // tokens before them
    int64_t top_tokens = 0;  // a row selects at most
};
constexpr bool worth_staging(const Gather& g) {
    const int64_t all = g.history + g.rows;
    return g.rows * (g.top_tokens < all ? g.top_tokens : all) > 2 * g.history;
}

// A staged sequence's part in a step.
struct StagedSeq {
    int32_t pos0 = 0;                // tokens that it has
    int32_t n_rows = 0;              // tokens that the step adds
    const int32_t* table = nullptr;  // physical pages
};

struct ArenaShape {
    int32_t half_pages = 0;   // S; 0: no arena
    int32_t own_pages = 0;    // O
    int32_t pool_pages = 0;   // physical pages that a table covers
    int32_t most_passes = 1;  // tables are made for so many
    int32_t pages() const { return 2 * (half_pages + own_pages); }
};
constexpr int32_t kMostPasses = 64;

// An arena for halves of so many pages and steps of so many rows and sequences.
ArenaShape arena_shape(int32_t half_pages, int32_t pool_pages, int32_t rows, int32_t seqs);

class StagingPlan {
  public:
    explicit StagingPlan(const ArenaShape& shape);

    // False when the arena cannot take the step: more own pages or passes than it is made for.
    bool make(std::span<const StagedSeq> seqs);

    int32_t passes() const { return static_cast<int32_t>(borders_.size()) - 1; }  // at least 1
    int32_t begin(int32_t pass) const { return borders_[static_cast<size_t>(pass)]; }
    int32_t end(int32_t pass) const { return borders_[static_cast<size_t>(pass) + 1]; }
    int32_t half(int32_t layer, int32_t pass) const { return (layer * passes() + pass) % 2; }

    // Neighbouring physical pages that go to neighbouring places of a half, ascending.
    struct Run {
        int32_t page = 0, place = 0, pages = 0;
    };
    std::span<const Run> runs(int32_t pass) const;
    int32_t history_pages() const { return static_cast<int32_t>(pages_.size()); }

    // Own pages whose first `tokens` were there before the step.
    struct Head {
        int32_t page = 0, place = 0, tokens = 0;
    };
    std::span<const Head> heads() const { return heads_; }

    // Place in the arena of each physical page during a pass of an even or odd layer; -1: not there.
    void fill_table(int32_t pass, int32_t layer_parity, std::span<int32_t> table) const;

  private:
    ArenaShape shape_;
    std::vector<int32_t> own_, pages_;  // physical; pages_ pass after pass, ascending in each
    std::vector<int32_t> first_page_, first_run_;  // of each pass, and the end
    std::vector<int32_t> borders_;
    std::vector<Run> runs_;
    std::vector<Head> heads_;
    std::vector<uint32_t> met_;  // by physical page: the last step that met it
    uint32_t step_ = 0;
};

}  // namespace terrace
