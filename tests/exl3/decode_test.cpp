// Codebooks, tile layout and decoder against published constants, the oracle's vectors and matrices
// decoded by the original kernels.
// SPDX-License-Identifier: MIT
#include "exl3/decode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "exl3/golden.h"
#include "support/support.h"

namespace terrace {
namespace {

using test::GoldenFile;

constexpr Codebook kAllCodebooks[] = {Codebook::three_inst, Codebook::mcg, Codebook::mul1};

const nlohmann::json& tiles_json() {
    static const auto doc = nlohmann::json::parse(test::read_text("oracle/tiles.json"));
    return doc;
}

Exl3Tensor view_of(const GoldenFile& f, const std::string& key, Codebook codebook) {
    const test::GoldenTensor& t = f.at(key + ".trellis");
    return Exl3Tensor{.in = static_cast<int32_t>(t.shape[0] * 16),
                      .out = static_cast<int32_t>(t.shape[1] * 16),
                      .n16 = static_cast<int32_t>(t.shape[2]),
                      .codebook = codebook,
                      .trellis = t.as<uint16_t>(),
                      .suh = f.at(key + ".suh").as<f16>(),
                      .svh = f.at(key + ".svh").as<f16>()};
}

TEST(Sha256, GivesThePublishedDigestOfAbc) {
    EXPECT_EQ(test::sha256_hex("abc", 3),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Codebook, AllStatesHashToTheFormatsDigests) {
    const char* const digest[] = {
        "ad88de2dcff5bb05fff2faec37cceceb43aa1c2e8203f9d81a6fbd6dd3393eea",
        "95383563929baa9d1ae5de0be22490284382673620bdd85929feea7bdbef04a9",
        "bc48d02cb1c14939dc47b90f870dd689d63e3b1ab69a157e65538db68677a6c8"};
    for (const Codebook c : kAllCodebooks)
        EXPECT_EQ(test::sha256_hex(code_table(c), 65536 * 2), digest[static_cast<int>(c)])
            << to_string(c);
}

TEST(Codebook, Mul1IsTheByteSumTimesTheScalePlusTheOffset) {
    for (uint32_t s = 0; s < 65536; ++s) {
        const uint32_t x = s * kMul1Multiplier;
        const uint32_t sum = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24);
        ASSERT_EQ(mul1_byte_sum(s), sum);
        const double exact = (1024.0 + sum) * 887.0 / 131072.0 - 10.3828125;
        ASSERT_EQ(static_cast<double>(sum) * static_cast<double>(kMul1Scale) +
                      static_cast<double>(kMul1Offset),
                  exact);
        ASSERT_EQ(code_value_bits(Codebook::mul1, s), f32_to_f16(static_cast<float>(exact)));
    }
}

TEST(Trellis, WorkedExamplesOfTheFormatHaveTheirStates) {
    struct Example {
        int k;
        uint32_t last_word;
        uint32_t states[4], state128, state255;
    };
    const Example examples[] = {{2, 0xe3779b90, {0x6e42, 0xb909, 0xe427, 0x909e}, 0x3722, 0x9b90},
                                {3, 0xd5336958, {0x4ac4, 0x5627, 0xb13c, 0x89e3}, 0xa560, 0x6958},
                                {5, 0xb8ab04e8, {0x9d13, 0xa278, 0x4f1b, 0xe377}, 0x4e9f, 0x04e8},
                                {8, 0x8dde6e40, {0x409e, 0x9e37, 0x3779, 0x79b9}, 0x2065, 0x6e40}};
    for (const Example& e : examples) {
        std::vector<uint32_t> words(static_cast<size_t>(8 * e.k));
        for (size_t i = 0; i < words.size(); ++i)
            words[i] = 0x9e3779b9u * static_cast<uint32_t>(i + 1);
        EXPECT_EQ(words.back(), e.last_word);
        // One halfword of offset: a tile in a file may start at any even address.
        std::vector<uint16_t> shifted(words.size() * 2 + 1);
        std::memcpy(shifted.data() + 1, words.data(), words.size() * 4);
        const uint16_t* tile = shifted.data() + 1;
        for (int t = 0; t < 4; ++t)
            EXPECT_EQ(state_at(tile, 16 * e.k, t), e.states[t]) << e.k;
        EXPECT_EQ(state_at(tile, 16 * e.k, 128), e.state128);
        EXPECT_EQ(state_at(tile, 16 * e.k, 255), e.state255);
        if (e.k != 2) continue;
        const uint16_t row0[3][4] = {{0x3f09, 0x3c13, 0x3cbe, 0x3c5d},
                                     {0x3c2c, 0x3d40, 0x3e47, 0x3dd0},
                                     {0x3bac, 0x3c07, 0x3e92, 0xb58d}};
        for (const Codebook c : kAllCodebooks) {
            uint16_t out[256];
            decode_tile(tile, 32, c, out);
            for (int i = 0; i < 4; ++i)
                EXPECT_EQ(out[i], row0[static_cast<int>(c)][i]);
        }
    }
}

TEST(Trellis, RingPositionsCoverTheTileOnceAndInvert) {
    std::set<int> places;
    for (int t = 0; t < 256; ++t) {
        places.insert(tile_row(t) * 16 + tile_col(t));
        EXPECT_EQ(ring_position(tile_row(t), tile_col(t)), t);
    }
    EXPECT_EQ(places.size(), 256u);
    EXPECT_EQ(*places.rbegin(), 255);
}

TEST(Trellis, OracleTilesGiveTheirStatesAndValuesBitForBit) {
    int seen = 0, half = 0;
    for (const auto& tile : tiles_json()["tiles"]) {
        const double k = tile["K"];
        const int n16 = static_cast<int>(k * 16);
        const Codebook c = test::codebook_named(tile["codebook"]);
        const auto words = test::words_from_hex(tile["words"]);
        const auto states = test::words_from_hex(tile["states"]);
        const auto values = test::words_from_hex(tile["values_fp16"]);
        ASSERT_TRUE(legal_n16(n16, c));
        ASSERT_EQ(words.size(), static_cast<size_t>(n16));
        ASSERT_EQ(states.size(), 256u);
        ASSERT_EQ(values.size(), 256u);
        uint16_t out[256];
        decode_tile(words.data(), n16, c, out);
        for (int t = 0; t < 256; ++t) {
            ASSERT_EQ(state_at(words.data(), n16, t), states[static_cast<size_t>(t)])
                << k << " " << t;
            ASSERT_EQ(out[t], values[static_cast<size_t>(t)]) << k << " " << t;
        }
        ++seen;
        half += n16 % 16 != 0;
    }
    EXPECT_EQ(seen, 31);  // K 1..8 for three codebooks, seven half-integer K for mul1
    EXPECT_EQ(half, 7);
}

TEST(Decoder, OracleLayersGiveTheirInnerAndDenseWeights) {
    const GoldenFile f = test::read_golden("oracle/layers.safetensors");
    for (int layer = 0; layer < 4; ++layer) {
        const std::string key = "layer" + std::to_string(layer);
        const auto codebook = static_cast<Codebook>(*f.at(key + ".codebook").as<int64_t>());
        const Exl3Tensor t = view_of(f, key, codebook);
        ASSERT_OK(check(t, key));
        std::vector<f16> inner(static_cast<size_t>(t.in) * static_cast<size_t>(t.out));
        decode_inner(t, inner.data());
        const auto& want = f.at(key + ".inner_fp16");
        ASSERT_EQ(want.bytes.size(), inner.size() * 2);
        EXPECT_EQ(std::memcmp(inner.data(), want.bytes.data(), want.bytes.size()), 0) << key;
        std::vector<float> dense(inner.size());
        dequantize(t, dense.data());
        const auto& rows = f.at(key + ".w_f32_first32rows");
        ASSERT_EQ(rows.bytes.size(), static_cast<size_t>(32 * t.out) * 4);
        for (int i = 0; i < 32 * t.out; ++i)  // one rounding of nearly the same double
            ASSERT_NEAR(dense[static_cast<size_t>(i)], rows.as<float>()[i],
                        2e-7f * std::fabs(rows.as<float>()[i]) + 1e-12f);
    }
}

TEST(Decoder, InnerWeightsEqualWhatTheOriginalKernelsDecoded) {
    const GoldenFile f = test::read_golden("exl3-linear.safetensors");
    int seen = 0;
    for (const Codebook c : kAllCodebooks)
        for (int k = 1; k <= 8; ++k) {
            const std::string key = std::string(to_string(c)) + ".k" + std::to_string(k);
            const Exl3Tensor t = view_of(f, key, c);
            ASSERT_OK(check(t, key));
            EXPECT_EQ(t.bits_per_weight(), k);
            EXPECT_EQ(t.trellis_bytes(), f.at(key + ".trellis").bytes.size());
            std::vector<f16> inner(static_cast<size_t>(t.in) * static_cast<size_t>(t.out));
            decode_inner(t, inner.data());
            const auto& want = f.at(key + ".inner");
            ASSERT_EQ(want.bytes.size(), inner.size() * 2);
            EXPECT_EQ(std::memcmp(inner.data(), want.bytes.data(), want.bytes.size()), 0) << key;
            ++seen;
        }
    EXPECT_EQ(seen, 24);
}

TEST(Decoder, DenseWeightsReproduceTheOriginalProduct) {
    const GoldenFile f = test::read_golden("exl3-linear.safetensors");
    const f16* const x = f.at("x").as<f16>();
    for (const Codebook c : kAllCodebooks)
        for (int k = 1; k <= 8; ++k) {
            const std::string key = std::string(to_string(c)) + ".k" + std::to_string(k);
            const Exl3Tensor t = view_of(f, key, c);
            std::vector<float> w(static_cast<size_t>(t.in) * static_cast<size_t>(t.out));
            dequantize(t, w.data());
            const auto& y_ref = f.at(key + ".y_ref");
            const auto& y_gpu = f.at(key + ".y_gpu");
            ASSERT_EQ(y_ref.bytes.size(), static_cast<size_t>(4 * t.out) * 4);
            ASSERT_EQ(y_gpu.bytes.size(), y_ref.bytes.size());
            double error = 0, error_gpu = 0, power = 0;
            for (int m = 0; m < 4; ++m)
                for (int n = 0; n < t.out; ++n) {
                    double y = 0;
                    for (int i = 0; i < t.in; ++i)
                        y += static_cast<double>(x[m * t.in + i].f32()) *
                             static_cast<double>(w[static_cast<size_t>(i * t.out + n)]);
                    const double ref = static_cast<double>(y_ref.as<float>()[m * t.out + n]);
                    error += (y - ref) * (y - ref);
                    power += ref * ref;
                    const double gpu = static_cast<double>(y_gpu.as<float>()[m * t.out + n]);
                    error_gpu += (y - gpu) * (y - gpu);
                }
            EXPECT_LT(std::sqrt(error / power), 1e-3) << key;
            EXPECT_LT(std::sqrt(error_gpu / power), 1e-3) << key;
        }
}

TEST(Decoder, PackedSignsUnpackAsTheOracleDoes) {
    const auto packed = test::words_from_hex(tiles_json()["signs"]["packed"]);
    const auto want = test::words_from_hex(tiles_json()["signs"]["fp16"]);
    ASSERT_EQ(want.size(), packed.size() * 16);
    std::vector<f16> got(want.size());
    unpack_signs(packed.data(), static_cast<int>(got.size()), got.data());
    for (size_t i = 0; i < want.size(); ++i)
        EXPECT_EQ(got[i].bits, want[i]) << i;
}

TEST(Exl3Tensor, CheckNamesTheTensorAndWhatIsWrong) {
    const uint16_t words[1] = {};
    const f16 ones[1] = {};
    const Exl3Tensor good{.in = 128,
                          .out = 256,
                          .n16 = 48,
                          .codebook = Codebook::mcg,
                          .trellis = words,
                          .suh = ones,
                          .svh = ones};
    EXPECT_OK(check(good, "good"));
    const auto expect_bad = [&](auto change, const char* part) {
        Exl3Tensor t = good;
        change(t);
        const Status s = check(t, "layer.q_proj");
        ASSERT_FALSE(s.has_value()) << part;
        EXPECT_EQ(s.error().code, Code::corrupt_data);
        EXPECT_NE(s.error().message.find("layer.q_proj"), std::string::npos);
        EXPECT_NE(s.error().message.find(part), std::string::npos) << s.error().message;
    };
    expect_bad([](Exl3Tensor& t) { t.in = 144; }, "in 144");
    expect_bad([](Exl3Tensor& t) { t.out = 0; }, "out 0");
    expect_bad([](Exl3Tensor& t) { t.n16 = 40; }, "40");  // half-integer K is for mul1 only
    expect_bad([](Exl3Tensor& t) { t.n16 = 144; }, "144");
    expect_bad([](Exl3Tensor& t) { t.n16 = 8; }, "8");
    expect_bad([](Exl3Tensor& t) { t.svh = nullptr; }, "svh is missing");
    expect_bad(
        [](Exl3Tensor& t) {
            t.trellis =
                reinterpret_cast<const uint16_t*>(reinterpret_cast<uintptr_t>(t.trellis) + 1);
        },
        "odd address");
    Exl3Tensor half = good;
    half.codebook = Codebook::mul1;
    half.n16 = 40;
    EXPECT_OK(check(half, "half"));
    EXPECT_EQ(half.bits_per_weight(), 2.5);
}

}  // namespace
}  // namespace terrace
