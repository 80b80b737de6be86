// SPDX-License-Identifier: MIT
#include "exl3/decode.h"

#include <array>
#include <memory>
#include <vector>

#include "exl3/hadamard.h"

namespace terrace {
namespace {

using CodeTable = std::array<uint16_t, 65536>;

std::unique_ptr<const CodeTable> make_table(Codebook codebook) {
    auto table = std::make_unique<CodeTable>();
    for (uint32_t s = 0; s < 65536; ++s)
        (*table)[s] = code_value_bits(codebook, s);
    return table;
}

}  // namespace

const uint16_t* code_table(Codebook codebook) {
    switch (codebook) {
        case Codebook::three_inst: {
            static const std::unique_ptr<const CodeTable> t = make_table(Codebook::three_inst);
            return t->data();
        }
        case Codebook::mcg: {
            static const std::unique_ptr<const CodeTable> t = make_table(Codebook::mcg);
            return t->data();
        }
        case Codebook::mul1:
            break;
    }
    static const std::unique_ptr<const CodeTable> t = make_table(Codebook::mul1);
    return t->data();
}

void decode_tile(const uint16_t* tile, int n16, Codebook codebook, uint16_t out_bits[256]) {
    const uint16_t* const table = code_table(codebook);
    for (int t = 0; t < kTileWeights; ++t)
        out_bits[tile_row(t) * kTileSide + tile_col(t)] = table[state_at(tile, n16, t)];
}

void decode_inner(const Exl3Tensor& tensor, f16* out) {
    uint16_t bits[kTileWeights];
    for (int32_t a = 0; a < tensor.row_tiles(); ++a)
        for (int32_t b = 0; b < tensor.col_tiles(); ++b) {
            decode_tile(tensor.tile(a, b), tensor.n16, tensor.codebook, bits);
            for (int r = 0; r < kTileSide; ++r) {
                f16* const row = out + static_cast<int64_t>(a * kTileSide + r) * tensor.out +
                                 static_cast<int64_t>(b) * kTileSide;
                for (int c = 0; c < kTileSide; ++c)
                    row[c] = f16{bits[r * kTileSide + c]};
            }
        }
}

void dequantize(const Exl3Tensor& tensor, float* out) {
    // Both transforms stay inside a 128x128 block, so one block of scratch (128 KiB) is enough.
    constexpr int kSide = kHadamardSize;
    constexpr int kTiles = kSide / kTileSide;
    std::vector<double> block(static_cast<size_t>(kSide) * kSide);
    uint16_t bits[kTileWeights];
    for (int32_t row0 = 0; row0 < tensor.in; row0 += kSide)
        for (int32_t col0 = 0; col0 < tensor.out; col0 += kSide) {
            for (int a = 0; a < kTiles; ++a)
                for (int b = 0; b < kTiles; ++b) {
                    decode_tile(tensor.tile(row0 / kTileSide + a, col0 / kTileSide + b), tensor.n16,
                                tensor.codebook, bits);
                    for (int i = 0; i < kTileWeights; ++i)
                        block[static_cast<size_t>((a * kTileSide + i / kTileSide) * kSide +
                                                  b * kTileSide + i % kTileSide)] =
                            static_cast<double>(f16_to_f32(bits[i]));
                }
            for (int r = 0; r < kSide; ++r)
                butterflies128(block.data() + r * kSide);
            for (int c = 0; c < kSide; ++c)
                butterflies128(block.data() + c, kSide);
            for (int r = 0; r < kSide; ++r) {
                // 1/128: the two factors 1/sqrt(128) together, exact.
                const double scale = static_cast<double>(tensor.suh[row0 + r].f32()) / kSide;
                float* const dst = out + static_cast<int64_t>(row0 + r) * tensor.out + col0;
                for (int c = 0; c < kSide; ++c)
                    dst[c] = static_cast<float>(block[static_cast<size_t>(r * kSide + c)] * scale *
                                                static_cast<double>(tensor.svh[col0 + c].f32()));
            }
        }
}

void unpack_signs(const uint16_t* packed, int n, f16* out) {
    for (int i = 0; i < n; ++i)
        out[i] = f16{(packed[i / 16] >> (i % 16)) & 1 ? uint16_t{0xbc00} : uint16_t{0x3c00}};
}

}  // namespace terrace
