// How many rows a tile of a product has. Pure, no CUDA; decides speed only, never a bit.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <initializer_list>

namespace terrace::cuda {

enum class ProductShape : uint8_t { rows64, rows128, rows160, rows256 };

constexpr int shape_rows(ProductShape s) {
    return s == ProductShape::rows64    ? 64
           : s == ProductShape::rows128 ? 128
           : s == ProductShape::rows160 ? 160
                                        : 256;
}

// Time of `tiles` equal tiles on `sms` multiprocessors, in nanoseconds per 64 inputs, as measured on
// an H200. Decoding 128 outputs takes as long as multiplying 100 rows or so, which is why large
// tiles are better, but for what they waste on the last wave. Small ones run in pairs.
constexpr int64_t shape_time(ProductShape s, int64_t tiles, int64_t sms) {
    const auto waves = [tiles](int64_t slots) { return (tiles + slots - 1) / slots; };
    switch (s) {
        case ProductShape::rows64:
            return tiles <= sms ? 530 : 820 * waves(2 * sms);
        case ProductShape::rows128:
            return 680 * waves(sms);
        case ProductShape::rows160:
            return 750 * waves(sms);
        default:
            return 960 * waves(sms);
    }
}

// The fastest shape for rows x col_tiles * 128 outputs.
constexpr ProductShape choose_shape(int64_t rows, int64_t col_tiles, int64_t sms) {
    ProductShape best = ProductShape::rows64;
    int64_t best_time = INT64_MAX;
    for (const ProductShape s : {ProductShape::rows64, ProductShape::rows128, ProductShape::rows160,
                                 ProductShape::rows256}) {
        const int64_t tiles = (rows + shape_rows(s) - 1) / shape_rows(s) * col_tiles;
        const int64_t time = shape_time(s, tiles, sms);
        if (time < best_time) {
            best_time = time;
            best = s;
        }
    }
    return best;
}

}  // namespace terrace::cuda
