// Dense linear layers: against double, and bit-equal over rows, threads and instruction sets.
// SPDX-License-Identifier: MIT
#include "cpu/dense_linear.h"

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "support/support.h"

namespace terrace {
namespace {

using test::Random;

struct Weights {
    std::vector<std::byte> bytes;  // one odd 16-bit element first: data is 2-byte aligned at best
    std::vector<double> exact;
    DenseWeight view;
};

Weights make_weights(DType type, int in, int out, uint64_t seed) {
    Random random(seed);
    Weights w;
    const size_t n = static_cast<size_t>(in) * static_cast<size_t>(out);
    const size_t skip = type == DType::f32 ? 4 : 2;
    w.bytes.resize(n * dtype_bytes(type) + skip);
    w.exact.resize(n);
    for (size_t i = 0; i < n; ++i) {
        const auto v = static_cast<float>(random.normal());
        if (type == DType::f32) {
            std::memcpy(w.bytes.data() + skip + 4 * i, &v, 4);
            w.exact[i] = v;
        } else {
            const uint16_t h = type == DType::f16 ? f32_to_f16(v) : f32_to_bf16(v);
            std::memcpy(w.bytes.data() + skip + 2 * i, &h, 2);
            w.exact[i] = type == DType::f16 ? f16_to_f32(h) : bf16_to_f32(h);
        }
    }
    w.view = {.data = w.bytes.data() + skip, .type = type, .in = in, .out = out};
    return w;
}

std::vector<float> run(const KernelTable& k, int threads, const DenseWeight& w,
                       const std::vector<float>& x, int rows) {
    WorkerPool pool(threads);
    std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(w.out), std::nanf(""));
    dense_linear(k, pool, w, x.data(), static_cast<size_t>(w.in), rows, y.data(),
                 static_cast<size_t>(w.out));
    return y;
}

class DenseLinear : public testing::TestWithParam<IsaChoice> {
  protected:
    void SetUp() override {
        k = select_kernels(GetParam());
        if (k == nullptr) GTEST_SKIP() << "this machine lacks the instruction set";
    }
    const KernelTable* k = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Isa, DenseLinear,
                         testing::Values(IsaChoice::avx2, IsaChoice::avx512,
                                         IsaChoice::avx512_vbmi));

TEST_P(DenseLinear, MatchesDoubleForEveryTypeAndTail) {
    for (const DType type : {DType::bf16, DType::f16, DType::f32})
        for (const auto& [in, out] :
             {std::pair{1, 1}, {15, 3}, {16, 9}, {33, 17}, {250, 37}, {1024, 70}})
            for (const int rows : {1, 2, 3, 4, 5, 9}) {
                const Weights w =
                    make_weights(type, in, out, static_cast<uint64_t>(in * 100 + out));
                Random random(9);
                const std::vector<float> x = random.normals(static_cast<size_t>(rows * in));
                const std::vector<float> y = run(*k, 2, w.view, x, rows);
                for (int r = 0; r < rows; ++r)
                    for (int o = 0; o < out; ++o) {
                        double want = 0;
                        double size = 0;
                        for (int i = 0; i < in; ++i) {
                            const double t =
                                w.exact[static_cast<size_t>(o * in + i)] *
                                static_cast<double>(x[static_cast<size_t>(r * in + i)]);
                            want += t;
                            size += std::abs(t);
                        }
                        ASSERT_NEAR(y[static_cast<size_t>(r * out + o)], want, 1e-6 * size + 1e-12)
                            << to_string(type) << " " << in << "x" << out << " row " << r;
                    }
            }
}

TEST_P(DenseLinear, RowHasTheSameBitsAloneAndInCompanyOnAnyThreads) {
    const Weights w = make_weights(DType::bf16, 777, 101, 3);
    Random random(10);
    const std::vector<float> x = random.normals(23 * 777);
    const std::vector<float> all = run(*k, 1, w.view, x, 23);
    EXPECT_EQ(all, run(*k, 3, w.view, x, 23));
    for (int r = 0; r < 23; ++r) {
        const std::vector<float> one(x.begin() + r * 777, x.begin() + (r + 1) * 777);
        const std::vector<float> y = run(*k, 2, w.view, one, 1);
        EXPECT_EQ(std::memcmp(y.data(), all.data() + r * 101, 101 * 4), 0) << r;
    }
}

TEST_P(DenseLinear, EqualsTheAvx2Bits) {
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
        const Weights w = make_weights(type, 205, 67, 4);
        Random random(11);
        const std::vector<float> x = random.normals(7 * 205);
        EXPECT_EQ(run(*k, 2, w.view, x, 7), run(*select_kernels(IsaChoice::avx2), 1, w.view, x, 7));
    }
}

TEST_P(DenseLinear, StridesLeaveTheGapsAlone) {
    const Weights w = make_weights(DType::f16, 40, 20, 5);
    DenseWeight view = w.view;
    view.in = 30;
    view.stride = 40;
    WorkerPool pool(2);
    Random random(12);
    const std::vector<float> x = random.normals(4 * 50);
    std::vector<float> y(4 * 25, -7.0f);
    dense_linear(*k, pool, view, x.data(), 50, 4, y.data(), 25);
    for (int r = 0; r < 4; ++r)
        for (int o = 0; o < 25; ++o) {
            const float got = y[static_cast<size_t>(r * 25 + o)];
            if (o >= 20) {
                EXPECT_EQ(got, -7.0f);
                continue;
            }
            double want = 0;
            for (int i = 0; i < 30; ++i)
                want += w.exact[static_cast<size_t>(o * 40 + i)] *
                        static_cast<double>(x[static_cast<size_t>(r * 50 + i)]);
            EXPECT_NEAR(got, want, 1e-4);
        }
}

}  // namespace
}  // namespace terrace
