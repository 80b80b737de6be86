// Which physical pages are free, and how many sequences hold each. One pool serves every plane of
// every layer: a page is 256 tokens in all of them at once, so planes cannot fall out of step.
// Engine thread only; nothing allocates after construction.
//
// A page is free (count 0), owned (count 1) or shared (count > 1). Only an owned page may be
// written: a writer that finds a shared one copies it first (SequenceStore does).
// SPDX-License-Identifier: MIT
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/types.h"

namespace terrace {

class PagePool {
  public:
    explicit PagePool(int32_t capacity);

    // A page with count 1. Freed pages are handed out again before untouched ones, the last freed
    // first: its lines are likeliest in a cache. out_of_memory when none is left.
    Result<PageId> acquire();
    void share(PageId page);    // count + 1
    void release(PageId page);  // count - 1; free at 0

    int32_t count(PageId page) const { return counts_[static_cast<size_t>(ix(page))]; }
    int32_t capacity() const { return static_cast<int32_t>(counts_.size()); }
    // Pages [0, n) that will have been handed out once `more` more are acquired.
    int32_t reach(int32_t more) const {
        return untouched_ + std::max(0, more - static_cast<int32_t>(freed_.size()));
    }
    int32_t free_pages() const {
        return static_cast<int32_t>(freed_.size()) + capacity() - untouched_;
    }

  private:
    std::vector<int32_t> counts_;
    std::vector<PageId> freed_;
    int32_t untouched_ = 0;  // pages from here on were never handed out
};

}  // namespace terrace
