// The sparse-attention layer between its projections, at the real model's dims, on pages in random
// order: each operation alone and the five in a chain, decode and prefill.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "gpu_bench.h"

namespace terrace::bench {
namespace {

constexpr int kHeads = 24, kKvHeads = 2, kDim = 256, kIndexHeads = 4, kIndexDim = 128, kTop = 512;
constexpr int kBlock = 4;
constexpr size_t kTokenBytes = 2 * kKvHeads * kDim * 2;

void check(const Status& s) {
    if (s) return;
    fmt::print(stderr, "{}\n", s.error().message);
    std::exit(1);
}

struct Case {
    std::string name;
    int context = 0, seqs = 1, rows = 1;  // tokens before the step, rows per sequence
    int layers = 1;                       // planes used in turn
};

// Planes of `bytes` filled by repeating the unit.
std::byte* filled(Gpu& gpu, const PlainTensor& unit, size_t bytes) {
    auto* p = gpu.space<std::byte>(bytes).device_pointer();
    const size_t unit_bytes = 2 * static_cast<size_t>(unit.size);
    for (size_t at = 0; at < bytes; at += unit_bytes)
        check(gpu.stream().copy(p + at, unit.data, std::min(unit_bytes, bytes - at)));
    return p;
}

class Layer {
  public:
    Layer(Gpu& gpu, const Case& c) : gpu_(gpu) {
        rows_ = c.seqs * c.rows;
        const int pages = (c.context + c.rows + kPageTokens - 1) / kPageTokens;
        const size_t tokens = static_cast<size_t>(c.seqs * pages) * kPageTokens;
        most_ = (c.context + c.rows) / kBlock;
        std::vector<int32_t> table(static_cast<size_t>(c.seqs * pages)), row_seq;
        std::iota(table.begin(), table.end(), 0);
        uint64_t random = 1;
        for (size_t i = table.size(); i > 1; --i) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            std::swap(table[i - 1], table[(random >> 33) % i]);
        }
        const bool decode = c.rows <= kDecodeRows;
        for (int s = 0; s < c.seqs; ++s) {
            seqs_.push_back({s * c.rows, c.rows, c.context, s * pages, pages, s});
            row_seq.insert(row_seq.end(), static_cast<size_t>(c.rows), s);
        }
        run_ = {0, rows_, decode ? RowKind::decode : RowKind::prefill};
        step_.n_rows = rows_;
        step_.n_seqs = c.seqs;
        step_.seqs = gpu.upload(seqs_);
        step_.block_tables = gpu.upload(table);
        step_.row_seq = gpu.upload(row_seq);
        step_.host_seqs = seqs_.data();
        step_.runs = {&run_, 1};

        const PlainTensor unit = gpu.plain_f16_vector(int64_t{8} << 20);
        for (int l = 0; l < c.layers; ++l) {
            RowSource kv;
            kv.base = filled(gpu, unit, tokens * kTokenBytes);
            kv.kv_heads = kKvHeads;
            kv.head_dim = kDim;
            IndexPlanes index;
            index.raw = filled(gpu, unit, tokens * kIndexDim * 2);
            index.pooled = filled(gpu, unit, tokens * kIndexDim * 2 / kBlock);
            index.dim = kIndexDim;
            kv_.push_back(kv);
            index_.push_back(index);
        }
        const auto n = static_cast<size_t>(rows_);
        prepare_.qg = gpu.random_floats(n * kHeads * 2 * kDim);
        prepare_.k = gpu.random_floats(n * kKvHeads * kDim);
        prepare_.v = gpu.random_floats(n * kKvHeads * kDim);
        prepare_.ix = gpu.random_floats(n * (kIndexHeads + 1) * kIndexDim);
        prepare_.q_norm = gpu.plain_f16_vector(kDim, 0.2f);
        prepare_.k_norm = gpu.plain_f16_vector(kDim, 0.2f);
        prepare_.index_q_norm = gpu.plain_f16_vector(kIndexDim, 0.2f);
        prepare_.q = gpu.space<float>(n * kHeads * kDim);
        prepare_.iq = gpu.space<float>(n * kIndexHeads * kIndexDim);
        prepare_.rope = {64, 1e7f};
        prepare_.heads = kHeads;
        prepare_.index_heads = kIndexHeads;
        norm_ = gpu.plain_f16_vector(kIndexDim, 0.2f);
        stride_ = (most_ + 64) / 64 * 64;
        scores_ = gpu.space<float>(n * static_cast<size_t>(stride_));
        blocks_ = gpu.space<int32_t>(n * kTop);
        counts_ = gpu.space<int32_t>(n);
        out_ = gpu.space<float>(n * kHeads * kDim);
        OpsLimits limits;
        limits.rows = rows_;
        limits.heads = kHeads;
        limits.head_dim = kDim;
        limits.max_blocks = most_ + 64;
        limits.top_blocks = kTop;
        check(gpu.ops().reserve(limits));
    }

    Status prepare(int i) {
        QsaPrepareArgs a = prepare_;
        a.step = step_;
        a.kv = kv_[at(i)];
        a.index = index_[at(i)];
        return gpu_.ops().qsa_prepare(gpu_.stream(), a);
    }
    Status pool(int i) {
        QsaPoolArgs a;
        a.step = step_;
        a.index = index_[at(i)];
        a.norm = norm_;
        a.rope = prepare_.rope;
        return gpu_.ops().qsa_pool(gpu_.stream(), a);
    }
    Status scores(int i) {
        IndexScoresArgs a;
        a.step = step_;
        a.iq = prepare_.iq;
        a.index = index_[at(i)];
        a.scores = scores_;
        a.stride = stride_;
        a.rows = rows_;
        a.index_heads = kIndexHeads;
        return gpu_.ops().index_scores(gpu_.stream(), a);
    }
    Status select(int) {
        SelectBlocksArgs a;
        a.step = step_;
        a.scores = scores_;
        a.stride = stride_;
        a.blocks = blocks_;
        a.counts = counts_;
        a.rows = rows_;
        a.top = kTop;
        return gpu_.ops().select_blocks(gpu_.stream(), a);
    }
    Status attend(int i) {
        AttendArgs a;
        a.step = step_;
        a.q = prepare_.q;
        a.qg = prepare_.qg;
        a.kv = kv_[at(i)];
        a.blocks = blocks_;
        a.counts = counts_;
        a.out = out_;
        a.rows = rows_;
        a.heads = kHeads;
        a.top = kTop;
        a.scale = 1.0f / 16.0f;
        return gpu_.ops().attend(gpu_.stream(), a);
    }
    Status chain(int i) {
        TERRACE_TRY(prepare(i));
        TERRACE_TRY(pool(i));
        TERRACE_TRY(scores(i));
        TERRACE_TRY(select(i));
        return attend(i);
    }
    double pooled_bytes() const {
        return static_cast<double>(seqs_.size()) * most_ * kIndexDim * 2;
    }
    int most() const { return most_; }

  private:
    size_t at(int i) const { return static_cast<size_t>(i) % kv_.size(); }

    Gpu& gpu_;
    int rows_ = 0, most_ = 0;
    std::vector<SeqRows> seqs_;
    RowRun run_;
    StepRows step_;
    std::vector<RowSource> kv_;
    std::vector<IndexPlanes> index_;
    QsaPrepareArgs prepare_;
    PlainTensor norm_;
    int64_t stride_ = 0;
    DevSpan<float> scores_, out_;
    DevSpan<int32_t> blocks_, counts_;
};

void measure(Gpu& gpu, const Case& c) {
    Layer layer(gpu, c);
    const double rows = c.seqs * c.rows, most = layer.most();
    const double tokens = std::min(most, double{kTop}) * kBlock;
    const int per_graph = c.rows > kDecodeRows ? 4 : 12;
    const auto time = [&](auto&& op) { return gpu.time_us(per_graph, op); };
    const auto name = [&](const char* op) { return fmt::format("{}: {}", c.name, op); };
    // The chain first: it fills what the others read.
    const double chain = time([&](int i) { return layer.chain(i); });
    report(name("qsa_prepare"), time([&](int i) { return layer.prepare(i); }),
           rows * (2 * kHeads + 3 * kKvHeads) * kDim * 4, 0);
    report(name("qsa_pool"), time([&](int i) { return layer.pool(i); }),
           rows * kIndexDim * 2 * 1.25, 0);
    const double scores = time([&](int i) { return layer.scores(i); });
    report(name("index_scores"), scores, layer.pooled_bytes() + rows * most * 4,
           rows * most * kIndexHeads * kIndexDim * 4);
    const double select = time([&](int i) { return layer.select(i); });
    report(name("select_blocks"), select, rows * most * 4, 0);
    const double both = time([&](int i) -> Status {
        TERRACE_TRY(layer.scores(i));
        return layer.select(i);
    });
    report(name("index_scores + select_blocks"), both, layer.pooled_bytes(), 0);
    report(name("attend"), time([&](int i) { return layer.attend(i); }),
           rows * tokens * kTokenBytes, rows * tokens * kHeads * kDim * 4);
    report(name("all five"), chain, 0, 0);
    gpu.forget();
}

const Register decode("attn_decode", [](Gpu& gpu) {
    for (const auto& [context, layers, label] :
         {std::tuple{8 << 10, 12, "8k"}, {128 << 10, 12, "128k"}, {(1 << 20) - 64, 2, "1M"}})
        for (int rows : {1, 4, 16})
            measure(gpu, {fmt::format("decode {} x {}", label, rows), context, 1, rows, layers});
    measure(gpu, {"decode 8k, 16 sequences", 8 << 10, 16, 1, 4});
});
const Register prefill("attn_prefill", [](Gpu& gpu) {
    measure(gpu, {"prefill 2048 rows at 0", 0, 1, 2048, 2});
    measure(gpu, {"prefill 2048 rows at 8k", 8 << 10, 1, 2048, 2});
    measure(gpu, {"prefill 2048 rows at 64k", 64 << 10, 1, 2048, 2});
});

}  // namespace
}  // namespace terrace::bench
