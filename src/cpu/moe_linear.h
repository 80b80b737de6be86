// One face for EXL3 and plain weights where an operation has its own schedule: an input row is
// packed once (EXL3: transform; plain: a copy), then any thread computes any 128 columns. Thin
// wrappers over exl3_linear.h and dense_linear.h, whose rules on bits hold. Any thread; nothing is
// allocated.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>

#include "cpu/dense_linear.h"
#include "cpu/exl3_linear.h"
#include "ops/weights.h"

namespace terrace {

constexpr int kColumnBlock = 128;
constexpr int column_blocks_of(int n) {
    return (n + kColumnBlock - 1) / kColumnBlock;
}

// The dense form of a plain weight.
DenseWeight dense_weight(const LinearWeight& weight);

class LinearPieces {
  public:
    LinearPieces(const KernelTable& kernels, Activations activations)
        : kernels_(&kernels), activations_(activations) {}

    // invalid_argument or unsupported when a weight is missing or its sizes contradict each other
    // or in x out; `what` names it.
    static Status check(const LinearWeight& weight, int in, int out, const char* what);

    // Bytes that hold `rows` packed rows of `in` features for any weight; a multiple of 64. The
    // bytes of a batch are never more than those of its parts together.
    size_t input_bytes(int rows, int in) const;

    struct Input {
        std::byte* data = nullptr;  // [input_bytes(rows, in)], 64-byte aligned
        int rows = 0;
    };
    // Blocks [begin, end) of 128 features of row `row`; x is the whole row.
    void pack(const LinearWeight& weight, Input input, int row, const float* x, int begin,
              int end) const;

    // All rows times columns 128 * block ..; y is row 0, column 0 of the whole result. scratch:
    // column_scratch_bytes(kExl3RowChunk). next: what this thread computes afterwards, or null.
    void columns(const LinearWeight& weight, Input input, int block, float* y, size_t y_stride,
                 std::byte* scratch, const LinearWeight* next, int next_block) const;

  private:
    PackedRows packed(const LinearWeight& weight, Input input) const;

    const KernelTable* kernels_;
    Activations activations_;
};

}  // namespace terrace
