// The five operations of a sparse-attention layer in one captured graph, replayed at other positions
// and on other pages than it was captured with.
// SPDX-License-Identifier: MIT
#include <cmath>

#include "gpu.h"

namespace terrace::test {
namespace {

constexpr int kHeads = 24, kKvHeads = 2, kDim = 256, kIndexHeads = 4, kIndexDim = 128;
constexpr int kTop = 512, kPages = 72, kMostBlocks = kPages * kPageTokens / 4;

class LayerOnGpu {
  public:
    LayerOnGpu(Rig& rig, int rows, RowKind kind) : rig_(rig), rows_(rows) {
        const auto n = static_cast<size_t>(rows);
        seq_ = {0, rows, 0, 0, kPages, 0};
        run_ = {0, rows, kind};
        step_.n_rows = rows;
        step_.n_seqs = 1;
        step_.seqs = seqs_ = rig.upload(std::vector<SeqRows>{seq_});
        step_.block_tables = table_ = rig.poisoned<int32_t>(kPages);
        step_.row_seq = rig.upload(std::vector<int32_t>(n, 0));
        step_.host_seqs = &seq_;
        step_.runs = {&run_, 1};
        kv_.base = plane(1, size_t{kPages} * kPageTokens * 2 * kKvHeads * kDim);
        kv_.kv_heads = kKvHeads;
        kv_.head_dim = kDim;
        index_.raw = plane(2, size_t{kPages} * kPageTokens * kIndexDim);
        index_.pooled = plane(3, size_t{kMostBlocks} * kIndexDim);
        index_.dim = kIndexDim;
        qg_ = rig.upload(case_numbers(2, 1, 0, n * kHeads * 2 * kDim));
        k_ = rig.upload(case_numbers(2, 2, 0, n * kKvHeads * kDim));
        v_ = rig.upload(case_numbers(2, 3, 0, n * kKvHeads * kDim));
        ix_ = rig.upload(case_numbers(2, 4, 0, n * (kIndexHeads + 1) * kIndexDim));
        norm_ = make_plain(rig, case_numbers(2, 5, 0, kDim, 0.2f), DType::f16);
        index_norm_ = make_plain(rig, case_numbers(2, 6, 0, kIndexDim, 0.2f), DType::f16);
        q_ = rig.poisoned<float>(n * kHeads * kDim);
        iq_ = rig.poisoned<float>(n * kIndexHeads * kIndexDim);
        scores_ = rig.poisoned<float>(n * kMostBlocks);
        blocks_ = rig.poisoned<int32_t>(n * kTop);
        counts_ = rig.poisoned<int32_t>(n);
        out_ = rig.poisoned<float>(n * kHeads * kDim);
        OpsLimits limits;
        limits.rows = rows;
        limits.heads = kHeads;
        limits.head_dim = kDim;
        limits.max_blocks = kMostBlocks;
        limits.top_blocks = kTop;
        rig.reserve(limits);
    }

    Status enqueue(Ops& ops, Stream& s) {
        const Rope rope{64, 1e7f};
        QsaPrepareArgs prepare;
        prepare.step = step_;
        prepare.qg = qg_;
        prepare.k = k_;
        prepare.v = v_;
        prepare.ix = ix_;
        prepare.q_norm = prepare.k_norm = norm_;
        prepare.index_q_norm = index_norm_;
        prepare.q = q_;
        prepare.iq = iq_;
        prepare.kv = kv_;
        prepare.index = index_;
        prepare.rope = rope;
        prepare.heads = kHeads;
        prepare.index_heads = kIndexHeads;
        TERRACE_TRY(ops.qsa_prepare(s, prepare));
        TERRACE_TRY(ops.qsa_pool(s, QsaPoolArgs{step_, index_, index_norm_, rope}));
        IndexScoresArgs scores{step_, iq_, index_, scores_, kMostBlocks, 0, rows_, kIndexHeads};
        TERRACE_TRY(ops.index_scores(s, scores));
        SelectBlocksArgs select{step_, scores_, kMostBlocks, blocks_, counts_, 0, rows_, kTop, 4};
        TERRACE_TRY(ops.select_blocks(s, select));
        AttendArgs attend;
        attend.step = step_;
        attend.q = q_;
        attend.qg = qg_;
        attend.kv = kv_;
        attend.blocks = blocks_;
        attend.counts = counts_;
        attend.out = out_;
        attend.rows = rows_;
        attend.heads = kHeads;
        attend.top = kTop;
        attend.scale = 1.0f / 16.0f;
        return ops.attend(s, attend);
    }

    // Puts the sequence at `pos0`, its pages shifted by `pages_from`.
    void place(int pos0, int pages_from) {
        seq_.pos0 = pos0;
        std::vector<int32_t> table;
        for (int i = 0; i < kPages; ++i)
            table.push_back((7 * i + pages_from) % kPages);
        must(rig_.stream().copy(seqs_.device_pointer(), &seq_, sizeof seq_));
        must(rig_.stream().copy(table_.device_pointer(), table.data(), table.size() * 4));
        must(rig_.stream().synchronize());
    }
    std::vector<float> take() {
        std::vector<float> out = rig_.download(out_);
        for (int32_t n : rig_.download(counts_))
            out.push_back(static_cast<float>(n));
        must(rig_.stream().fill(out_.device_pointer(), std::byte{0xff}, out_.size() * 4));
        must(rig_.stream().fill(counts_.device_pointer(), std::byte{0xff}, counts_.size() * 4));
        return out;
    }

  private:
    std::byte* plane(uint64_t seed, size_t n) {
        const std::vector<float> values = case_numbers(seed, 8, 0, size_t{1} << 16);
        std::vector<uint16_t> halves(n);
        for (size_t i = 0; i < n; ++i)
            halves[i] = f32_to_f16(values[(i * 2654435761u >> 13) % values.size()]);
        return reinterpret_cast<std::byte*>(rig_.upload(halves).device_pointer());
    }
    Rig& rig_;
    int rows_;
    SeqRows seq_;
    RowRun run_;
    StepRows step_;
    DevSpan<SeqRows> seqs_;
    DevSpan<int32_t> table_, blocks_, counts_;
    RowSource kv_;
    IndexPlanes index_;
    DevSpan<float> qg_, k_, v_, ix_, q_, iq_, scores_, out_;
    PlainTensor norm_, index_norm_;
};

class CudaAttnReplay : public GpuTest {};

TEST_F(CudaAttnReplay, ACapturedLayerIsRightAtOtherPositionsAndPages) {
    Rig& rig = *gpu();
    for (const auto& [rows, kind] : {std::pair{1, RowKind::decode}, std::pair{5, RowKind::decode},
                                     std::pair{64, RowKind::prefill}}) {
        LayerOnGpu layer(rig, rows, kind);
        layer.place(2'500, 0);
        rig.call([&](Ops& ops, Stream& s) { return layer.enqueue(ops, s); });
        must(rig.stream().begin_capture());
        must(layer.enqueue(rig.ops(), rig.stream()));
        const auto graph = must(rig.stream().end_capture());
        int pages = 0;
        for (int pos0 : {2'500, 0, 17, 2'047, 2'048, 9'000, 18'300}) {
            layer.place(pos0, ++pages);
            rig.call([&](Ops& ops, Stream& s) { return layer.enqueue(ops, s); });
            const auto eager = layer.take();
            must(rig.stream().launch(*graph));
            const auto replayed = layer.take();
            EXPECT_TRUE(std::isfinite(eager[0]));
            expect_equal_bits(replayed, eager,
                              std::to_string(rows) + " rows at " + std::to_string(pos0));
        }
        rig.forget_buffers();
    }
}

}  // namespace
}  // namespace terrace::test
