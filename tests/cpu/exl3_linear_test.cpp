// EXL3 linear layers: against the exact decoder in double for every bit width and codebook, and
// bit-equal over rows, threads, tasks and instruction sets. Outputs are poisoned before each call.
// SPDX-License-Identifier: MIT
#include "cpu/exl3_linear.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "exl3/decode.h"
#include "exl3/hadamard.h"
#include "support/support.h"

namespace terrace {
namespace {

using test::Random;

struct Weight {
    std::vector<uint16_t> trellis;
    std::vector<f16> suh, svh;
    Exl3Tensor view;
};

// Random bits are a legal tile. The trellis starts one 16-bit word into its storage.
Weight make_weight(int in, int out, int n16, Codebook codebook, uint64_t seed) {
    Random random(seed);
    Weight w;
    const size_t words =
        static_cast<size_t>(in / 16) * static_cast<size_t>(out / 16) * static_cast<size_t>(n16);
    w.trellis.resize(words + 1);
    for (uint16_t& v : w.trellis)
        v = static_cast<uint16_t>(random.next());
    const auto scales = [&](int n) {
        std::vector<f16> v(static_cast<size_t>(n));
        for (f16& s : v)
            s = f16::from(
                static_cast<float>((random.next() & 1 ? 1 : -1) * (0.5 + random.uniform())));
        return v;
    };
    w.suh = scales(in);
    w.svh = scales(out);
    w.view = {.in = in,
              .out = out,
              .n16 = n16,
              .codebook = codebook,
              .trellis = w.trellis.data() + 1,
              .suh = w.suh.data(),
              .svh = w.svh.data()};
    return w;
}

// Code values in double: as the format rounds them, or mul1's affine form before that rounding.
enum class Values { rounded, affine };

std::vector<double> inner(const Exl3Tensor& t, Values values) {
    const size_t n = static_cast<size_t>(t.in) * static_cast<size_t>(t.out);
    std::vector<double> w(n);
    if (values == Values::rounded) {
        std::vector<f16> half(n);
        decode_inner(t, half.data());
        for (size_t i = 0; i < n; ++i)
            w[i] = static_cast<double>(half[i].f32());
        return w;
    }
    for (int a = 0; a < t.row_tiles(); ++a)
        for (int b = 0; b < t.col_tiles(); ++b)
            for (int p = 0; p < kTileWeights; ++p) {
                const uint32_t state = state_at(t.tile(a, b), t.n16, p);
                w[static_cast<size_t>(16 * a + tile_row(p)) * static_cast<size_t>(t.out) +
                  static_cast<size_t>(16 * b + tile_col(p))] =
                    mul1_byte_sum(state) * static_cast<double>(kMul1Scale) +
                    static_cast<double>(kMul1Offset);
            }
    return w;
}

void hadamard(std::vector<double>& v) {
    for (size_t i = 0; i < v.size(); i += 128) {
        butterflies128(v.data() + i);
        for (size_t j = i; j < i + 128; ++j)
            v[j] /= std::sqrt(128.0);
    }
}

std::vector<double> reference(const Exl3Tensor& t, const std::vector<double>& w, const float* x,
                              int in_valid) {
    std::vector<double> xh(static_cast<size_t>(t.in), 0.0);
    for (int i = 0; i < in_valid; ++i)
        xh[static_cast<size_t>(i)] =
            static_cast<double>(x[i]) * static_cast<double>(t.suh[i].f32());
    hadamard(xh);
    std::vector<double> y(static_cast<size_t>(t.out), 0.0);
    for (size_t i = 0; i < xh.size(); ++i)
        for (size_t o = 0; o < y.size(); ++o)
            y[o] += xh[i] * w[i * y.size() + o];
    hadamard(y);
    for (size_t o = 0; o < y.size(); ++o)
        y[o] *= static_cast<double>(t.svh[o].f32());
    return y;
}

struct Scratch {
    explicit Scratch(size_t n) : storage(n + 128, std::byte{0xcd}), size(n) {}
    std::span<std::byte> span() {
        auto p = reinterpret_cast<uintptr_t>(storage.data());
        return {storage.data() + ((p + 63) / 64 * 64 - p), size};
    }
    bool intact() {  // nothing was written past the end
        const std::byte* end = span().data() + size;
        return std::all_of(end, std::as_const(storage).data() + storage.size(),
                           [](std::byte b) { return b == std::byte{0xcd}; });
    }
    std::vector<std::byte> storage;
    size_t size;
};

struct Options {
    int threads = 1;
    Activations form = Activations::int16;
    int in_valid = -1;
    int n_out_valid = 0;
    const float* bias = nullptr;
};

std::vector<float> run(const KernelTable& k, const Exl3Tensor& t, const std::vector<float>& x,
                       int rows, const Options& o = {}) {
    WorkerPool pool(o.threads);
    const int in_valid = o.in_valid >= 0 ? o.in_valid : t.in;
    std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(t.out), std::nanf(""));
    const Exl3Job job{.w = &t,
                      .y = y.data(),
                      .y_stride = static_cast<size_t>(t.out),
                      .n_out_valid = o.n_out_valid,
                      .bias = o.bias};
    Scratch scratch(exl3_scratch_bytes(k, o.threads, rows, {&job, 1}, o.form));
    exl3_linear(k, pool, x.data(), x.size() / static_cast<size_t>(rows), rows, in_valid, {&job, 1},
                o.form, scratch.span());
    EXPECT_TRUE(scratch.intact());
    return y;
}

std::vector<float> row_of(const std::vector<float>& m, size_t width, int r) {
    const auto first = m.begin() + static_cast<std::ptrdiff_t>(width) * r;
    return {first, first + static_cast<std::ptrdiff_t>(width)};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

double relative_rms(const std::vector<float>& got, const std::vector<double>& want) {
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return std::sqrt(error / size);  // a NaN in `got` makes it NaN, which fails every comparison
}

std::vector<std::pair<int, Codebook>> every_format() {
    std::vector<std::pair<int, Codebook>> all;
    for (int n16 = 16; n16 <= 128; n16 += 8)
        for (const Codebook c : {Codebook::three_inst, Codebook::mcg, Codebook::mul1})
            if (legal_n16(n16, c)) all.emplace_back(n16, c);
    return all;
}

class Exl3Linear : public testing::TestWithParam<IsaChoice> {
  protected:
    void SetUp() override {
        k = select_kernels(GetParam());
        if (k == nullptr) GTEST_SKIP() << "this machine lacks the instruction set";
    }
    const KernelTable* k = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Isa, Exl3Linear,
                         testing::Values(IsaChoice::avx2, IsaChoice::avx512,
                                         IsaChoice::avx512_vbmi),
                         [](const auto& i) {
                             return i.param == IsaChoice::avx2     ? "avx2"
                                    : i.param == IsaChoice::avx512 ? "avx512"
                                                                   : "avx512vbmi";
                         });

TEST_P(Exl3Linear, F32FormEqualsTheExactDecoderForEveryBitWidthAndCodebook) {
    for (const auto& [n16, codebook] : every_format())
        for (const int rows : {1, 5}) {
            const Weight w = make_weight(256, 384, n16, codebook, static_cast<uint64_t>(n16));
            Random random(7);
            const std::vector<float> x = random.normals(static_cast<size_t>(rows) * 256);
            const std::vector<float> y = run(*k, w.view, x, rows, {.form = Activations::f32});
            const std::vector<double> exact = inner(w.view, Values::rounded);
            for (int r = 0; r < rows; ++r)
                ASSERT_LT(relative_rms(row_of(y, 384, r),
                                       reference(w.view, exact, x.data() + r * 256, 256)),
                          1e-6)
                    << to_string(codebook) << " n16 " << n16 << " row " << r << " of " << rows;
        }
}

TEST_P(Exl3Linear, Int16FormIsCloseToTheAffineValuesAndToTheRoundedOnes) {
    for (int n16 = 16; n16 <= 128; n16 += 8)
        for (const auto& [in, out] : {std::pair{128, 128}, {256, 384}, {384, 128}})
            for (const int rows : {1, 2, 3, 4, 5, 7}) {
                const Weight w =
                    make_weight(in, out, n16, Codebook::mul1, static_cast<uint64_t>(n16));
                Random random(8);
                const std::vector<float> x =
                    random.normals(static_cast<size_t>(rows) * static_cast<size_t>(in));
                const std::vector<float> y = run(*k, w.view, x, rows);
                const std::vector<double> affine = inner(w.view, Values::affine);
                const std::vector<double> rounded = inner(w.view, Values::rounded);
                for (int r = 0; r < rows; r += 3) {
                    const float* xr = x.data() + r * in;
                    const std::vector<float> got = row_of(y, static_cast<size_t>(out), r);
                    ASSERT_LT(relative_rms(got, reference(w.view, affine, xr, in)), 1e-4)
                        << "n16 " << n16 << " " << in << "x" << out << " row " << r << "/" << rows;
                    ASSERT_LT(relative_rms(got, reference(w.view, rounded, xr, in)), 4e-4);
                }
            }
}

TEST_P(Exl3Linear, RowHasTheSameBitsAloneAndInAnyCompanyOnAnyThreads) {
    for (const Activations form : {Activations::int16, Activations::f32})
        for (const int n16 : {40, 64, 112}) {
            const Weight w = make_weight(256, 384, n16, Codebook::mul1, 11);
            Random random(9);
            const std::vector<float> x = random.normals(600 * 256);
            std::vector<std::vector<float>> alone;
            for (int r = 0; r < 65; ++r)
                alone.push_back(run(*k, w.view, row_of(x, 256, r), 1, {.form = form}));
            for (const int rows : {1, 2, 3, 4, 5, 7, 16, 17, 65, 600}) {
                const std::vector<float> some(x.begin(), x.begin() + rows * 256);
                const std::vector<float> y =
                    run(*k, w.view, some, rows, {.threads = 1 + rows % 3, .form = form});
                for (int r = 0; r < std::min(rows, 65); ++r)
                    ASSERT_TRUE(same_bits(row_of(y, 384, r), alone[static_cast<size_t>(r)]))
                        << "n16 " << n16 << " row " << r << " of " << rows;
                if (rows == 600) {
                    ASSERT_TRUE(same_bits(row_of(y, 384, 599),
                                          run(*k, w.view, row_of(x, 256, 599), 1, {.form = form})));
                }
            }
        }
}

TEST_P(Exl3Linear, EqualsTheAvx2BitsForEveryFormat) {
    const KernelTable& avx2 = *select_kernels(IsaChoice::avx2);
    for (const auto& [n16, codebook] : every_format())
        for (const Activations form : {Activations::int16, Activations::f32})
            for (const int rows : {1, 4, 6, 13}) {
                const Weight w =
                    make_weight(256, 128, n16, codebook, static_cast<uint64_t>(n16 + 1));
                Random random(10);
                const std::vector<float> x = random.normals(static_cast<size_t>(rows) * 256);
                ASSERT_TRUE(same_bits(run(*k, w.view, x, rows, {.threads = 2, .form = form}),
                                      run(avx2, w.view, x, rows, {.form = form})))
                    << to_string(codebook) << " n16 " << n16 << " rows " << rows;
            }
}

TEST_P(Exl3Linear, ReadsNothingOutsideTheTrellis) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (const auto& [n16, codebook] : every_format()) {
        const Weight w = make_weight(128, 128, n16, codebook, 12);
        const size_t bytes = w.view.trellis_bytes();
        const size_t pages = (bytes + page - 1) / page;
        auto* map = static_cast<uint8_t*>(mmap(nullptr, (pages + 2) * page, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(map, MAP_FAILED);
        mprotect(map, page, PROT_NONE);
        mprotect(map + (pages + 1) * page, page, PROT_NONE);
        Random random(13);
        const std::vector<float> x = random.normals(12 * 128);
        uint8_t* const front = map + page;
        uint8_t* const back = map + (pages + 1) * page - bytes;
        for (uint8_t* at : {front, back}) {
            std::memcpy(at, w.view.trellis, bytes);
            Exl3Tensor t = w.view;
            t.trellis = reinterpret_cast<const uint16_t*>(at);
            for (const int rows : {1, 6, 12})
                for (const Activations form : {Activations::int16, Activations::f32}) {
                    const std::vector<float> some(x.begin(), x.begin() + rows * 128);
                    ASSERT_TRUE(same_bits(run(*k, t, some, rows, {.form = form}),
                                          run(*k, w.view, some, rows, {.form = form})));
                }
        }
        munmap(map, (pages + 2) * page);
    }
}

TEST_P(Exl3Linear, ZeroInputAndDeadColumnsGiveExactZeros) {
    Weight w = make_weight(256, 256, 64, Codebook::mul1, 14);
    for (size_t c = 0; c < 256; c += 3)
        w.svh[c] = f16{0};
    for (const Activations form : {Activations::int16, Activations::f32})
        for (const int rows : {1, 5}) {
            const std::vector<float> zeros(static_cast<size_t>(rows) * 256, 0.0f);
            for (const float v : run(*k, w.view, zeros, rows, {.form = form}))
                ASSERT_EQ(v, 0.0f);
            Random random(15);
            const std::vector<float> x = random.normals(static_cast<size_t>(rows) * 256);
            const std::vector<float> y = run(*k, w.view, x, rows, {.form = form});
            for (size_t i = 0; i < y.size(); ++i) {
                if (i % 256 % 3 == 0) {
                    ASSERT_EQ(y[i], 0.0f);
                } else {
                    ASSERT_NE(y[i], 0.0f);
                }
            }
        }
}

TEST_P(Exl3Linear, ShortInputIsExtendedWithZerosAndNeverReadBeyond) {
    const Weight w = make_weight(384, 128, 48, Codebook::mul1, 16);
    Random random(17);
    for (const int valid : {0, 1, 100, 128, 200, 383})
        for (const Activations form : {Activations::int16, Activations::f32}) {
            std::vector<float> x = random.normals(2 * 384);
            for (size_t i = 0; i < x.size(); ++i)
                if (static_cast<int>(i % 384) >= valid) x[i] = std::nanf("");
            std::vector<float> padded = x;
            for (float& v : padded)
                if (std::isnan(v)) v = 0.0f;
            ASSERT_TRUE(same_bits(run(*k, w.view, x, 2, {.form = form, .in_valid = valid}),
                                  run(*k, w.view, padded, 2, {.form = form})))
                << valid;
        }
}

TEST_P(Exl3Linear, ColumnsBeyondTheValidOnesAreNotWritten) {
    const Weight w = make_weight(128, 384, 64, Codebook::mcg, 18);
    Random random(19);
    const std::vector<float> x = random.normals(3 * 128);
    const std::vector<float> whole = run(*k, w.view, x, 3);
    for (const int valid : {1, 128, 200, 383}) {
        const std::vector<float> y = run(*k, w.view, x, 3, {.n_out_valid = valid});
        for (size_t i = 0; i < y.size(); ++i) {
            if (static_cast<int>(i % 384) < valid) {
                ASSERT_EQ(y[i], whole[i]);
            } else {
                ASSERT_TRUE(std::isnan(y[i]));
            }
        }
    }
}

TEST_P(Exl3Linear, BiasIsAddedToTheFinishedOutput) {
    const Weight w = make_weight(128, 128, 32, Codebook::mul1, 20);
    Random random(21);
    const std::vector<float> x = random.normals(128);
    const std::vector<float> bias = random.normals(128);
    const std::vector<float> plain = run(*k, w.view, x, 1);
    const std::vector<float> y = run(*k, w.view, x, 1, {.bias = bias.data()});
    for (size_t i = 0; i < 128; ++i)
        EXPECT_EQ(y[i], plain[i] + bias[i]);
}

TEST_P(Exl3Linear, NonFiniteInputShowsInItsRowOnly) {
    const Weight w = make_weight(256, 128, 64, Codebook::mul1, 22);
    Random random(23);
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()})
        for (const Activations form : {Activations::int16, Activations::f32}) {
            std::vector<float> x = random.normals(3 * 256);
            const std::vector<float> clean = run(*k, w.view, x, 3, {.form = form});
            x[256 + 40] = bad;
            const std::vector<float> y = run(*k, w.view, x, 3, {.form = form});
            for (size_t i = 0; i < y.size(); ++i) {
                if (i / 128 == 1) {
                    ASSERT_FALSE(std::isfinite(y[i]));
                } else {
                    ASSERT_EQ(y[i], clean[i]);
                }
            }
        }
}

TEST_P(Exl3Linear, TinyAndHugeInputsKeepTheirRelativePrecision) {
    const Weight w = make_weight(128, 128, 64, Codebook::mul1, 24);
    const std::vector<double> affine = inner(w.view, Values::affine);
    Random random(25);
    for (const float scale : {1e-25f, 1e-3f, 1e4f, 1e30f}) {
        const std::vector<float> x = random.normals(128, scale);
        EXPECT_LT(relative_rms(run(*k, w.view, x, 1), reference(w.view, affine, x.data(), 128)),
                  1e-4)
            << scale;
    }
}

TEST_P(Exl3Linear, WeightsThatShareACallEqualSeparateCalls) {
    const Weight a = make_weight(256, 256, 64, Codebook::mul1, 26);
    const Weight b = make_weight(256, 128, 48, Codebook::mcg, 27);
    const Weight c = make_weight(256, 384, 24, Codebook::mul1, 28);
    Random random(29);
    for (const int rows : {1, 6, 200}) {
        const std::vector<float> x = random.normals(static_cast<size_t>(rows) * 256);
        const Weight* const weights[] = {&a, &b, &c};
        std::vector<std::vector<float>> y;
        std::vector<Exl3Job> jobs;
        y.reserve(3);
        for (const Weight* w : weights) {
            const auto out = static_cast<size_t>(w->view.out);
            y.emplace_back(static_cast<size_t>(rows) * out, std::nanf(""));
            jobs.push_back({.w = &w->view, .y = y.back().data(), .y_stride = out});
        }
        WorkerPool pool(2);
        Scratch scratch(exl3_scratch_bytes(*k, 2, rows, jobs, Activations::int16));
        exl3_linear(*k, pool, x.data(), 256, rows, 256, jobs, Activations::int16, scratch.span());
        EXPECT_TRUE(scratch.intact());
        for (size_t i = 0; i < 3; ++i)
            ASSERT_TRUE(same_bits(y[i], run(*k, weights[i]->view, x, rows)))
                << i << " rows " << rows;
    }
}

TEST_P(Exl3Linear, ColumnTasksInAnyOrderEqualTheWholeLayer) {
    const Weight w = make_weight(256, 384, 56, Codebook::mul1, 30);
    Random random(31);
    const int rows = 9;
    const std::vector<float> x = random.normals(rows * 256);
    Scratch memory(packed_rows_bytes(*k, Activations::int16, rows, 256));
    const PackedRows packed = place_rows(*k, Activations::int16, rows, 256, memory.span().data());
    for (int r = 0; r < rows; ++r)
        pack_row(*k, w.view, x.data() + r * 256, 256, r, 0, 2, packed);
    std::vector<float> y(rows * 384, std::nanf(""));
    Scratch scratch(column_scratch_bytes(rows));
    for (const int block : {2, 0, 1})
        for (const auto& [first, last] : {std::pair{4, 9}, {0, 4}})
            column_task(*k,
                        {.w = &w.view,
                         .column_block = block,
                         .x = &packed,
                         .row_begin = first,
                         .row_end = last,
                         .y = y.data() + first * 384,
                         .y_stride = 384},
                        scratch.span().data());
    EXPECT_TRUE(scratch.intact() && memory.intact());
    EXPECT_TRUE(same_bits(y, run(*k, w.view, x, rows)));
}

}  // namespace
}  // namespace terrace
