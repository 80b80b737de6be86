// SPDX-License-Identifier: MIT
#include "tier/sequence_store.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace {
namespace {
int32_t pages_for(int64_t tokens) {
    return static_cast<int32_t>((tokens + kPageTokens - 1) / kPageTokens);
}
}  // namespace

SequenceMemory::~SequenceMemory() {
    if (store_) store_->free(*this);
}

void SequenceMemory::swap(SequenceMemory& o) noexcept {
    std::swap(store_, o.store_);
    std::swap(table_, o.table_);
    std::swap(length_, o.length_);
    std::swap(slot_, o.slot_);
    std::swap(has_checkpoint_, o.has_checkpoint_);
    std::swap(checkpoint_, o.checkpoint_);
    std::swap(checkpoint_length_, o.checkpoint_length_);
}

SequenceStore::SequenceStore(KvPlanes planes, StatePool states)
    : planes_(std::move(planes)), states_(std::move(states)), pages_(planes_.geometry().pages) {}

Result<SequenceMemory> SequenceStore::create(Stream& stream, int32_t max_pages) {
    TERRACE_ASSIGN(const SlotId slot, states_.acquire());
    SequenceMemory seq;
    seq.store_ = this;
    seq.slot_ = slot;
    seq.table_.reserve(static_cast<size_t>(max_pages));
    TERRACE_TRY(states_.clear(stream, slot));
    return seq;
}

void SequenceStore::free(SequenceMemory& seq) {
    for (const int32_t page : seq.table_)
        pages_.release(PageId{page});
    states_.release(seq.slot_);
    drop_checkpoint(seq);
    seq.table_.clear();
    seq.store_ = nullptr;
}

Status SequenceStore::reserve(Stream& stream, SequenceMemory& seq, int32_t n) {
    if (n <= 0) return {};
    const int32_t have = static_cast<int32_t>(seq.table_.size());
    const int32_t need = pages_for(int64_t{seq.length_} + n);
    const int32_t used_in_last = seq.length_ % kPageTokens;
    const int32_t write_page = seq.length_ / kPageTokens;  // where the next token goes
    const bool copy =
        write_page < have && pages_.count(PageId{seq.table_[static_cast<size_t>(write_page)]}) > 1;
    const int32_t wanted = std::max(0, need - have) + (copy ? 1 : 0);
    if (wanted > pages_.free_pages())
        return Error{Code::out_of_memory,
                     fmt::format("page pool: {} more tokens need {} pages of {} tokens, {} of {} "
                                 "are free: raise --ctx, or end a sequence",
                                 n, wanted, kPageTokens, pages_.free_pages(), pages_.capacity())};
    TERRACE_TRY(planes_.wait_for(pages_.reach(wanted)));
    if (copy) {
        int32_t& entry = seq.table_[static_cast<size_t>(write_page)];
        TERRACE_ASSIGN(const PageId fresh, pages_.acquire());
        if (used_in_last > 0) {
            if (Status s = planes_.copy_page(stream, PageId{entry}, fresh, used_in_last); !s) {
                pages_.release(fresh);
                return s;
            }
        }
        pages_.release(PageId{entry});
        entry = ix(fresh);
    }
    for (int32_t p = have; p < need; ++p) {
        TERRACE_ASSIGN(const PageId page, pages_.acquire());
        seq.table_.push_back(ix(page));
    }
    return {};
}

void SequenceStore::commit(SequenceMemory& seq, int32_t n) {
    seq.length_ += n;
    TERRACE_CHECK(pages_for(seq.length_) <= static_cast<int32_t>(seq.table_.size()));
}

void SequenceStore::truncate(SequenceMemory& seq, int32_t length) {
    TERRACE_CHECK(length >= 0 && length <= seq.length_);
    seq.length_ = length;
    while (static_cast<int32_t>(seq.table_.size()) > pages_for(length)) {
        pages_.release(PageId{seq.table_.back()});
        seq.table_.pop_back();
    }
    // The tokens that a checkpoint ahead stands for are gone: once others take their places it
    // would look valid again and bring back the state of the old ones.
    if (seq.has_checkpoint_ && seq.checkpoint_length_ > length) drop_checkpoint(seq);
}

void SequenceStore::drop_checkpoint(SequenceMemory& seq) {
    if (seq.has_checkpoint_) states_.release(seq.checkpoint_);
    seq.has_checkpoint_ = false;
}

Status SequenceStore::checkpoint(Stream& stream, SequenceMemory& seq) {
    if (!seq.has_checkpoint_) {
        TERRACE_ASSIGN(seq.checkpoint_, states_.acquire());
        seq.has_checkpoint_ = true;
    }
    seq.checkpoint_length_ = seq.length_;
    Status s = states_.copy(stream, seq.slot_, seq.checkpoint_);
    if (!s) drop_checkpoint(seq);  // half copied: neither the old state nor the new one
    return s;
}

Status SequenceStore::restore(Stream& stream, SequenceMemory& seq) {
    if (!seq.has_checkpoint_)
        return Error{Code::invalid_argument,
                     fmt::format("rollback: the sequence has {} tokens and no checkpoint among "
                                 "them: take a checkpoint before the tokens that may be taken back",
                                 seq.length_)};
    truncate(seq, seq.checkpoint_length_);
    return states_.copy(stream, seq.checkpoint_, seq.slot_);
}

Result<SequenceMemory> SequenceStore::fork(Stream& stream, const SequenceMemory& seq,
                                           int32_t max_pages) {
    const int32_t full = seq.length_ / kPageTokens, rest = seq.length_ % kPageTokens;
    TERRACE_ASSIGN(const SlotId slot, states_.acquire());
    SequenceMemory copy;
    copy.store_ = this;
    copy.slot_ = slot;
    copy.table_.reserve(static_cast<size_t>(std::max(max_pages, full + 1)));
    TERRACE_TRY(states_.copy(stream, seq.slot_, slot));
    // What is in the table is given back by `copy` when a later line fails.
    for (int32_t p = 0; p < full; ++p) {
        const int32_t page = seq.table_[static_cast<size_t>(p)];
        pages_.share(PageId{page});
        copy.table_.push_back(page);
    }
    if (rest > 0) {
        TERRACE_TRY(planes_.wait_for(pages_.reach(1)));
        TERRACE_ASSIGN(const PageId fresh, pages_.acquire());
        copy.table_.push_back(ix(fresh));
        TERRACE_TRY(
            planes_.copy_page(stream, PageId{seq.table_[static_cast<size_t>(full)]}, fresh, rest));
    }
    copy.length_ = seq.length_;
    return copy;
}

}  // namespace terrace
