// How many rows a tile of a product has. Pure, no CUDA; decides speed only, never a bit.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <initializer_list>

namespace terrace::cuda {

enum class ProductShape : uint8_t { rows64, rows128, rows256 };

constexpr int shape_rows(ProductShape s) {
    return s == ProductShape::rows64 ? 64 : s == ProductShape::rows128 ? 128 : 256;
}

// Clocks of one multiprocessor for 64 inputs of a tile: decoding 128 outputs costs about as much as
// multiplying 96 rows, so that a small tile takes longer per row.
constexpr int step_clocks(ProductShape s) {
    return s == ProductShape::rows64 ? 400 : s == ProductShape::rows128 ? 600 : 1100;
}

// The shape with the shortest longest multiprocessor, for rows x col_tiles * 128 outputs.
constexpr ProductShape choose_shape(int64_t rows, int64_t col_tiles, int64_t sms) {
    ProductShape best = ProductShape::rows64;
    int64_t best_clocks = INT64_MAX;
    for (const ProductShape s :
         {ProductShape::rows64, ProductShape::rows128, ProductShape::rows256}) {
        const int64_t tiles = (rows + shape_rows(s) - 1) / shape_rows(s) * col_tiles;
        const int64_t clocks = (tiles + sms - 1) / sms * step_clocks(s);
        if (clocks < best_clocks) {
            best_clocks = clocks;
            best = s;
        }
    }
    return best;
}

}  // namespace terrace::cuda
