// Conformance of a backend to the scalar reference, and the promises of the contract: bits that do
// not depend on batch mates, threads, instruction set, page placement or slabs; no allocation after
// reserve(). A second backend is one more entry in backends().
// SPDX-License-Identifier: MIT
#include "cpu/cpu_ops.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "support/op_cases.h"

namespace terrace::test {

namespace {

using Lists = std::vector<std::vector<float>>;

struct Backend {
    std::string name;
    std::unique_ptr<WorkerPool> pool;
    std::unique_ptr<Rig> rig;
};

Backend cpu_backend(IsaChoice isa, int threads, Activations activations = Activations::f32) {
    Backend b;
    b.pool = std::make_unique<WorkerPool>(threads);
    auto device = make_host_device();
    auto ops = must(make_cpu_ops(*device, *b.pool, {isa, activations}));
    b.name = ops->name() + ", threads " + std::to_string(threads);
    b.rig = std::make_unique<Rig>(std::move(device), std::move(ops));
    b.rig->probe = allocations_so_far;
    return b;
}

// Whatever this machine can run; the first is compared with the reference, all with each other.
std::vector<Backend>& backends() {
    static std::vector<Backend> all = [] {
        std::vector<Backend> list;
        for (IsaChoice isa : {IsaChoice::avx512_vbmi, IsaChoice::avx512, IsaChoice::avx2})
            if (select_kernels(isa))
                for (int threads : {3, 1})
                    list.push_back(cpu_backend(isa, threads));
        return list;
    }();
    return all;
}

Rig& reference() {
    static Rig rig(make_host_device(), make_reference_ops());
    return rig;
}

void expect_equal_bits(const std::vector<float>& a, const std::vector<float>& b,
                       const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
            << what << ": element " << i << ": " << a[i] << " and " << b[i];
}

// run(rig) -> vectors of floats: close to the reference on the first backend, equal on all.
template <class Run>
void conforms(Run run, double limit, const std::string& what) {
    SCOPED_TRACE(what);
    ASSERT_FALSE(backends().empty());
    const std::vector<std::vector<float>> expected = run(reference());
    std::vector<std::vector<float>> first;
    for (Backend& b : backends()) {
        const int64_t before = b.rig->allocations;
        const std::vector<std::vector<float>> got = run(*b.rig);
        EXPECT_EQ(b.rig->allocations, before) << b.name << " allocated";
        ASSERT_EQ(got.size(), expected.size());
        if (first.empty()) {
            first = got;
            for (size_t i = 0; i < got.size(); ++i)
                EXPECT_LT(nmse(got[i], expected[i]), limit) << b.name << ", output " << i;
        }
        for (size_t i = 0; i < got.size(); ++i)
            expect_equal_bits(got[i], first[i], b.name + ", output " + std::to_string(i));
    }
}

Rig& first_rig() {
    return *backends().front().rig;
}

std::vector<float> slice(const std::vector<float>& v, size_t first, size_t n) {
    return {v.begin() + static_cast<std::ptrdiff_t>(first),
            v.begin() + static_cast<std::ptrdiff_t>(first + n)};
}

// ---- hyper-connections, embedding, linear
// ----------------------------------------------------------

std::vector<HyperCase> hyper_cases() {
    return {
        {.rows = 1, .hidden = 64, .rank = 16, .dtype = DType::f16},
        {.rows = 3, .streams = 2, .hidden = 130, .rank = 23, .dtype = DType::bf16},
        {.rows = 1, .streams = 3, .hidden = 17, .rank = 5, .dtype = DType::f32},
        {.rows = 70, .streams = 4, .hidden = 320, .rank = 40, .dtype = DType::f16},
        {.rows = 2, .hidden = 256, .rank = 32, .dtype = DType::bf16, .inject = false},
    };
}

TEST(HyperRead, MatchesReference) {
    for (const HyperCase& c : hyper_cases())
        conforms(
            [&](Rig& rig) {
                HyperResult r = run_hyper_read(rig, c);
                return Lists{r.x, r.inj};
            },
            1e-11, "hidden " + std::to_string(c.hidden) + " rows " + std::to_string(c.rows));
}

TEST(HyperRead, RowHasTheSameBitsAloneAndInABatch) {
    HyperCase batch{.rows = 67, .hidden = 96, .rank = 20};
    const HyperResult all = run_hyper_read(first_rig(), batch);
    for (int row : {0, 5, 63, 64, 66}) {
        HyperCase one = batch;
        one.first = row;
        one.rows = 1;
        const HyperResult r = run_hyper_read(first_rig(), one);
        expect_equal_bits(r.x, slice(all.x, static_cast<size_t>(row) * 96, 96), "x");
        expect_equal_bits(r.inj, slice(all.inj, static_cast<size_t>(row) * 4, 4), "inj");
    }
}

// What is added on the way, against a write in front of the read.
TEST(HyperRead, AddsLikeAWrite) {
    for (HyperCase c : hyper_cases()) {
        c.add = true;
        conforms(
            [&](Rig& rig) {
                HyperResult r = run_hyper_read(rig, c);
                expect_equal_bits(r.h, run_hyper_write(rig, c), "h");
                return Lists{r.x, r.inj};
            },
            1e-11, "hidden " + std::to_string(c.hidden) + " rows " + std::to_string(c.rows));
    }
}

TEST(HyperWrite, MatchesReference) {
    for (const HyperCase& c : hyper_cases())
        conforms([&](Rig& rig) { return Lists{run_hyper_write(rig, c)}; }, 1e-13, "write");
}

TEST(Embed, IsExactAndFillsEveryStream) {
    for (const HyperCase& c : hyper_cases())
        conforms([&](Rig& rig) { return Lists{run_embed(rig, c)}; }, 1e-30, "embed");
}

std::vector<LinearCase> linear_cases() {
    using Job = LinearCase::Job;
    return {
        {.rows = 1, .in = 256, .jobs = {Job{128, 64}, Job{200, 64}, Job{8, 0}}},
        {.rows = 5, .in = 200, .jobs = {Job{100, 48}, Job{130, 0, DType::bf16}}},
        {.rows = 3, .in = 77, .jobs = {Job{19, 0, DType::f32}, Job{1, 0, DType::f16}}},
        {.rows = 33, .in = 128, .jobs = {Job{256, 32, DType::f16, Codebook::mcg}}},
        {.rows = 130, .in = 128, .jobs = {Job{128, 64, DType::f16, Codebook::three_inst}}},
    };
}

TEST(Linear, MixedJobsMatchReference) {
    for (const LinearCase& c : linear_cases())
        conforms([&](Rig& rig) { return run_linear(rig, c); }, 1e-9,
                 "in " + std::to_string(c.in) + " rows " + std::to_string(c.rows));
}

TEST(Linear, IntegerActivationsStayNearTheReferenceAndEqualOnEveryInstructionSet) {
    const LinearCase c{.rows = 9, .in = 256, .jobs = {{200, 64}, {128, 32}}};
    const auto expected = run_linear(reference(), c);
    std::vector<std::vector<float>> first;
    for (IsaChoice isa : {IsaChoice::avx512_vbmi, IsaChoice::avx512, IsaChoice::avx2}) {
        if (!select_kernels(isa)) continue;
        Backend b = cpu_backend(isa, 2, Activations::int16);
        const auto got = run_linear(*b.rig, c);
        if (first.empty()) first = got;
        for (size_t j = 0; j < got.size(); ++j) {
            EXPECT_LT(nmse(got[j], expected[j]), 1e-6) << b.name;
            expect_equal_bits(got[j], first[j], b.name);
        }
    }
}

// ---- sparse attention
// ------------------------------------------------------------------------------

struct Shape {
    int heads, kv_heads, head_dim, index_heads, index_dim, rope_dims;
};
const std::vector<Shape>& shapes() {
    static const std::vector<Shape> all = {{4, 2, 32, 2, 16, 8},
                                           {24, 2, 64, 4, 128, 64},
                                           {3, 1, 20, 3, 18, 6},
                                           {10, 2, 72, 5, 40, 34}};
    return all;
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
// Three sequences: a fresh one, one whose rows cross a page border, and one deep in a page.
std::vector<SeqCase> three() {
    return {{11, 0, 3}, {12, 253, 6}, {13, 700, 1}};
}

template <class F>
void each_shape_and_type(F f) {
    for (const Shape& s : shapes())
        for (PlaneType type : {PlaneType::f16, PlaneType::f32})
            f(s, type,
              "head_dim " + std::to_string(s.head_dim) +
                  (type == PlaneType::f16 ? " f16" : " f32"));
}

TEST(QsaPrepare, MatchesReference) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        const QsaCase c = qsa_case(s, type, three());
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
TEST(QsaPrepare, WritesThroughToMirrors) {
    for (const int shift : {0, 1, 6})
        for (const bool staged : {false, true}) {
            QsaCase c = qsa_case(shapes()[3], PlaneType::f16, three());
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

TEST(QsaPrepare, AnglesAreRightAtFourMillionTokens) {
    QsaCase c = qsa_case(shapes()[0], PlaneType::f32, {});
    c.theta = 1e6f;
    c.seqs = {{21, 4'000'000, 4}};
    c.mapped_pages = 3;  // four million tokens of planes would not fit
    conforms(
        [&](Rig& rig) {
            QsaPrepared p = run_qsa_prepare(rig, c);
            return Lists{p.q, p.iq, p.k};
        },
        1e-12, "position 4000000");
}

TEST(QsaPool, MatchesReference) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        const QsaCase c =
            qsa_case(s, type, {{11, 0, 9}, {12, 250, 11}, {13, 701, 1}, {14, 703, 1}});
        conforms([&](Rig& rig) { return Lists{run_qsa_pool(rig, c)}; },
                 type == PlaneType::f16 ? 1e-7 : 1e-12, what);
    });
}

TEST(IndexScores, MatchReference) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        const QsaCase c = qsa_case(s, type, three());
        conforms([&](Rig& rig) { return Lists{run_index_scores(rig, c)}; }, 1e-12, what);
    });
}

TEST(IndexScores, SlabsPlacementAndBatchMatesDoNotChangeABit) {
    QsaCase c = qsa_case(shapes()[1], PlaneType::f16, three());
    const auto all = run_index_scores(first_rig(), c);
    QsaCase moved = c;
    moved.page_seed = 99;
    expect_equal_bits(run_index_scores(first_rig(), moved), all, "other pages");
    std::vector<float> joined;
    for (int r = 0; r < 10; ++r) {
        QsaCase slab = c;
        slab.first_row = r;
        slab.rows = 1;
        for (float v : run_index_scores(first_rig(), slab))
            joined.push_back(v);
    }
    expect_equal_bits(joined, all, "one row at a time");
    joined.clear();
    for (const SeqCase& s : three()) {
        QsaCase alone = c;
        alone.seqs = {s};
        for (float v : run_index_scores(first_rig(), alone))
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

TEST(SelectBlocks, IsExactForEveryDistribution) {
    const auto noise = [](int r, int b) {
        return case_numbers(7, static_cast<uint64_t>(r), static_cast<uint64_t>(b), 1)[0];
    };
    const std::vector<std::pair<std::string, std::function<float(int, int)>>> kinds = {
        {"noise", noise},
        {"relu", [&](int r, int b) { return std::max(0.0f, noise(r, b) - 1.5f); }},
        {"all equal", [](int, int) { return 0.25f; }},
        {"both zeros", [](int, int b) { return b % 3 ? 0.0f : -0.0f; }},
        {"few values", [&](int r, int b) { return std::floor(4 * noise(r, b)) / 4; }},
        {"ascending", [](int, int b) { return static_cast<float>(b); }},
        {"descending", [](int, int b) { return -static_cast<float>(b); }},
        {"infinities",
         [&](int r, int b) {
             return b % 97 == 0 ? INFINITY : b % 89 == 0 ? -INFINITY : noise(r, b);
         }},
        {"one peak", [](int, int b) { return b == 4321 ? 1.0f : 0.0f; }},
    };
    for (const auto& [name, score] : kinds)
        for (const auto& [pos0, rows, top] : std::vector<std::array<int, 3>>{
                 {0, 13, 1}, {30, 6, 8}, {2040, 12, 512}, {120000, 2, 512}, {90001, 1, 5000}})
            conforms([&](Rig& rig) { return as_floats(run_select(rig, {pos0, rows, top, score})); },
                     1e-30, name + " at " + std::to_string(pos0));
}

TEST(SelectBlocks, NaNScoresComeLastAndNeverRepeatABlock) {
    for (int pos0 : {400, 120003}) {
        const auto got = run_select(first_rig(), {pos0, 1, 64, [](int, int b) {
                                                      return b % 1000 == 7 ? 1.0f : std::nanf("");
                                                  }});
        ASSERT_EQ(got[0].size(), 64u);
        EXPECT_TRUE(std::is_sorted(got[0].begin(), got[0].end()));
        EXPECT_EQ(std::adjacent_find(got[0].begin(), got[0].end()), got[0].end());
        EXPECT_THAT(got[0], testing::Contains(7));
    }
}

TEST(Attend, MatchesReferenceDenseAndSelected) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        for (int top : {0, 1, 20, 300}) {
            QsaCase c = qsa_case(s, type, {{11, 0, 6}, {12, 253, 8}, {13, 1023, 2}});
            c.top = top;
            conforms([&](Rig& rig) { return Lists{run_attend(rig, c)}; }, 1e-11,
                     what + " top " + std::to_string(top));
        }
    });
}

TEST(Attend, DenseAndEverythingSelectedAgreeBitForBit) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        QsaCase dense = qsa_case(s, type, {{11, 0, 5}, {12, 250, 9}, {13, 767, 3}});
        QsaCase selected = dense;
        selected.select_all = true;
        expect_equal_bits(run_attend(first_rig(), selected), run_attend(first_rig(), dense), what);
    });
}

TEST(Attend, SlabsPlacementAndBatchMatesDoNotChangeABit) {
    QsaCase c = qsa_case(shapes()[3], PlaneType::f16, {{11, 0, 5}, {12, 250, 9}, {13, 767, 3}});
    c.top = 50;
    const auto all = run_attend(first_rig(), c);
    QsaCase moved = c;
    moved.page_seed = 5;
    expect_equal_bits(run_attend(first_rig(), moved), all, "other pages");
    std::vector<float> joined;
    for (const SeqCase& s : c.seqs)
        for (int r = 0; r < s.rows; ++r) {
            QsaCase one = c;
            one.seqs = {{s.seed, s.pos0 + r, 1}};
            for (float v : run_attend(first_rig(), one))
                joined.push_back(v);
        }
    expect_equal_bits(joined, all, "one row at a time");
    QsaCase slab = c;
    slab.first_row = 4;
    slab.rows = 7;
    const size_t row = static_cast<size_t>(c.heads * c.head_dim);
    expect_equal_bits(run_attend(first_rig(), slab), slice(all, 4 * row, 7 * row), "slab");
}

// What lies in the mirror is missing at home.
TEST(Attend, ReadsTheMirrorWhereThereIsOne) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        for (int top : {0, 20}) {
            QsaCase c = qsa_case(s, type, {{11, 0, 6}, {12, 253, 8}, {13, 1023, 2}});
            c.top = top;
            const auto plain = run_attend(first_rig(), c);
            for (const int shift : {0, 2, 6}) {
                c.mirror_shift = c.block_tokens << shift > kPageTokens ? 0 : shift;
                expect_equal_bits(run_attend(first_rig(), c), plain, what);
            }
        }
    });
}

TEST(Attend, AnyCutInPassesGivesTheBitsOfOnePass) {
    each_shape_and_type([](const Shape& s, PlaneType type, const std::string& what) {
        for (int top : {0, 1, 20}) {
            QsaCase c = qsa_case(s, type, {{11, 0, 3}, {12, 510, 4}, {13, 1100, 3}});
            c.top = top;
            for (Rig* rig : {&first_rig(), &reference()}) {
                if (rig == &reference() && s.head_dim > 32) continue;  // plain loops
                const auto plain = run_attend(*rig, c);
                for (const auto& borders : std::vector<std::vector<int>>{{1}, {9}, {1, 2, 3, 4}}) {
                    QsaCase cut = c;
                    cut.passes = borders;
                    cut.mirror_shift = 0;
                    expect_equal_bits(run_attend(*rig, cut), plain, what);
                }
            }
        }
    });
}

// ---- recurrent
// ---------------------------------------------------------------------------------------

std::vector<GdnCase> gdn_cases() {
    const std::vector<SeqCase> seqs = {{41, 0, 1},   {42, 5, 2},  {43, 9, 1},
                                       {44, 0, 150}, {45, 0, 64}, {46, 3, 65}};
    std::vector<GdnCase> all = {
        {.seqs = seqs},
        {.seqs = seqs, .k_heads = 1, .v_heads = 3, .k_dim = 128, .v_dim = 128, .dtype = DType::f16},
        {.seqs = seqs, .k_heads = 2, .v_heads = 2, .k_dim = 19, .v_dim = 37, .kernel = 2},
        {.seqs = seqs,
         .k_heads = 1,
         .v_heads = 2,
         .k_dim = 48,
         .v_dim = 80,
         .kernel = 5,
         .dtype = DType::f32},
    };
    GdnCase forgetful = all[0];
    forgetful.decay_bias = 12.0f;
    all.push_back(forgetful);
    GdnCase faithful = all[0];
    faithful.decay_bias = -12.0f;
    all.push_back(faithful);
    return all;
}

std::vector<std::vector<float>> flat(const RecurrentResult& r) {
    std::vector<std::vector<float>> all = r.out;
    all.insert(all.end(), r.state.begin(), r.state.end());
    all.insert(all.end(), r.conv.begin(), r.conv.end());
    return all;
}

TEST(Gdn, StepAndChunkMatchTheRecurrentReference) {
    for (const GdnCase& c : gdn_cases())
        conforms([&](Rig& rig) { return flat(run_gdn(rig, c)); }, 1e-9,
                 "dims " + std::to_string(c.k_dim) + " x " + std::to_string(c.v_dim) + " bias " +
                     std::to_string(c.decay_bias));
}

TEST(Gdn, SequenceHasTheSameBitsAloneAndInABatch) {
    for (GdnCase c : gdn_cases()) {
        const RecurrentResult all = run_gdn(first_rig(), c);
        const std::vector<SeqCase> seqs = c.seqs;
        for (size_t i = 0; i < seqs.size(); ++i) {
            c.seqs = {seqs[i]};
            const RecurrentResult one = run_gdn(first_rig(), c);
            expect_equal_bits(one.out[0], all.out[i], "out");
            expect_equal_bits(one.state[0], all.state[i], "state");
            expect_equal_bits(one.conv[0], all.conv[i], "convolution state");
        }
    }
}

TEST(Gdn, PromptSplitAtAMultipleOfTheChunkGivesTheSameBits) {
    GdnCase c = gdn_cases()[1];
    c.seqs = {{47, 0, 193}};
    const RecurrentResult whole = run_gdn(first_rig(), c);
    RecurrentResult part;
    std::vector<float> out;
    for (const auto& [pos0, rows] : {std::pair{0, 64}, {64, 128}, {192, 1}}) {
        c.seqs = {{47, pos0, rows}};
        if (pos0 > 0) {
            c.state = part.state[0];
            c.conv_state = part.conv[0];
        }
        part = run_gdn(first_rig(), c);
        out.insert(out.end(), part.out[0].begin(), part.out[0].end());
    }
    expect_equal_bits(out, whole.out[0], "out");
    expect_equal_bits(part.state[0], whole.state[0], "state");
}

TEST(PleInject, MatchesReference) {
    for (int hidden : {48, 96, 37})
        for (DType dtype : {DType::bf16, DType::f16})
            conforms(
                [&](Rig& rig) {
                    const PleCase c{.seqs = {{51, 0, 1}, {52, 0, 25}, {53, 7, 4}},
                                    .hidden = hidden,
                                    .dtype = dtype};
                    return flat(run_ple(rig, c));
                },
                1e-11, "hidden " + std::to_string(hidden));
}

TEST(PleInject, SequenceHasTheSameBitsAloneAndInABatch) {
    PleCase c{.seqs = {{51, 0, 1}, {52, 0, 25}, {53, 7, 4}}};
    const RecurrentResult all = run_ple(first_rig(), c);
    const std::vector<SeqCase> seqs = c.seqs;
    for (size_t i = 0; i < seqs.size(); ++i) {
        c.seqs = {seqs[i]};
        const RecurrentResult one = run_ple(first_rig(), c);
        expect_equal_bits(one.out[0], all.out[i], "out");
        expect_equal_bits(one.state[0], all.state[i], "state");
    }
}

// ---- experts
// -----------------------------------------------------------------------------------------

TEST(Route, ChoosesExactlyAndWeighsLikeTheReference) {
    const auto noise = [](int r, int e) {
        return 4 * case_numbers(8, static_cast<uint64_t>(r), static_cast<uint64_t>(e), 1)[0];
    };
    const std::vector<std::function<float(int, int)>> kinds = {
        noise, [](int, int) { return 1.0f; }, [&](int r, int e) { return std::floor(noise(r, e)); },
        [](int, int e) { return static_cast<float>(e); }};
    for (const auto& logit : kinds)
        for (const auto& [experts, k] :
             std::vector<std::pair<int, int>>{{1, 1}, {7, 7}, {16, 4}, {100, 17}, {512, 10}})
            for (Renormalise mode : {Renormalise::yes, Renormalise::no}) {
                const RouteCase c{5, experts, k, mode, logit};
                const RouteResult expected = run_route(reference(), c);
                conforms(
                    [&](Rig& rig) {
                        RouteResult r = run_route(rig, c);
                        EXPECT_EQ(r.ids, expected.ids) << experts << " choose " << k;
                        return Lists{r.weights};
                    },
                    1e-12, std::to_string(experts) + " choose " + std::to_string(k));
            }
}

TEST(Route, NaNLogitsStillGiveDistinctExperts) {
    const RouteResult r = run_route(first_rig(), {1, 9, 4, Renormalise::yes, [](int, int e) {
                                                      return e == 5 ? 2.0f : std::nanf("");
                                                  }});
    EXPECT_EQ(r.ids, (std::vector<int32_t>{5, 0, 1, 2}));
}

std::vector<MoeCase> moe_cases() {
    std::vector<MoeCase> all;
    for (int rows : {1, 2, 19}) {
        MoeCase c;
        c.rows = rows;
        all.push_back(c);
        c.kind = ExpertKind::mixed;
        c.width = 200;
        c.hidden = 256;
        c.shared = ExpertKind::plain;
        c.shared_width = 96;
        c.experts = 12;
        c.k = 3;
        all.push_back(c);
        c.kind = ExpertKind::plain;
        c.hidden = 100;
        c.width = 44;
        c.with_shared = false;
        all.push_back(c);
        MoeCase mcg;
        mcg.rows = rows;
        mcg.codebook = Codebook::mcg;
        mcg.shared_width = 300;
        mcg.favourite = 3;
        all.push_back(mcg);
    }
    return all;
}

TEST(Moe, MatchesReference) {
    for (const MoeCase& c : moe_cases())
        conforms([&](Rig& rig) { return Lists{run_moe(rig, c)}; }, 1e-9,
                 "rows " + std::to_string(c.rows) + " hidden " + std::to_string(c.hidden));
}

TEST(Moe, RowHasTheSameBitsAloneAndInABatch) {
    for (MoeCase c : moe_cases()) {
        c.rows = 150;
        const auto all = run_moe(first_rig(), c);
        const auto hidden = static_cast<size_t>(c.hidden);
        for (int row : {0, 77, 149}) {
            MoeCase one = c;
            one.first = row;
            one.rows = 1;
            expect_equal_bits(run_moe(first_rig(), one),
                              slice(all, static_cast<size_t>(row) * hidden, hidden), "y");
        }
    }
}

TEST(Moe, LongCallsInBlocksOfRowsGiveTheSameBits) {
    // 64 MiB of results are 455 rows here, so the last rows are in a second block.
    MoeCase c{.rows = 460, .hidden = 4096, .width = 4, .experts = 9, .k = 8};
    c.kind = ExpertKind::plain;
    c.with_shared = false;
    const auto all = run_moe(first_rig(), c);
    for (int row : {0, 454, 455, 459}) {
        MoeCase one = c;
        one.first = row;
        one.rows = 1;
        expect_equal_bits(run_moe(first_rig(), one),
                          slice(all, static_cast<size_t>(row) * 4096, 4096), "y");
    }
}

TEST(Moe, ExpertOutsideTheTableIsAnErrorThatNamesIt) {
    Backend b = cpu_backend(IsaChoice::auto_detect, 1);
    Rig& rig = *b.rig;
    OpsLimits limits;
    limits.rows = 1;
    limits.hidden = limits.moe_width = limits.widest = 128;
    limits.experts = 2;
    limits.k = 1;
    ASSERT_OK(rig.ops().reserve(limits));
    std::vector<ExpertWeights> experts(2);
    MoeArgs a;
    a.x = rig.upload(std::vector<float>(128));
    a.ids = rig.upload(std::vector<int32_t>{2});
    a.weights = rig.upload(std::vector<float>{1.0f});
    a.table = {experts.data(), 2, {}};
    a.y = rig.poisoned<float>(128);
    a.rows = a.k = 1;
    a.hidden = a.width = 128;
    const Status s = rig.ops().moe(rig.stream(), a);
    ASSERT_FALSE(s.has_value());
    EXPECT_THAT(s.error().message, testing::HasSubstr("expert 2 of 2"));
}

// ---- the contract
// ------------------------------------------------------------------------------------

TEST(CpuOps, CallBeyondTheReservedLimitsIsAnErrorWithNeedAndHave) {
    Backend b = cpu_backend(IsaChoice::auto_detect, 2);
    Rig& rig = *b.rig;
    rig.keep_first_limits = true;
    OpsLimits limits;
    limits.rows = 1;
    limits.hidden = 64;
    limits.streams = 4;
    limits.rank = 16;
    limits.widest = 256;
    rig.reserve(limits);
    EXPECT_EQ(run_hyper_read(rig, {.rows = 1}).x.size(), 64u);
    HyperWeights w;
    w.down = make_plain_linear(rig, 1, 256, 16, DType::f16);
    w.up = make_plain_linear(rig, 1, 16, 256, DType::f16);
    w.norm = make_plain(rig, std::vector<float>(256), DType::f16);
    HyperReadArgs a;
    a.weights = &w;
    a.rows = 9;
    a.streams = 4;
    a.hidden = 64;
    a.rank = 16;
    const Status s = rig.ops().hyper_read(rig.stream(), a);
    ASSERT_FALSE(s.has_value());
    EXPECT_THAT(s.error().message,
                testing::AllOf(testing::HasSubstr("need"), testing::HasSubstr("reserved")));
}

TEST(CpuOps, WorkspaceBytesIsWhatReserveTakes) {
    class Counting final : public Device {
      public:
        DeviceKind kind() const override { return inner->kind(); }
        const std::string& name() const override { return inner->name(); }
        bool unified() const override { return inner->unified(); }
        bool has_graphs() const override { return inner->has_graphs(); }
        size_t free_bytes() const override { return inner->free_bytes(); }
        Result<Buffer> allocate(size_t bytes, MemSpace space, Fill fill) override {
            taken += bytes;
            return inner->allocate(bytes, space, fill);
        }
        Result<std::unique_ptr<Stream>> make_stream() override { return inner->make_stream(); }
        Result<std::unique_ptr<Event>> make_event() override { return inner->make_event(); }
        void release(std::byte*, size_t, MemSpace) override {}
        std::unique_ptr<Device> inner = make_host_device();
        size_t taken = 0;
    } device;
    WorkerPool pool(3);
    const auto ops = must(make_cpu_ops(device, pool, {}));
    OpsLimits limits;
    limits.rows = 64;
    limits.hidden = 512;
    limits.streams = 4;
    limits.rank = 32;
    limits.widest = 2048;
    limits.head_rows = 4;
    limits.vocab = 1000;
    limits.experts = 16;
    limits.k = 4;
    limits.moe_width = limits.shared_width = 128;
    limits.heads = 8;
    limits.head_dim = 64;
    limits.gdn_v_heads = 8;
    limits.gdn_k_dim = limits.gdn_v_dim = 64;
    limits.gdn_channels = 1536;
    const size_t promised = ops->workspace_bytes(limits);
    ASSERT_OK(ops->reserve(limits));
    EXPECT_EQ(device.taken, promised);
    EXPECT_GT(promised, 0u);
    EXPECT_EQ(ops->workspace_bytes(limits), promised);
}

TEST(CpuOps, UnreservedBackendRefusesInsteadOfCrashing) {
    Backend b = cpu_backend(IsaChoice::auto_detect, 1);
    SelectBlocksArgs a;
    a.rows = 0;
    a.top = 4;
    EXPECT_FALSE(b.rig->ops().select_blocks(b.rig->stream(), a).has_value());
}

}  // namespace
}  // namespace terrace::test
