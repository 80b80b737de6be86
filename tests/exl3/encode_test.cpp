// SPDX-License-Identifier: MIT
#include "exl3/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "exl3/decode.h"
#include "exl3/golden.h"
#include "exl3/pack.h"
#include "support/support.h"

namespace terrace {
namespace {

using test::must;

// Gaussian weights with a few loud input features and output columns, as real layers have.
std::vector<float> weights_with_outliers(int in, int out, uint64_t seed) {
    test::Random random(seed);
    std::vector<float> w = random.normals(static_cast<size_t>(in * out), 0.02f);
    for (int r = 5; r < in; r += 61)
        for (int c = 0; c < out; ++c)
            w[static_cast<size_t>(r * out + c)] *= 3.0f;
    for (int c = 9; c < out; c += 47)
        for (int r = 0; r < in; ++r)
            w[static_cast<size_t>(r * out + c)] *= 2.0f;
    return w;
}

double relative_error(const std::vector<float>& w, const EncodedLinear& e) {
    std::vector<float> decoded(w.size());
    dequantize(e.view(), decoded.data());
    double error = 0, power = 0;
    for (size_t i = 0; i < w.size(); ++i) {
        const double d = static_cast<double>(w[i]) - static_cast<double>(decoded[i]);
        error += d * d;
        power += static_cast<double>(w[i]) * static_cast<double>(w[i]);
    }
    return std::sqrt(error / power);
}

TEST(Encoder, ErrorIsThatOfTheOriginalQuantiser) {
    const test::GoldenFile golden = test::read_golden("exl3-linear.safetensors");
    WorkerPool pool(2);
    const std::vector<float> w = weights_with_outliers(256, 128, 21);
    for (const Codebook codebook : {Codebook::mul1, Codebook::mcg, Codebook::three_inst})
        for (int bits = 2; bits <= 8; bits += codebook == Codebook::mul1 ? 1 : 5) {
            const EncodedLinear e = must(
                encode_linear(w.data(), 256, 128, {.n16 = 16 * bits, .codebook = codebook}, pool));
            EXPECT_OK(check(e.view(), "encoded"));
            EXPECT_EQ(e.trellis.size() * 2, e.view().trellis_bytes());
            const std::string key =
                std::string(to_string(codebook)) + ".k" + std::to_string(bits) + ".weight_rel_err";
            const double original = static_cast<double>(*golden.at(key).as<float>());
            const double ours = relative_error(w, e);
            RecordProperty(key, std::to_string(ours));
            EXPECT_LT(ours, 1.05 * original) << key;
            EXPECT_GT(ours, 0.93 * original) << key;
            // EXL3 format 5.6: the best scales, g = s / 1.24371, lie in this band.
            EXPECT_GT(e.g_scale, 0.5f) << key;
            EXPECT_LT(e.g_scale, 1.1f) << key;
        }
}

TEST(Encoder, SearchedScaleIsNotWorseThanItsNeighbours) {
    WorkerPool pool(2);
    const std::vector<float> w = weights_with_outliers(128, 128, 22);
    const EncodedLinear best = must(encode_linear(w.data(), 128, 128, {.n16 = 80}, pool));
    const double error = relative_error(w, best);
    for (const float factor : {0.8f, 1.25f}) {
        const EncodedLinear other = must(
            encode_linear(w.data(), 128, 128, {.n16 = 80, .g_scale = factor * best.g_scale}, pool));
        EXPECT_EQ(other.g_scale, factor * best.g_scale);
        EXPECT_GT(relative_error(w, other), error) << factor;
    }
}

TEST(Encoder, NumberOfWorkersDoesNotChangeABit) {
    const std::vector<float> w = weights_with_outliers(128, 256, 23);
    const EncodeOptions options{.n16 = 56, .codebook = Codebook::mul1, .seed = 99};
    WorkerPool one(1), three(3);
    const EncodedLinear a = must(encode_linear(w.data(), 128, 256, options, one));
    const EncodedLinear b = must(encode_linear(w.data(), 128, 256, options, three));
    EXPECT_EQ(a.g_scale, b.g_scale);
    EXPECT_EQ(a.trellis, b.trellis);
    EXPECT_EQ(a.suh, b.suh);
    EXPECT_EQ(a.svh, b.svh);
    for (int i = 0; i < 128 * 256 / 256; ++i) {
        uint16_t states[256];
        for (int t = 0; t < 256; ++t)
            states[t] = static_cast<uint16_t>(
                state_at(a.trellis.data() + static_cast<ptrdiff_t>(i) * 56, 56, t));
        ASSERT_TRUE(is_tail_biting(states, 56));
    }
}

TEST(Encoder, SeedChoosesTheSignsAndInputSignsAreShared) {
    WorkerPool pool(2);
    const std::vector<float> w = weights_with_outliers(128, 128, 24);
    const std::vector<float> v = weights_with_outliers(128, 256, 25);
    const EncodeOptions seven{.n16 = 128, .seed = 7, .g_scale = 0.6f};
    const EncodeOptions eight{.n16 = 128, .seed = 8, .g_scale = 0.6f};
    const EncodedLinear a = must(encode_linear(w.data(), 128, 128, seven, pool));
    const EncodedLinear b = must(encode_linear(v.data(), 128, 256, seven, pool));
    const EncodedLinear c = must(encode_linear(w.data(), 128, 128, eight, pool));
    int shared = 0, changed = 0, negative = 0;
    for (size_t i = 0; i < 128; ++i) {
        shared += a.suh[i].bits >> 15 == b.suh[i].bits >> 15;
        changed += a.suh[i].bits >> 15 != c.suh[i].bits >> 15;
        negative += a.suh[i].bits >> 15;
    }
    EXPECT_EQ(shared, 128);
    EXPECT_GT(changed, 32);
    EXPECT_GT(negative, 32);
    EXPECT_LT(negative, 96);
}

TEST(Encoder, DeadColumnsAndRowsDecodeToExactZeros) {
    WorkerPool pool(2);
    std::vector<float> w = weights_with_outliers(128, 128, 26);
    for (size_t i = 0; i < 128; ++i) {
        w[i * 128 + 17] = 0.0f;
        w[40 * 128 + i] = 0.0f;
    }
    const EncodedLinear e = must(encode_linear(w.data(), 128, 128, {.n16 = 64}, pool));
    EXPECT_EQ(e.svh[17].f32(), 0.0f);
    EXPECT_EQ(e.suh[40].f32(), 0.0f);
    std::vector<float> decoded(w.size());
    dequantize(e.view(), decoded.data());
    for (size_t i = 0; i < 128; ++i) {
        EXPECT_EQ(decoded[i * 128 + 17], 0.0f);
        EXPECT_EQ(decoded[40 * 128 + i], 0.0f);
    }
    EXPECT_LT(relative_error(w, e), 0.075);

    const std::vector<float> zeros(128 * 128);
    const EncodedLinear nothing = must(encode_linear(zeros.data(), 128, 128, {.n16 = 128}, pool));
    dequantize(nothing.view(), decoded.data());
    EXPECT_EQ(decoded, zeros);
}

TEST(Encoder, VerySmallAndVeryUnevenWeightsKeepTheirPrecision) {
    WorkerPool pool(2);
    std::vector<float> w = weights_with_outliers(128, 128, 27);
    for (float& v : w)
        v *= 1e-4f;  // scales end up as fp16 subnormals
    EXPECT_LT(relative_error(w, must(encode_linear(w.data(), 128, 128, {.n16 = 96}, pool))), 0.03);
    for (size_t r = 0; r < 128; ++r)
        w[r * 128 + 3] *= 1e4f;  // one column has all the power
    EXPECT_LT(relative_error(w, must(encode_linear(w.data(), 128, 128, {.n16 = 96}, pool))), 0.03);
}

TEST(Encoder, BadInputIsAnErrorThatSaysWhere) {
    WorkerPool pool(1);
    std::vector<float> w(128 * 128, 0.5f);
    const auto message = [&](int in, int out, const EncodeOptions& options) {
        const auto r = encode_linear(w.data(), in, out, options, pool);
        if (r) return std::string("no error");
        EXPECT_EQ(r.error().code, Code::invalid_argument);
        return r.error().message;
    };
    EXPECT_NE(message(128, 64, {}).find("128 x 64"), std::string::npos);
    EXPECT_NE(message(0, 128, {}).find("0 x 128"), std::string::npos);
    EXPECT_NE(message(128, 128, {.n16 = 40, .codebook = Codebook::mcg}).find("2.5 bits"),
              std::string::npos);
    EXPECT_NE(message(128, 128, {.n16 = 0}).find("0 bits"), std::string::npos);
    EXPECT_NE(message(128, 128, {.g_scale = -1.0f}).find("global scale -1"), std::string::npos);
    EXPECT_NE(message(128, 128, {.g_scale = NAN}).find("global scale nan"), std::string::npos);
    w[128 * 3 + 4] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_NE(message(128, 128, {}).find("[3][4] is nan"), std::string::npos);
    w[128 * 3 + 4] = std::numeric_limits<float>::infinity();
    EXPECT_NE(message(128, 128, {}).find("[3][4] is inf"), std::string::npos);
    for (float& v : w)
        v = 1e37f;
    EXPECT_NE(message(128, 128, {}).find("fp16 ends at 65504"), std::string::npos);
}

}  // namespace
}  // namespace terrace
