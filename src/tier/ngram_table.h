// The hashed n-gram embedding: which rows a token needs (model spec 3.7.1) and where the rows are.
// At real size the table is 30 to 95 GiB and a token reads 16 random rows of 102 to 320 bytes, so
// it stays where it is: mapped, read by pread, or copied to memory. gather() is called before a
// step's compute starts, by the engine thread; it allocates nothing. Placement never changes a
// value.
// SPDX-License-Identifier: MIT
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "base/half.h"
#include "base/types.h"
#include "io/checkpoint.h"
#include "io/model_config.h"
#include "tier/budget.h"

namespace terrace {

// Exact 64-bit integer hashing. The multipliers are bounded by (2^63-1)/vocab, so that no product
// of a valid id overflows.
struct NgramHash {
    int32_t ngram_size = 3;            // longest n
    int32_t heads_per_ngram = 8;       // heads of each n = 2..ngram_size
    TokenId separator = 0;             // cuts the context behind it
    std::vector<int64_t> multipliers;  // [ngram_size]
    std::vector<int64_t> primes;       // [heads] vocabulary of each head
    std::vector<int64_t> offsets;      // [heads] first row of each head

    int32_t heads() const { return heads_per_ngram * (ngram_size - 1); }
    int64_t rows_used() const { return offsets.back() + primes.back(); }

    // The constants from the configuration alone. `ple_index`: position in ple_layer_ids; each
    // injection continues the list of primes where the one before it ended.
    static NgramHash derive(const ModelConfig& config, int32_t ple_index);

    // Rows of the token `ids.back()`; ids before it are its predecessors, oldest first, as many as
    // there are (more than ngram_size - 1 are ignored). A missing predecessor reads as the
    // separator, and so does everything older than one. out: [heads()].
    void rows(std::span<const TokenId> ids, int64_t* out) const;
};

enum class NgramPlacement : uint8_t { mapped, pread, ram };

class NgramTable {
  public:
    // Reads what the checkpoint has under `prefix` ("...ple.ple_embedding."): the hash constants
    // (or derives them), and the table as plain shards or as an n-gram trellis (model spec 2.2).
    static Result<NgramTable> open(const Checkpoint& checkpoint, const std::string& prefix,
                                   const ModelConfig& config, int32_t ple_index,
                                   NgramPlacement placement, Budget& budget);
    // A table of random bf16 rows in memory, for timing without a checkpoint.
    static Result<NgramTable> synthetic(const ModelConfig& config, int32_t ple_index,
                                        Budget& budget);
    NgramTable(NgramTable&&) noexcept;
    NgramTable& operator=(NgramTable&&) noexcept;
    ~NgramTable();

    const NgramHash& hash() const { return hash_; }
    int32_t row_values() const { return row_values_; }  // values of one row
    int64_t row_bytes() const { return row_bytes_; }
    int64_t bytes() const;  // of the whole table where it lies
    NgramPlacement placement() const { return placement_; }

    // out[i][head][row_values] for n tokens; rows [n][heads]. Error io when a pread fails.
    Status gather(std::span<const int64_t> rows, float* out);

    int64_t rows_read() const { return rows_read_; }  // since open, for the ledger

  private:
    NgramTable() = default;
    struct Shard;

    NgramHash hash_;
    int32_t row_values_ = 0;
    int64_t row_bytes_ = 0;
    int64_t rows_per_shard_ = 0;
    DType dtype_ = DType::bf16;
    int32_t trellis_bits_ = 0;    // 0: plain rows
    std::vector<f16> head_bias_;  // [heads][row_values], trellis only
    NgramPlacement placement_ = NgramPlacement::mapped;
    std::vector<Shard> shards_;
    std::vector<std::byte> scratch_;  // one row
    Reservation charge_;
    int64_t rows_read_ = 0;
};

}  // namespace terrace
