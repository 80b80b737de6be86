// Viterbi search on the bit-shift trellis: the tail-biting state sequence whose code values come
// closest to a target (EXL3 format 5.5, with fp32 costs). Used by the linear encoder (rings of 256)
// and by the n-gram codec (rings of 160).
//
// SearchTables is read-only after construction and may be shared by threads; a TileSearch belongs
// to one thread at a time and reuses its memory from call to call. Invariant: the result depends on
// target, n16 and codebook only; all kernels give the same states.
// SPDX-License-Identifier: MIT
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "exl3/codebook.h"

namespace terrace {

enum class SearchKernel : uint8_t { plain, avx2, avx512 };

SearchKernel best_search_kernel();  // of this processor

// Code values in the order in which the search reads them, for one or two step widths.
class SearchTables {
  public:
    // n16 as in trellis.h: position t takes new_bits(n16, t) bits, 1..8.
    SearchTables(int n16, Codebook codebook);

    int n16() const { return n16_; }
    Codebook codebook() const { return codebook_; }
    // [2^(16 - bits) / 16][2^bits][16]: block of 16 outgoing nodes, dropped high bits, node.
    const float* blocked(int bits) const { return blocked_[bits - low_bits_].data(); }

  private:
    int n16_;
    Codebook codebook_;
    int low_bits_;
    std::array<std::vector<float>, 2> blocked_;  // floor(K) and ceil(K) bits; 256 KiB each
};

class TileSearch {
  public:
    // positions: length of the ring, an even number of at least 32. Keeps a reference to `tables`.
    // Memory: positions * 2^(16 - floor(K)) bytes of back pointers (8 MiB at K = 1, 64 KiB at K =
    // 8).
    TileSearch(const SearchTables& tables, int positions,
               SearchKernel kernel = best_search_kernel());

    // Measured per tile of 256 and core (Sapphire Rapids), K = 1 2 3 4 5..8:
    // AVX-512 6.6 3.5 2.7 2.2 2.0 ms, AVX2 7.6 6.3 4.5 3.8 3.3 ms, plain 50 to 220 ms.
    //
    // target: [positions] finite floats in ring order. states: [positions], tail-biting.
    // Returns the squared error of the code values against the target.
    float encode(const float* target, uint16_t* states);

  private:
    static constexpr uint32_t kAnyNode = ~0u;

    void forward(const float* target, int start, int count, uint32_t first_node);
    uint32_t walk_back(int last, int count, uint32_t node, uint16_t* states) const;

    const SearchTables& tables_;
    int positions_;
    SearchKernel kernel_;
    int half_window_;
    size_t back_stride_;
    std::vector<uint8_t> bits_;  // [positions + 1] new bits of each position, the first repeated
    std::vector<float> cost_;    // path cost of each node, current position
    std::vector<float> next_;    // same, after it
    std::vector<uint8_t> back_;  // [positions][back_stride_] best dropped bits per outgoing node
};

}  // namespace terrace
