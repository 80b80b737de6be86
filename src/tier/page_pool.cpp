// SPDX-License-Identifier: MIT
#include "tier/page_pool.h"

#include <fmt/format.h>

namespace terrace {

PagePool::PagePool(int32_t capacity) : counts_(static_cast<size_t>(capacity), 0) {
    freed_.reserve(static_cast<size_t>(capacity));
}

Result<PageId> PagePool::acquire() {
    PageId page{};
    if (!freed_.empty()) {
        page = freed_.back();
        freed_.pop_back();
    } else if (untouched_ < capacity()) {
        page = PageId{untouched_++};
    } else {
        return Error{Code::out_of_memory,
                     fmt::format("page pool: need 1 more page of 256 tokens, all {} are in use: "
                                 "raise --ctx, or end a sequence",
                                 capacity())};
    }
    counts_[static_cast<size_t>(ix(page))] = 1;
    return page;
}

void PagePool::share(PageId page) {
    TERRACE_CHECK(counts_[static_cast<size_t>(ix(page))] > 0);
    ++counts_[static_cast<size_t>(ix(page))];
}

void PagePool::release(PageId page) {
    int32_t& count = counts_[static_cast<size_t>(ix(page))];
    TERRACE_CHECK(count > 0);
    if (--count == 0) freed_.push_back(page);
}

}  // namespace terrace
