// The scalar reference backend. Allocates freely and is single-threaded: an oracle, and what runs
// on a machine without AVX2 (the caller prints that).
// SPDX-License-Identifier: MIT
#pragma once
#include "ops/ops.h"

namespace terrace::ref {

class ReferenceOps final : public Ops {
  public:
    const std::string& name() const override { return name_; }
    size_t workspace_bytes(const OpsLimits&) const override { return 0; }
    Status reserve(const OpsLimits&) override { return {}; }
    size_t attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim) const override {
        return static_cast<size_t>(rows) * static_cast<size_t>(heads) *
               (2 + static_cast<size_t>(head_dim)) * sizeof(double);
    }

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
    std::string name_ = "reference";
};

}  // namespace terrace::ref
