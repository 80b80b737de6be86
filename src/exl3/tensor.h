// View of one EXL3 linear: shapes, bits, codebook and where the three tensors lie. Owns nothing;
// copying it copies pointers. Any thread. Numbers are never validated here except by check(), which
// a loader calls once per tensor.
//
//   y[out] = ((x * suh) . Hd . Wq) . Hd * svh     W is [in][out]; Hd = 128-point Hadamard per block
// (EXL3 format 1.4 and 2.1). in and out are padded sizes, multiples of 128.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/half.h"
#include "exl3/codebook.h"
#include "exl3/trellis.h"

namespace terrace {

struct Exl3Tensor {
    int32_t in = 0;
    int32_t out = 0;
    int32_t n16 = 0;  // 16-bit words per tile = 16 * bits per weight
    Codebook codebook = Codebook::mul1;
    const uint16_t* trellis = nullptr;  // [in/16][out/16][n16], 2-byte aligned
    const f16* suh = nullptr;           // [in], signs times scales
    const f16* svh = nullptr;           // [out], signs times scales; zero for a dead column

    TERRACE_HD constexpr double bits_per_weight() const { return n16 / 16.0; }
    TERRACE_HD constexpr int32_t row_tiles() const { return in / kTileSide; }
    TERRACE_HD constexpr int32_t col_tiles() const { return out / kTileSide; }

    // Tile of rows 16a .. 16a+15 and columns 16b .. 16b+15. Tiles of neighbouring columns are
    // neighbours in memory.
    TERRACE_HD constexpr const uint16_t* tile(int64_t a, int64_t b) const {
        return trellis + (a * col_tiles() + b) * n16;
    }
    TERRACE_HD constexpr size_t trellis_bytes() const {
        return static_cast<size_t>(row_tiles()) * static_cast<size_t>(col_tiles()) *
               static_cast<size_t>(n16) * sizeof(uint16_t);
    }
};

// K = n16 / 16 is 1..8, or a half-integer between them with mul1 (EXL3 format 1.8).
TERRACE_HD constexpr bool legal_n16(int n16, Codebook codebook) {
    if (n16 < 16 || n16 > 128) return false;
    return n16 % 16 == 0 || (n16 % 8 == 0 && codebook == Codebook::mul1);
}

std::string_view to_string(Codebook codebook);  // "3inst", "mcg", "mul1", as in file names

// corrupt_data when sizes are not positive multiples of 128, n16 is illegal for the codebook, or a
// pointer is missing or not 2-byte aligned. `name` is the tensor's key, put in front of the
// message.
Status check(const Exl3Tensor& tensor, std::string_view name);

}  // namespace terrace
