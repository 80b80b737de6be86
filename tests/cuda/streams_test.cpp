// Embedding, hyper-connections and row gather on the GPU against the scalar reference.
// SPDX-License-Identifier: MIT
#include "gpu.h"

namespace terrace::test {
namespace {

std::vector<float> slice(const std::vector<float>& v, size_t first, size_t n) {
    return {v.begin() + static_cast<std::ptrdiff_t>(first),
            v.begin() + static_cast<std::ptrdiff_t>(first + n)};
}

std::vector<HyperCase> hyper_cases() {
    return {
        {.rows = 1, .hidden = 64, .rank = 16, .dtype = DType::f16},
        {.rows = 3, .streams = 2, .hidden = 130, .rank = 23, .dtype = DType::bf16},
        {.rows = 1, .streams = 3, .hidden = 17, .rank = 5, .dtype = DType::f32},
        {.rows = 13, .streams = 4, .hidden = 320, .rank = 40, .dtype = DType::f16},
        {.rows = 70, .streams = 4, .hidden = 320, .rank = 40, .dtype = DType::f16},
        {.rows = 67, .streams = 3, .hidden = 33, .rank = 9, .dtype = DType::bf16},
        {.rows = 2, .hidden = 256, .rank = 32, .dtype = DType::bf16, .inject = false},
        {.rows = 33,
         .hidden = 264,
         .rank = 64,
         .dtype = DType::bf16,
         .runs = {{0, 33, RowKind::decode}}},
        {.rows = 1, .hidden = 264, .rank = 64, .dtype = DType::f16},
        {.rows = 3, .hidden = 1000, .rank = 128, .dtype = DType::f16, .inject = false},
        {.rows = 5, .hidden = 2560, .rank = 320, .dtype = DType::f16},
        {.rows = 1, .hidden = 2560, .rank = 320, .dtype = DType::f16, .inject = false},
        {.rows = 1, .hidden = 2560, .rank = 320, .dtype = DType::bf16},
        {.rows = 2, .hidden = 2560, .rank = 320, .dtype = DType::f32},
        {.rows = 20, .hidden = 2560, .rank = 320, .dtype = DType::f16},
    };
}

std::string name(const HyperCase& c) {
    return "hidden " + std::to_string(c.hidden) + " rows " + std::to_string(c.rows);
}

class CudaStreams : public GpuTest {};

TEST_F(CudaStreams, HyperReadMatchesReference) {
    for (const HyperCase& c : hyper_cases())
        conforms(
            [&](Rig& rig) {
                HyperResult r = run_hyper_read(rig, c);
                return Lists{r.x, r.inj};
            },
            c.rows > kDecodeRows ? 1e-6 : 1e-10, name(c));
}

// Rows of a batch in runs of both kinds against each row alone with its kind.
TEST_F(CudaStreams, HyperReadRowHasTheSameBitsAloneAndInABatch) {
    for (const int hidden : {96, 2560}) {
        HyperCase batch{.rows = 90, .hidden = hidden, .rank = hidden / 8};
        batch.runs = {{0, 1, RowKind::decode},
                      {1, 66, RowKind::prefill},
                      {67, 2, RowKind::decode},
                      {69, 2, RowKind::prefill},
                      {71, 19, RowKind::decode}};
        batch.add = true;
        const HyperResult all = run_hyper_read(*gpu(), batch);
        for (int row : {0, 1, 33, 66, 67, 70, 71, 86, 89}) {
            HyperCase one = batch;
            one.first = row;
            one.rows = 1;
            const bool decoded = row < 1 || row == 67 || row == 68 || row >= 71;
            one.runs = {{0, 1, decoded ? RowKind::decode : RowKind::prefill}};
            const HyperResult r = run_hyper_read(*gpu(), one);
            const std::string what = name(batch) + " row " + std::to_string(row);
            const auto at = static_cast<size_t>(row), h = static_cast<size_t>(hidden);
            expect_equal_bits(r.x, slice(all.x, at * h, h), what);
            expect_equal_bits(r.inj, slice(all.inj, at * 4, 4), what);
            expect_equal_bits(r.h, slice(all.h, at * 4 * h, 4 * h), what);
        }
    }
}

// What is added on the way, against a write in front of the read.
TEST_F(CudaStreams, HyperReadAddsLikeAWrite) {
    for (HyperCase c : hyper_cases()) {
        c.add = true;
        conforms(
            [&](Rig& rig) {
                HyperResult r = run_hyper_read(rig, c);
                return Lists{r.x, r.inj, r.h};
            },
            c.rows > kDecodeRows ? 1e-6 : 1e-10, name(c));
        const HyperResult r = run_hyper_read(*gpu(), c);
        expect_equal_bits(r.h, run_hyper_write(*gpu(), c), name(c));
    }
}

// Launches of different sizes in turn leave nothing behind for each other.
TEST_F(CudaStreams, SingleRowsOfDifferentSizesTakeTurns) {
    std::vector<HyperCase> cases;
    for (const HyperCase& c : hyper_cases())
        if (c.rows == 1) cases.push_back(c);
    std::vector<HyperResult> first;
    for (const HyperCase& c : cases)
        first.push_back(run_hyper_read(*gpu(), c));
    for (size_t round = 0; round < 5; ++round)
        for (size_t i = 0; i < cases.size(); ++i) {
            const size_t j = (i * (round + 1)) % cases.size();
            expect_equal_bits(run_hyper_read(*gpu(), cases[j]).x, first[j].x, name(cases[j]));
        }
}

TEST_F(CudaStreams, HyperWriteMatchesReference) {
    for (const HyperCase& c : hyper_cases())
        conforms([&](Rig& rig) { return Lists{run_hyper_write(rig, c)}; }, 1e-13, name(c));
}

TEST_F(CudaStreams, EmbedCopiesTheTableToEveryStream) {
    for (const HyperCase& c : hyper_cases())
        expect_equal_bits(run_embed(*gpu(), c), run_embed(reference(), c), name(c));
}

TEST_F(CudaStreams, GatherTakesTheNamedRows) {
    for (const int width : {1, 30, 2560}) {
        const std::vector<int32_t> rows = {4, 0, 6, 6, 3};
        const auto w = static_cast<size_t>(width);
        const auto run = [&](Rig& rig) {
            GatherRowsArgs a;
            a.in = rig.upload(case_numbers(1, 2, 3, 7 * w));
            a.rows = rig.upload(rows);
            a.out = rig.poisoned<float>(rows.size() * w);
            a.n = static_cast<int32_t>(rows.size());
            a.width = width;
            rig.reserve({});
            rig.call([&](Ops& ops, Stream& s) { return ops.gather_rows(s, a); });
            auto out = rig.download(a.out);
            rig.forget_buffers();
            return out;
        };
        expect_equal_bits(run(*gpu()), run(reference()), "width " + std::to_string(width));
    }
}

}  // namespace
}  // namespace terrace::test
