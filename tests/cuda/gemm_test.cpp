// The tiled family on its own: every row goes through it, whatever its kind.
// SPDX-License-Identifier: MIT
#include "cuda/gemm/gemm.h"

#include <cmath>
#include <map>

#include "cuda/cuda_backend.h"
#include "cuda/device/cuda_device.h"
#include "cuda/gemm/shape.h"
#include "gpu.h"

namespace terrace::test {
namespace {

// Linears and experts of the tiled family as an Ops.
class TiledOps final : public Ops {
  public:
    explicit TiledOps(Device& device)
        : device_(static_cast<cuda::CudaDevice&>(device)), info_(device_.info()) {}
    const std::string& name() const override { return name_; }
    size_t workspace_bytes(const OpsLimits& l) const override {
        return cuda::gemm_scratch_bytes(info_, l);
    }
    Status reserve(const OpsLimits& l) override {
        TERRACE_ASSIGN(memory_, device_.allocate(std::max<size_t>(workspace_bytes(l), 256),
                                                 MemSpace::device, Fill::unspecified));
        // What nobody wrote is NaN.
        TERRACE_CUDA_TRY(cudaMemset(memory_.device_pointer(), 0xff, memory_.bytes()));
        TERRACE_CUDA_TRY(cudaDeviceSynchronize());
        return {};
    }
    Status linear(Stream& s, const LinearArgs& a) override {
        return cuda::gemm_linear(at(s), a, 0, a.rows);
    }
    Status moe(Stream& s, const MoeArgs& a) override {
        return cuda::moe_prefill(at(s), a, 0, a.rows);
    }
    size_t attend_state_bytes(int32_t, int32_t, int32_t) const override { return 0; }
    Status embed(Stream&, const EmbedArgs&) override { return none(); }
    Status hyper_read(Stream&, const HyperReadArgs&) override { return none(); }
    Status hyper_write(Stream&, const HyperWriteArgs&) override { return none(); }
    Status gdn(Stream&, const GdnArgs&) override { return none(); }
    Status qsa_prepare(Stream&, const QsaPrepareArgs&) override { return none(); }
    Status qsa_pool(Stream&, const QsaPoolArgs&) override { return none(); }
    Status index_scores(Stream&, const IndexScoresArgs&) override { return none(); }
    Status select_blocks(Stream&, const SelectBlocksArgs&) override { return none(); }
    Status resolve_blocks(Stream&, const ResolveBlocksArgs&) override { return none(); }
    Status attend(Stream&, const AttendArgs&) override { return none(); }
    Status route(Stream&, const RouteArgs&) override { return none(); }
    Status ple_inject(Stream&, const PleInjectArgs&) override { return none(); }
    Status gather_rows(Stream&, const GatherRowsArgs&) override { return none(); }
    Status sample_candidates(Stream&, const SampleCandidatesArgs&) override { return none(); }

    cuda::DeviceInfo& info() { return info_; }

  private:
    static Status none() { return Error{Code::unsupported, "not of the tiled family"}; }
    cuda::Launch at(Stream& s) {
        return {static_cast<cuda::CudaStream&>(s).handle(), &info_, memory_.device_pointer(),
                memory_.bytes(), nullptr};
    }
    cuda::CudaDevice& device_;
    cuda::DeviceInfo info_;
    std::string name_ = "cuda tiled";
    Buffer memory_;
};

// sync: as on GPUs without wgmma. With few multiprocessors, other shapes
// of tiles are chosen.
enum class Products { fastest, sync };
Rig& tiled(Products products = Products::fastest, int sms = 0) {
    static std::map<std::pair<Products, int>, std::unique_ptr<Rig>> rigs;
    auto& rig = rigs[{products, sms}];
    if (!rig) {
        auto device = must(make_cuda_device(0));
        auto ops = std::make_unique<TiledOps>(*device);
        if (products == Products::sync) ops->info().code.wgmma = false;
        if (sms) ops->info().sms = sms;
        rig = std::make_unique<Rig>(std::move(device), std::move(ops));
    }
    return *rig;
}

constexpr std::initializer_list<Products> kBoth = {Products::fastest, Products::sync};
constexpr double kLimit = 2e-6;  // f16 activations

void tiled_conforms(const std::function<Lists(Rig&)>& run, const std::string& what,
                    std::initializer_list<Products> all = {Products::fastest}) {
    const Lists expected = run(reference());
    for (const Products products : all) {
        SCOPED_TRACE(what + (products == Products::sync ? ", mma.sync" : ""));
        const Lists got = run(tiled(products)), again = run(tiled(products));
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
            EXPECT_LT(nmse(got[i], expected[i]), kLimit) << "output " << i;
            expect_equal_bits(again[i], got[i], "again, output " + std::to_string(i));
        }
    }
}

LinearCase linear_case(int rows, int in, std::vector<LinearCase::Job> jobs) {
    LinearCase c;
    c.rows = rows;
    c.in = in;
    c.jobs = std::move(jobs);
    return c;
}

TEST(GemmShape, FewRowsTakeSmallTilesAndManyRowsLargeOnes) {
    EXPECT_EQ(cuda::choose_shape(17, 96, 132), cuda::ProductShape::rows64);
    EXPECT_EQ(cuda::choose_shape(128, 96, 132), cuda::ProductShape::rows128);
    EXPECT_EQ(cuda::choose_shape(2048, 96, 132), cuda::ProductShape::rows256);
    // 20 columns of tiles: 260 tiles of 160 rows are two full waves, 160 of 256 two half-full ones.
    EXPECT_EQ(cuda::choose_shape(2048, 20, 132), cuda::ProductShape::rows160);
}

class Gemm : public GpuTest {};

TEST_F(Gemm, EveryWidthAndCodebookMatchesTheReference) {
    for (const Codebook codebook : {Codebook::mul1, Codebook::mcg, Codebook::three_inst})
        for (int n16 = 16; n16 <= 128; n16 += codebook == Codebook::mul1 ? 8 : 16) {
            const LinearCase c = linear_case(37, 256, {{256, n16, DType::f16, codebook}});
            tiled_conforms([&](Rig& rig) { return run_linear(rig, c); },
                           std::string(to_string(codebook)) + " " + std::to_string(n16), kBoth);
        }
}

TEST_F(Gemm, TailsOfEveryDimensionMatchTheReference) {
    for (const int rows : {1, 17, 63, 64, 130})
        for (const int in : {17, 200, 384}) {
            const LinearCase c = linear_case(
                rows, in, {{130, 64}, {5, 48}, {128, 64}, {300, 64, DType::f16, Codebook::mcg}});
            tiled_conforms([&](Rig& rig) { return run_linear(rig, c); },
                           std::to_string(rows) + " rows of " + std::to_string(in), kBoth);
        }
}

TEST_F(Gemm, PlainWeightsOfEveryTypeMatchTheReference) {
    for (const int rows : {1, 17, 64, 130})
        for (const int in : {17, 64, 320, 1000}) {
            const LinearCase c = linear_case(rows, in,
                                             {{130, 0, DType::f16},
                                              {1, 0, DType::bf16},
                                              {64, 0, DType::bf16},
                                              {320, 0, DType::f16},
                                              {33, 0, DType::f32}});
            tiled_conforms([&](Rig& rig) { return run_linear(rig, c); },
                           std::to_string(rows) + " rows of " + std::to_string(in));
        }
}

TEST_F(Gemm, RealDimensionsMatchTheReference) {
    const LinearCase c = linear_case(20, 2560, {{640, 96}, {512, 0, DType::f16}});
    tiled_conforms([&](Rig& rig) { return run_linear(rig, c); }, "2560 in");
}

// Long inputs are shared by several blocks.
TEST_F(Gemm, LongPlainRowsMatchTheReference) {
    for (const int in : {2048, 2056, 4168, 10240})
        for (const int rows : {20, 300}) {
            const LinearCase c = linear_case(rows, in,
                                             {{72, 0, DType::f16},
                                              {4, 0, DType::f16},
                                              {320, 0, DType::f16},
                                              {33, 0, DType::bf16}});
            tiled_conforms([&](Rig& rig) { return run_linear(rig, c); },
                           std::to_string(rows) + " rows of " + std::to_string(in));
        }
}

// The same rows in calls of any size, on tiles of any size.
TEST_F(Gemm, RowBitsDoNotDependOnTheRowsAround) {
    const std::vector<LinearCase::Job> jobs = {
        {512, 96}, {300, 64}, {256, 40}, {320, 0, DType::f16}, {16, 0, DType::bf16}};
    const Lists all = run_linear(tiled(), linear_case(700, 2560, jobs));
    for (const int sms : {0, 16, 4, 3, 2})
        for (const auto& [first, rows] : std::vector<std::pair<int, int>>{
                 {0, 1}, {3, 17}, {100, 33}, {64, 64}, {17, 100}, {5, 150}, {400, 257}, {0, 700}}) {
            LinearCase c = linear_case(rows, 2560, jobs);
            c.first = first;
            const Lists some = run_linear(tiled(Products::fastest, sms), c);
            for (size_t j = 0; j < jobs.size(); ++j) {
                const auto out = static_cast<size_t>(jobs[j].out);
                const auto from = all[j].begin() + static_cast<int64_t>(out) * first;
                expect_equal_bits(
                    some[j], std::vector<float>(from, from + static_cast<int64_t>(out) * rows),
                    std::to_string(rows) + " rows from " + std::to_string(first) + " on " +
                        std::to_string(sms) + " multiprocessors, output " + std::to_string(j));
            }
        }
}

MoeCase moe_case(int rows, ExpertKind kind, ExpertKind shared, int hidden = 256, int width = 128) {
    MoeCase c;
    c.rows = rows;
    c.kind = kind;
    c.shared = shared;
    c.hidden = hidden;
    c.width = width;
    c.shared_width = width;
    return c;
}

TEST_F(Gemm, ExpertsOfEveryKindMatchTheReference) {
    for (const int rows : {1, 17, 100})
        for (const ExpertKind kind : {ExpertKind::plain, ExpertKind::exl3, ExpertKind::mixed})
            for (const ExpertKind shared : {ExpertKind::plain, ExpertKind::exl3}) {
                const MoeCase c = moe_case(rows, kind, shared);
                tiled_conforms(
                    [&](Rig& rig) { return Lists{run_moe(rig, c)}; },
                    std::to_string(rows) + " rows, kind " + std::to_string(static_cast<int>(kind)),
                    kBoth);
            }
}

TEST_F(Gemm, ExpertsOfOddSizesMatchTheReference) {
    for (const auto& [hidden, width] :
         std::vector<std::pair<int, int>>{{17, 24}, {200, 96}, {384, 320}}) {
        MoeCase c = moe_case(40, ExpertKind::mixed, ExpertKind::exl3, hidden, width);
        c.shared_width = 2 * width + 8;
        c.experts = 5;
        tiled_conforms([&](Rig& rig) { return Lists{run_moe(rig, c)}; },
                       std::to_string(hidden) + " x " + std::to_string(width));
        c.with_shared = false;
        tiled_conforms([&](Rig& rig) { return Lists{run_moe(rig, c)}; }, "without a shared expert");
    }
}

// One expert takes every row, most take none.
TEST_F(Gemm, AnExpertMayTakeAllRows) {
    MoeCase c = moe_case(333, ExpertKind::exl3, ExpertKind::exl3);
    c.experts = 64;
    c.favourite = 5;
    tiled_conforms([&](Rig& rig) { return Lists{run_moe(rig, c)}; }, "favourite");
    for (const Codebook codebook : {Codebook::mcg, Codebook::three_inst}) {
        c.rows = 70;
        c.codebook = codebook;
        tiled_conforms([&](Rig& rig) { return Lists{run_moe(rig, c)}; }, "favourite");
    }
}

TEST_F(Gemm, ExpertsOfRealDimensionsMatchTheReference) {
    MoeCase c = moe_case(4, ExpertKind::exl3, ExpertKind::exl3, 2560, 640);
    c.experts = 12;
    c.k = 10;
    tiled_conforms([&](Rig& rig) { return Lists{run_moe(rig, c)}; }, "2560 x 640");
}

// More rows than one piece, and the same rows in other company.
TEST_F(Gemm, ExpertRowBitsDoNotDependOnTheRowsAround) {
    MoeCase c = moe_case(2100, ExpertKind::mixed, ExpertKind::exl3);
    c.favourite = 2;
    const std::vector<float> all = run_moe(tiled(), c);
    for (const auto& [first, rows] :
         std::vector<std::pair<int, int>>{{0, 1}, {1000, 20}, {2047, 2}, {300, 150}, {2090, 10}}) {
        MoeCase part = c;
        part.first = first;
        part.rows = rows;
        const auto from = all.begin() + int64_t{c.hidden} * first;
        expect_equal_bits(run_moe(tiled(), part),
                          std::vector<float>(from, from + int64_t{c.hidden} * rows),
                          std::to_string(rows) + " rows from " + std::to_string(first));
    }
}

}  // namespace
}  // namespace terrace::test
