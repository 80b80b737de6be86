// Gated delta net and n-gram injection on the GPU against the scalar reference, and the bits of
// sequences alone, in batches and cut into pieces.
// SPDX-License-Identifier: MIT
#include "cuda/recurrent/seq_tiles.h"
#include "gpu.h"

namespace terrace::test {
namespace {

Lists flat(const RecurrentResult& r) {
    Lists all = r.out;
    all.insert(all.end(), r.state.begin(), r.state.end());
    all.insert(all.end(), r.conv.begin(), r.conv.end());
    return all;
}

std::vector<GdnCase> gdn_cases() {
    const std::vector<SeqCase> seqs = {{41, 0, 1},  {42, 5, 2},  {43, 9, 1},   {44, 0, 150},
                                       {45, 0, 64}, {46, 3, 65}, {47, 0, 100}, {48, 7, 19}};
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
        // Wider than shared memory.
        {.seqs = {{49, 0, 3}, {50, 2, 1}}, .k_heads = 1, .v_heads = 2, .k_dim = 256, .v_dim = 256},
    };
    for (const size_t base : {size_t{0}, size_t{1}})
        for (const float bias : {12.0f, 3.0f, -12.0f}) {
            GdnCase c = all[base];
            c.decay_bias = bias;
            all.push_back(c);
        }
    return all;
}

std::string name(const GdnCase& c) {
    return "dims " + std::to_string(c.k_dim) + " x " + std::to_string(c.v_dim) + " bias " +
           std::to_string(c.decay_bias);
}

TEST(SeqTiles, AFewRowsBehindWholeChunksAreDecoded) {
    for (const int whole : {0, 64, 640}) {
        EXPECT_EQ(cuda::decoded_rows(whole), 0);
        EXPECT_EQ(cuda::decoded_rows(whole + 1), 1);
        EXPECT_EQ(cuda::decoded_rows(whole + kDecodeRows), kDecodeRows);
        EXPECT_EQ(cuda::decoded_rows(whole + kDecodeRows + 1), 0);
        EXPECT_EQ(cuda::tiled_rows(whole + 5, cuda::Tiled::prefilled), whole);
        EXPECT_EQ(cuda::tiled_rows(whole + 40, cuda::Tiled::prefilled), whole + 40);
    }
}

TEST(SeqTiles, TilesDoNotCrossSequences) {
    std::vector<SeqRows> seqs;
    for (const int n : {1, 65, 0, 100, 64})
        seqs.push_back({0, n, 0, 0, 0, 0});
    StepRows step;
    step.n_seqs = static_cast<int32_t>(seqs.size());
    step.host_seqs = seqs.data();
    EXPECT_EQ(cuda::count_tiles(step, cuda::Tiled::all, 64), 1 + 2 + 0 + 2 + 1);
    EXPECT_EQ(cuda::count_tiles(step, cuda::Tiled::prefilled, 64), 0 + 1 + 0 + 2 + 1);
}

class CudaRecurrent : public GpuTest {};

TEST_F(CudaRecurrent, GdnMatchesTheReference) {
    for (const GdnCase& c : gdn_cases())
        conforms([&](Rig& rig) { return flat(run_gdn(rig, c)); }, 1e-6, name(c));
}

TEST_F(CudaRecurrent, GdnDecodeMatchesTheReferenceClosely) {
    std::vector<SeqCase> seqs;
    for (uint64_t i = 0; i < 40; ++i)
        seqs.push_back({100 + i, static_cast<int>(i), 1});
    const GdnCase c{
        .seqs = seqs, .k_heads = 2, .v_heads = 6, .k_dim = 128, .v_dim = 128, .dtype = DType::bf16};
    conforms([&](Rig& rig) { return flat(run_gdn(rig, c)); }, 1e-10, name(c));
}

TEST_F(CudaRecurrent, GdnRealDimsMatchTheReference) {
    const GdnCase c{.seqs = {{61, 0, 66}, {62, 4, 1}},
                    .k_heads = 16,
                    .v_heads = 48,
                    .k_dim = 128,
                    .v_dim = 128};
    conforms([&](Rig& rig) { return flat(run_gdn(rig, c)); }, 1e-6, name(c));
}

TEST_F(CudaRecurrent, GdnStaysRightOverALongSequence) {
    GdnCase c{.seqs = {{63, 0, 1500}}, .k_heads = 1, .v_heads = 2, .k_dim = 128, .v_dim = 128};
    for (const float bias : {0.0f, -6.0f}) {
        c.decay_bias = bias;
        conforms([&](Rig& rig) { return flat(run_gdn(rig, c)); }, 1e-6, name(c));
    }
}

TEST_F(CudaRecurrent, GdnSequenceHasTheSameBitsAloneAndInABatch) {
    for (GdnCase c : gdn_cases()) {
        const RecurrentResult all = run_gdn(*gpu(), c);
        const std::vector<SeqCase> seqs = c.seqs;
        for (size_t i = 0; i < seqs.size(); ++i) {
            c.seqs = {seqs[i]};
            const RecurrentResult one = run_gdn(*gpu(), c);
            expect_equal_bits(one.out[0], all.out[i], name(c) + ", out");
            expect_equal_bits(one.state[0], all.state[i], name(c) + ", state");
            expect_equal_bits(one.conv[0], all.conv[i], name(c) + ", convolution state");
        }
    }
}

// Runs one sequence in pieces of `cuts` rows and compares with one call.
void expect_cut_does_not_matter(GdnCase c, const std::vector<int>& cuts) {
    int rows = 0;
    for (const int n : cuts)
        rows += n;
    c.seqs = {{47, 0, rows}};
    const RecurrentResult whole = run_gdn(*gpu(), c);
    RecurrentResult part;
    std::vector<float> out;
    int pos0 = 0;
    for (const int n : cuts) {
        c.seqs = {{47, pos0, n}};
        if (pos0 > 0) {
            c.state = part.state[0];
            c.conv_state = part.conv[0];
        }
        part = run_gdn(*gpu(), c);
        out.insert(out.end(), part.out[0].begin(), part.out[0].end());
        pos0 += n;
    }
    const std::string what = name(c) + ", rows " + std::to_string(rows);
    expect_equal_bits(out, whole.out[0], what);
    expect_equal_bits(part.state[0], whole.state[0], what);
    expect_equal_bits(part.conv[0], whole.conv[0], what);
}

TEST_F(CudaRecurrent, GdnPromptSplitAtAMultipleOfTheChunkGivesTheSameBits) {
    for (const size_t i : {size_t{0}, size_t{1}, size_t{2}})
        for (const std::vector<int>& cuts : std::vector<std::vector<int>>{
                 {64, 128, 1}, {64, 1}, {192, 64, 64, 30}, {128, 16}, {64, 17}})
            expect_cut_does_not_matter(gdn_cases()[i], cuts);
}

TEST_F(CudaRecurrent, PleInjectMatchesReference) {
    for (const int hidden : {48, 96, 37, 2560})
        for (const DType dtype : {DType::bf16, DType::f16})
            conforms(
                [&](Rig& rig) {
                    const PleCase c{
                        .seqs = {{51, 0, 1}, {52, 0, 25}, {53, 7, 4}, {54, 0, 16}, {55, 1, 40}},
                        .hidden = hidden,
                        .dtype = dtype};
                    return flat(run_ple(rig, c));
                },
                1e-10, "hidden " + std::to_string(hidden));
}

TEST_F(CudaRecurrent, PleInjectSequenceHasTheSameBitsAloneAndInABatch) {
    for (const int hidden : {48, 37}) {
        PleCase c{.seqs = {{51, 0, 1}, {52, 0, 25}, {53, 7, 4}}, .hidden = hidden};
        const RecurrentResult all = run_ple(*gpu(), c);
        const std::vector<SeqCase> seqs = c.seqs;
        for (size_t i = 0; i < seqs.size(); ++i) {
            c.seqs = {seqs[i]};
            const RecurrentResult one = run_ple(*gpu(), c);
            expect_equal_bits(one.out[0], all.out[i], "out");
            expect_equal_bits(one.state[0], all.state[i], "state");
        }
    }
}

}  // namespace
}  // namespace terrace::test
