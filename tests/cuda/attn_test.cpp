// Sparse attention between its projections, on the GPU.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include <array>
#include <cmath>

#include "cuda/attn/attn_plan.h"
#include "gpu.h"

namespace terrace::test {
namespace {

class CudaQsaPrepare : public GpuTest {};
class CudaQsaPool : public GpuTest {};
class CudaIndexScores : public GpuTest {};
class CudaSelectBlocks : public GpuTest {};
class CudaAttend : public GpuTest {};

struct Shape {
    int heads, kv_heads, head_dim, index_heads, index_dim, rope_dims;
};
const std::vector<Shape>& shapes() {
    static const std::vector<Shape> all = {{4, 2, 32, 2, 16, 8},
                                           {24, 2, 64, 4, 128, 64},
                                           {3, 1, 20, 3, 18, 6},
                                           {10, 2, 72, 5, 40, 34},
                                           {24, 2, 256, 4, 128, 64}};
    return all;
}
const Shape& real() {
    return shapes().back();
}
QsaCase qsa_case(const Shape& s, PlaneType type, std::vector<SeqCase> seqs) {
    QsaCase c;
    c.seqs = std::move(seqs);
    c.type = type;
    c.heads = s.heads;
    c.kv_heads = s.kv_heads;
    c.head_dim = s.head_dim;
    c.index_heads = s.index_heads;
    c.index_dim = s.index_dim;
    c.rope_dims = s.rope_dims;
    return c;
}
// A fresh sequence, one whose rows cross a page border, one deep in a page, and one with rows of
// both kinds.
std::vector<SeqCase> several() {
    return {{11, 0, 3}, {12, 253, 6}, {13, 700, 1}, {14, 509, 69}};
}

template <class F>
void each_shape_and_type(F f) {
    for (const Shape& s : shapes())
        for (PlaneType type : {PlaneType::f16, PlaneType::f32})
            f(s, type,
              "head_dim " + std::to_string(s.head_dim) +
                  (type == PlaneType::f16 ? " f16" : " f32"));
}

std::vector<float> slice(const std::vector<float>& v, size_t from, size_t to) {
    return {v.begin() + static_cast<std::ptrdiff_t>(from),
            v.begin() + static_cast<std::ptrdiff_t>(to)};
}

TEST(AttnPlan, SegmentsAreTheSequencesInsideTheSlab) {
    std::vector<SeqRows> seqs;
    for (int i = 0; i < 100; ++i)
        seqs.push_back({3 * i, 3, 7 * i, 0, 1, i});
    StepRows step;
    step.n_rows = 300;
    step.n_seqs = 100;
    step.host_seqs = seqs.data();
    int row = 4;
    for (const cuda::Segments& list : cuda::row_segments(step, 4, 290)) {
        EXPECT_LE(list.n, cuda::kMaxSegments);
        for (int i = 0; i < list.n; ++i) {
            EXPECT_EQ(list.at[i].row0, row);
            EXPECT_EQ(list.at[i].seq, row / 3);
            row += list.at[i].n_rows;
        }
    }
    EXPECT_EQ(row, 294);
}

TEST(AttnPlan, RunsAreCutToTheSlabAndJoined) {
    const RowRun runs[] = {
        {0, 64, RowKind::prefill}, {64, 5, RowKind::decode}, {69, 2, RowKind::decode}};
    StepRows step;
    step.n_rows = 71;
    step.runs = {runs, 3};
    const auto cut = cuda::runs_within(step, 60, 10);
    ASSERT_EQ(cut.size(), 2u);
    EXPECT_EQ(cut[0].row0, 60);
    EXPECT_EQ(cut[0].n_rows, 4);
    EXPECT_EQ(cut[0].kind, RowKind::prefill);
    EXPECT_EQ(cut[1].row0, 64);
    EXPECT_EQ(cut[1].n_rows, 6);
    EXPECT_EQ(cut[1].kind, RowKind::decode);
    step.runs = {};
    EXPECT_EQ(cuda::runs_within(step, 0, 8)[0].kind, RowKind::prefill);
    step.n_rows = kDecodeRows;
    EXPECT_EQ(cuda::runs_within(step, 0, 8)[0].kind, RowKind::decode);
}

TEST_F(CudaQsaPrepare, MatchesReference) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        const QsaCase c = qsa_case(s, type, several());
        conforms(
            [&](Rig& rig) {
                QsaPrepared p = run_qsa_prepare(rig, c);
                return Lists{p.q, p.iq, p.k, p.v, p.raw};
            },
            // A last bit of f16 that rounds the other way, once in thousands.
            type == PlaneType::f16 ? 1e-8 : 1e-12, what);
    });
}

// run_qsa_prepare compares home and mirror.
TEST_F(CudaQsaPrepare, WritesThroughToMirrors) {
    for (const int shift : {0, 1, 6})
        for (const bool staged : {false, true}) {
            QsaCase c = qsa_case(real(), PlaneType::f16, several());
            c.mirror_shift = shift;
            c.mirror_is_staged = staged;
            conforms(
                [&](Rig& rig) {
                    QsaPrepared p = run_qsa_prepare(rig, c);
                    return Lists{p.k, p.v};
                },
                1e-8, "groups of 2^" + std::to_string(shift));
        }
}

TEST_F(CudaQsaPrepare, AnglesAreRightAtFourMillionTokens) {
    for (const Shape& s : {shapes()[0], real()}) {
        QsaCase c = qsa_case(s, PlaneType::f32, {{21, 4'000'000, 4}});
        c.theta = 1e6f;
        c.mapped_pages = 3;  // four million tokens of planes would not fit
        conforms(
            [&](Rig& rig) {
                QsaPrepared p = run_qsa_prepare(rig, c);
                return Lists{p.q, p.iq, p.k};
            },
            1e-12, "position 4000000");
    }
}

TEST_F(CudaQsaPrepare, ManyRowsAndOneRowGiveTheSameBits) {
    const QsaCase c = qsa_case(real(), PlaneType::f16, {{31, 250, 80}});
    const QsaPrepared all = run_qsa_prepare(*gpu(), c);
    for (int r : {0, 17, 79}) {
        QsaCase one = c;
        one.seqs = {{31, 250 + r, 1}};
        const QsaPrepared p = run_qsa_prepare(*gpu(), one);
        const auto row = static_cast<size_t>(r);
        expect_equal_bits(p.q, slice(all.q, row * p.q.size(), (row + 1) * p.q.size()), "q");
        expect_equal_bits(p.iq, slice(all.iq, row * p.iq.size(), (row + 1) * p.iq.size()), "iq");
        expect_equal_bits(p.k, slice(all.k, row * p.k.size(), (row + 1) * p.k.size()), "k");
    }
}

TEST_F(CudaQsaPool, MatchesReference) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        QsaCase c = qsa_case(s, type,
                             {{11, 0, 9}, {12, 250, 11}, {13, 701, 1}, {14, 703, 1}, {15, 2, 130}});
        conforms([&](Rig& rig) { return Lists{run_qsa_pool(rig, c)}; },
                 type == PlaneType::f16 ? 1e-7 : 1e-12, what);
        c.block_tokens = 8;
        conforms([&](Rig& rig) { return Lists{run_qsa_pool(rig, c)}; },
                 type == PlaneType::f16 ? 1e-7 : 1e-12, what + ", blocks of 8");
    });
}

TEST_F(CudaIndexScores, MatchReference) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        const QsaCase c = qsa_case(s, type, several());
        conforms([&](Rig& rig) { return Lists{run_index_scores(rig, c)}; }, 2e-12, what);
    });
}

TEST_F(CudaIndexScores, LongContextsAndManyRowsMatchReference) {
    const QsaCase c = qsa_case(real(), PlaneType::f16, {{11, 20'000, 2}, {12, 3'000, 150}});
    conforms([&](Rig& rig) { return Lists{run_index_scores(rig, c)}; }, 2e-12, "long");
}

TEST_F(CudaIndexScores, SlabsPlacementAndBatchMatesDoNotChangeABit) {
    QsaCase c = qsa_case(real(), PlaneType::f16, several());
    const auto all = run_index_scores(*gpu(), c);
    QsaCase moved = c;
    moved.page_seed = 99;
    expect_equal_bits(run_index_scores(*gpu(), moved), all, "other pages");
    std::vector<float> joined;
    for (int r = 0; r < 79; ++r) {
        QsaCase slab = c;
        slab.first_row = r;
        slab.rows = 1;
        for (float v : run_index_scores(*gpu(), slab))
            joined.push_back(v);
    }
    expect_equal_bits(joined, all, "one row at a time");
    joined.clear();
    for (const SeqCase& s : c.seqs) {
        QsaCase alone = c;
        alone.seqs = {s};
        for (float v : run_index_scores(*gpu(), alone))
            joined.push_back(v);
    }
    expect_equal_bits(joined, all, "one sequence at a time");
}

std::vector<std::vector<float>> as_floats(const std::vector<std::vector<int32_t>>& lists) {
    std::vector<std::vector<float>> out;
    for (const auto& l : lists)
        out.emplace_back(l.begin(), l.end());
    return out;
}

float noise(int r, int b) {
    uint64_t z = (static_cast<uint64_t>(r) << 32 | static_cast<uint64_t>(b)) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 31)) * 0xBF58476D1CE4E5B9u;
    return static_cast<float>((z ^ (z >> 29)) >> 40) * 0x1p-22f - 2.0f;
}

const std::vector<std::pair<std::string, std::function<float(int, int)>>>& distributions() {
    static const std::vector<std::pair<std::string, std::function<float(int, int)>>> all = {
        {"noise", noise},
        {"relu", [](int r, int b) { return std::max(0.0f, noise(r, b) - 1.5f); }},
        {"few positive", [](int r, int b) { return b % 511 == 3 ? noise(r, b) + 2.5f : 0.0f; }},
        {"all equal", [](int, int) { return 0.25f; }},
        {"both zeros", [](int, int b) { return b % 3 ? 0.0f : -0.0f; }},
        {"few values", [](int r, int b) { return std::floor(4 * noise(r, b)) / 4; }},
        {"two values", [](int r, int b) { return noise(r, b) > 1 ? 2.0f : 1.0f; }},
        {"ascending", [](int, int b) { return static_cast<float>(b); }},
        {"descending", [](int, int b) { return -static_cast<float>(b); }},
        {"high at the end", [](int r, int b) { return noise(r, b) + (b > 60000 ? 4.0f : 0.0f); }},
        {"infinities",
         [](int r, int b) {
             return b % 97 == 0 ? INFINITY : b % 89 == 0 ? -INFINITY : noise(r, b);
         }},
        {"pairs of ties", [](int r, int b) { return noise(r, b / 2 * 2 % 100'000); }},
        {"hundreds at the cut",
         [](int r, int b) {
             return b % 300 == 7 ? 3.0f : noise(r, b) + (b % 100 == 3 ? 5.0f : 0);
         }},
        {"one peak", [](int, int b) { return b == 4321 ? 1.0f : 0.0f; }},
        {"tiny", [](int r, int b) { return noise(r, b) * 1e-44f; }},
    };
    return all;
}

TEST_F(CudaSelectBlocks, IsExactForEveryDistribution) {
    for (const auto& [name, score] : distributions())
        for (const auto& [pos0, rows, top] : std::vector<std::array<int, 3>>{{0, 13, 1},
                                                                             {30, 6, 8},
                                                                             {2040, 12, 512},
                                                                             {49'000, 20, 512},
                                                                             {49'149, 4, 512},
                                                                             {120'000, 2, 512},
                                                                             {290'000, 9, 512},
                                                                             {90'001, 1, 5000}})
            conforms([&](Rig& rig) { return as_floats(run_select(rig, {pos0, rows, top, score})); },
                     1e-30, name + " at " + std::to_string(pos0));
}

TEST_F(CudaSelectBlocks, MillionsOfTokensAreExact) {
    for (const auto& [name, score] : distributions())
        for (const auto& [pos0, rows, top] :
             std::vector<std::array<int, 3>>{{1'200'003, 1, 512}, {4'300'000, 1, 512}})
            conforms([&](Rig& rig) { return as_floats(run_select(rig, {pos0, rows, top, score})); },
                     1e-30, name + " at " + std::to_string(pos0));
}

TEST_F(CudaSelectBlocks, NaNScoresComeLastAndNeverRepeatABlock) {
    for (int pos0 : {400, 120'003}) {
        const auto got = run_select(
            *gpu(), {pos0, 1, 64, [](int, int b) { return b % 1000 == 7 ? 1.0f : std::nanf(""); }});
        ASSERT_EQ(got[0].size(), 64u);
        EXPECT_TRUE(std::is_sorted(got[0].begin(), got[0].end()));
        EXPECT_EQ(std::adjacent_find(got[0].begin(), got[0].end()), got[0].end());
        EXPECT_THAT(got[0], testing::Contains(7));
    }
}

// f16 queries and weights of the matrix path: 1e-7 of the output's energy.
double attend_limit(const Shape& s, PlaneType type) {
    return s.head_dim == 256 && type == PlaneType::f16 ? 1e-6 : 1e-11;
}

TEST_F(CudaAttend, MatchesReferenceDenseAndSelected) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        for (int top : {0, 1, 20, 300}) {
            QsaCase c = qsa_case(s, type, {{11, 0, 6}, {12, 253, 8}, {13, 1023, 2}, {14, 60, 66}});
            c.top = top;
            conforms([&](Rig& rig) { return Lists{run_attend(rig, c)}; }, attend_limit(s, type),
                     what + " top " + std::to_string(top));
        }
    });
}

// What lies in the mirror is missing at home.
TEST_F(CudaAttend, ReadsTheMirrorWhereThereIsOne) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        for (int top : {0, 20}) {
            QsaCase c = qsa_case(s, type, {{11, 0, 6}, {12, 253, 8}, {13, 1023, 2}, {14, 60, 66}});
            c.top = top;
            const auto plain = run_attend(*gpu(), c);
            for (const int shift : {0, 2, 6}) {
                c.mirror_shift = c.block_tokens << shift > kPageTokens ? 0 : shift;
                expect_equal_bits(run_attend(*gpu(), c), plain, what);
            }
        }
    });
}

// Borders within lists, so that tiles straddle them, and behind their ends; a first pass without a
// whole tile; half the pages absent from the mirror.
TEST_F(CudaAttend, AnyCutInPassesGivesTheBitsOfOnePass) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        for (int top : {0, 1, 20, 300}) {
            QsaCase c = qsa_case(s, type, {{11, 1000, 64}, {12, 192, 128}, {14, 0, 64}});
            c.top = top;
            const auto plain = run_attend(*gpu(), c);
            for (const auto& borders : std::vector<std::vector<int>>{{3}, {1, 2, 3, 4, 9}})
                for (const int shift : {-1, 6}) {
                    QsaCase cut = c;
                    cut.passes = borders;
                    cut.mirror_shift = shift;
                    expect_equal_bits(run_attend(*gpu(), cut), plain, what);
                }
        }
    });
}

TEST_F(CudaAttend, PassesOverLongListsGiveTheBitsOfOnePass) {
    for (int top : {0, 512}) {
        QsaCase c = qsa_case(real(), PlaneType::f16, {{11, 9'000, 64}, {12, 2'040, 64}});
        c.top = top;
        const auto plain = run_attend(*gpu(), c);
        std::vector<int> each;
        for (int page = 1; page < 36; ++page)
            each.push_back(page);
        for (const auto& borders : std::vector<std::vector<int>>{{7}, {3, 20, 34}, each}) {
            c.passes = borders;
            expect_equal_bits(run_attend(*gpu(), c), plain, "top " + std::to_string(top));
        }
    }
}

TEST_F(CudaAttend, LongListsMatchReference) {
    for (int top : {0, 512}) {
        QsaCase c =
            qsa_case(real(), PlaneType::f16, {{11, 6'000, 2}, {12, 2'060, 20}, {13, 4'000, 17}});
        c.top = top;
        conforms([&](Rig& rig) { return Lists{run_attend(rig, c)}; },
                 attend_limit(real(), PlaneType::f16), "top " + std::to_string(top));
    }
}

TEST_F(CudaAttend, DenseAndEverythingSelectedAgreeBitForBit) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        QsaCase dense = qsa_case(s, type, {{11, 0, 5}, {12, 250, 9}, {13, 767, 3}, {14, 900, 64}});
        QsaCase selected = dense;
        selected.select_all = true;
        expect_equal_bits(run_attend(*gpu(), selected), run_attend(*gpu(), dense), what);
    });
}

TEST_F(CudaAttend, SlabsPlacementAndBatchMatesDoNotChangeABit) {
    for (const Shape& s : {shapes()[3], real()}) {
        QsaCase c = qsa_case(s, PlaneType::f16, {{11, 0, 5}, {12, 250, 9}, {13, 767, 3}});
        c.top = 50;
        const auto all = run_attend(*gpu(), c);
        QsaCase moved = c;
        moved.page_seed = 5;
        expect_equal_bits(run_attend(*gpu(), moved), all, "other pages");
        std::vector<float> joined;
        for (const SeqCase& seq : c.seqs)
            for (int r = 0; r < seq.rows; ++r) {
                QsaCase one = c;
                one.seqs = {{seq.seed, seq.pos0 + r, 1}};
                for (float v : run_attend(*gpu(), one))
                    joined.push_back(v);
            }
        expect_equal_bits(joined, all, "one row at a time");
        QsaCase slab = c;
        slab.first_row = 4;
        slab.rows = 7;
        const auto row = static_cast<size_t>(c.heads * c.head_dim);
        expect_equal_bits(run_attend(*gpu(), slab), slice(all, 4 * row, 11 * row), "slab");
    }
}

// The thread blocks that share a row depend on the number of rows.
TEST_F(CudaAttend, DecodedRowsKeepTheirBitsInBatchesOfAnySize) {
    const auto row = static_cast<size_t>(real().heads * real().head_dim);
    for (int top : {0, 200}) {
        QsaCase c = qsa_case(real(), PlaneType::f16, {});
        c.top = top;
        std::vector<SeqCase> seqs;
        for (int i = 0; i < 70; ++i)
            seqs.push_back(
                {static_cast<uint64_t>(40 + i), i < 3 ? 5 * i : 17 * i + 40 * (i % 9), 1});
        c.seqs = seqs;
        const auto all = run_attend(*gpu(), c);
        for (size_t n : {1, 3, 6, 12, 25, 50}) {
            c.seqs.assign(seqs.begin() + 4, seqs.begin() + 4 + static_cast<int>(n));
            expect_equal_bits(run_attend(*gpu(), c), slice(all, 4 * row, (4 + n) * row),
                              std::to_string(n) + " rows");
        }
        c.seqs.assign(seqs.begin(), seqs.begin() + 3);
        conforms([&](Rig& rig) { return Lists{run_attend(rig, c)}; }, 1e-6, "short lists");
    }
}

TEST_F(CudaAttend, PrefilledRowsKeepTheirBitsAmongOtherSequences) {
    QsaCase c = qsa_case(real(), PlaneType::f16, {{11, 900, 64}});
    c.top = 100;
    const auto alone = run_attend(*gpu(), c);
    QsaCase mixed = c;
    mixed.seqs = {{12, 40, 3}, {11, 900, 64}, {13, 300, 70}};
    const auto row = static_cast<size_t>(c.heads * c.head_dim);
    expect_equal_bits(slice(run_attend(*gpu(), mixed), 3 * row, 67 * row), alone, "prefilled rows");
}

}  // namespace
}  // namespace terrace::test
