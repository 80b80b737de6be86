// The operations on x86: AVX2 and AVX-512 kernels over a worker pool. Engine thread only; work runs
// to its end inside the call, whatever the stream.
//
// reserve() makes all scratch memory at once; after it no operation allocates, and a call that
// would need more is an error that names need and have. Invariant: a row's bits depend on its own
// inputs alone: not on batch mates, thread count, placement or instruction set. A gated delta net
// row also depends on where its sequence's chunk of the call began (64 tokens from the first row).
// Never touches the device beyond its one buffer.
// SPDX-License-Identifier: MIT
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "base/worker_pool.h"
#include "cpu/kernels.h"
#include "cpu/moe_linear.h"
#include "ops/ops.h"

namespace terrace {

struct CpuOpsOptions {
    IsaChoice isa = IsaChoice::auto_detect;
    // int16: exact integer sums for mul1 weights, about 2^-15 of a block's largest activation away
    // from f32. f32: activations as they are.
    Activations activations = Activations::int16;
};

// unsupported when the machine lacks the instruction set (make_reference_ops() then works). The
// device must be one whose memory the CPU can address; pool and device outlive the object.
Result<std::unique_ptr<Ops>> make_cpu_ops(Device& device, WorkerPool& pool,
                                          const CpuOpsOptions& options);

class CpuOps final : public Ops {
  public:
    CpuOps(Device& device, WorkerPool& pool, const KernelTable& kernels, Activations activations);

    const std::string& name() const override { return name_; }
    size_t workspace_bytes(const OpsLimits& limits) const override;
    Status reserve(const OpsLimits& limits) override;
    size_t attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim) const override;

    Status embed(Stream&, const EmbedArgs&) override;
    Status hyper_read(Stream&, const HyperReadArgs&) override;
    Status hyper_write(Stream&, const HyperWriteArgs&) override;
    Status linear(Stream&, const LinearArgs&) override;
    Status gdn(Stream&, const GdnArgs&) override;
    Status qsa_prepare(Stream&, const QsaPrepareArgs&) override;
    Status qsa_pool(Stream&, const QsaPoolArgs&) override;
    Status index_scores(Stream&, const IndexScoresArgs&) override;
    Status select_blocks(Stream&, const SelectBlocksArgs&) override;
    Status resolve_blocks(Stream&, const ResolveBlocksArgs& a) override {
        return resolve_blocks_on_host(a);
    }
    Status attend(Stream&, const AttendArgs&) override;
    Status route(Stream&, const RouteArgs&) override;
    Status moe(Stream&, const MoeArgs&) override;
    Status ple_inject(Stream&, const PleInjectArgs&) override;
    Status gather_rows(Stream&, const GatherRowsArgs&) override;
    Status sample_candidates(Stream&, const SampleCandidatesArgs&) override;

  private:
    // The one buffer: `linear` (scratch of linear alone, so that other operations may call it),
    // `shared` (the running operation's), `rows` (a float per row), then one part per thread.
    struct Layout {
        size_t linear = 0, shared = 0, rows = 0, thread = 0;  // bytes, multiples of 64
        size_t total(int threads) const {
            return linear + shared + rows + thread * static_cast<size_t>(threads);
        }
    };
    Layout layout(const OpsLimits& limits) const;
    Status need(const char* op, const Layout& call) const;

    std::byte* linear_scratch() const { return scratch_.device_pointer(); }
    std::byte* shared_scratch() const { return linear_scratch() + have_.linear; }
    float* row_scratch() const { return reinterpret_cast<float*>(shared_scratch() + have_.shared); }
    std::byte* thread_scratch(int worker) const {
        return shared_scratch() + have_.shared + have_.rows +
               have_.thread * static_cast<size_t>(worker);
    }
    void write_stream(const HyperWriteArgs& a, int64_t i) const;  // i: row * streams + stream
    float* thread_floats(int worker) const {
        return reinterpret_cast<float*>(thread_scratch(worker));
    }

    // Scratch of one call, in bytes.
    Layout linear_layout(int rows, int in, int out) const;
    Layout hyper_layout(int rows, int streams, int hidden, int rank) const;
    Layout gdn_layout(int rows, int channels, int v_heads, int k_dim, int v_dim) const;
    Layout ple_layout(int rows, int streams, int hidden) const;
    Layout attend_layout(int head_dim) const;
    Layout index_layout(int floats) const;
    Layout moe_layout(int rows, int k, int experts, int hidden, int width, int shared_width) const;
    int moe_block_rows(int rows, int k, int hidden) const;

    // fn(task, worker) for every task in [0, n), each once, in any order on any thread: tasks write
    // disjoint memory, so the result does not depend on it.
    template <class F>
    void tasks(int64_t n, F&& fn) const;

    struct MoePlan;
    void moe_plan(const MoeArgs& a, int first_row, int rows, MoePlan& plan) const;
    void moe_block(const MoeArgs& a, int first_row, int rows);
    void set_rope(const Rope& rope);
    void angles(int64_t position, float* cos_sin) const;

    Device& device_;
    WorkerPool& pool_;
    const KernelTable& kernels_;
    Activations activations_;
    LinearPieces pieces_;
    std::string name_;
    Buffer scratch_;
    Layout have_;

    static constexpr int kMaxRopeDims = 1024;
    Rope rope_;
    double inverse_frequency_[kMaxRopeDims / 2];
};

template <class F>
void CpuOps::tasks(int64_t n, F&& fn) const {
    if (n <= 1 || pool_.size() == 1) {
        for (int64_t i = 0; i < n; ++i)
            fn(i, 0);
        return;
    }
    alignas(64) std::atomic<int64_t> next{0};
    pool_.run([&](int worker, int) {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;)
            fn(i, worker);
    });
}

}  // namespace terrace
