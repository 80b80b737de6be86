// Byte-level BPE: a vocabulary of byte strings, merge ranks, and the merging itself. Built by
// BpeBuilder, then const and safe for any number of threads.
//
// merge() applies, until none is left, the applicable merge of lowest rank, leftmost first. Short
// words scan their pairs (no allocation); long ones use a linked list and a heap, O(n log n), so a
// megabyte of one letter costs a fraction of a second. Both give the same ids.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/types.h"

namespace terrace {

// Byte <-> the printable character that a vocabulary file writes for it (GPT-2's table): the 188
// printable Latin-1 characters stand for themselves, the rest for U+0100 upward.
std::string byte_alphabet_spelling(uint8_t byte);
// The bytes that a spelled token stands for; a token with a character outside the table stands for
// its own UTF-8.
struct SpelledBytes {
    std::string bytes;
    bool in_alphabet = true;
};
SpelledBytes bytes_of_spelling(std::string_view token);

// bytes -> id, open addressing over strings that the caller keeps alive and unmoved.
class BytesIndex {
  public:
    void reserve(size_t n);
    // False when the key is there already (the old id stays).
    bool insert(std::string_view key, TokenId id);
    std::optional<TokenId> find(std::string_view key) const;

  private:
    struct Entry {
        const char* data = nullptr;
        uint32_t size = 0;
        TokenId id = -1;
    };
    size_t slot_of(std::string_view key) const;
    void grow();
    std::vector<Entry> table_;  // size a power of two, at most half full
    size_t used_ = 0;
};

class Bpe {
  public:
    static constexpr size_t kScanLimit = 48;  // bytes; above, the heap is faster

    // Ids of single bytes, -1 where the vocabulary has none.
    void set_byte(uint8_t byte, TokenId id) { byte_ids_[byte] = id; }
    TokenId byte_id(uint8_t byte) const { return byte_ids_[byte]; }

    void reserve_merges(size_t n);
    // Later merges rank lower. A pair that is listed twice keeps its last rank.
    void add_merge(TokenId left, TokenId right, TokenId product);

    // Appends the ids of `word`. Fails only when a byte has no token; names its offset.
    Status merge(std::string_view word, std::vector<TokenId>& out) const;

    // The two strategies, for tests; `symbols` is replaced by the result.
    void merge_by_scan(std::vector<TokenId>& symbols) const;
    void merge_by_heap(std::vector<TokenId>& symbols) const;

  private:
    struct Merge {
        uint64_t pair = ~0ull;  // left << 32 | right
        uint32_t rank = 0;
        TokenId product = -1;
    };
    const Merge* find(TokenId left, TokenId right) const;
    size_t scan(TokenId* symbols, size_t n) const;

    TokenId byte_ids_[256];
    std::vector<Merge> table_;  // open addressing, size a power of two, at most half full
    size_t used_ = 0;
    uint32_t next_rank_ = 0;

  public:
    Bpe();
};

}  // namespace terrace
