// The contract between the model and a backend: coarse operations that enqueue work on a stream.
// They never block, never allocate after reserve(), and give each row the same bits whatever other
// rows share the call. Engine thread only. The scalar reference (ops/ref) is the oracle of all.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "base/worker_pool.h"
#include "ops/args.h"

namespace terrace {

struct ResolveBlocksArgs;  // ops/mirror_args.h

// What the largest call of each kind will need; a backend sizes its scratch memory from it.
struct OpsLimits {
    int32_t rows = 0;  // rows of a step
    int32_t hidden = 0, streams = 0, rank = 0;
    int32_t widest = 0;  // widest input or output of any linear but the head
    int32_t head_rows = 0, vocab = 0;
    int32_t experts = 0, k = 0, moe_width = 0, shared_width = 0;
    int32_t heads = 0, head_dim = 0;
    int32_t gdn_v_heads = 0, gdn_k_dim = 0, gdn_v_dim = 0, gdn_channels = 0;
    int32_t max_blocks = 0;  // blocks of the longest context
    int32_t top_blocks = 0;
};

class Ops {
  public:
    virtual ~Ops() = default;
    virtual const std::string& name() const = 0;  // "cpu avx512", "reference", ...

    virtual size_t workspace_bytes(const OpsLimits& limits) const = 0;
    virtual Status reserve(const OpsLimits& limits) = 0;
    // AttendArgs::state of so many rows; proportional to them.
    virtual size_t attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim) const = 0;

    virtual Status embed(Stream&, const EmbedArgs&) = 0;
    virtual Status hyper_read(Stream&, const HyperReadArgs&) = 0;
    virtual Status hyper_write(Stream&, const HyperWriteArgs&) = 0;
    virtual Status linear(Stream&, const LinearArgs&) = 0;
    virtual Status gdn(Stream&, const GdnArgs&) = 0;
    virtual Status qsa_prepare(Stream&, const QsaPrepareArgs&) = 0;
    virtual Status qsa_pool(Stream&, const QsaPoolArgs&) = 0;
    virtual Status index_scores(Stream&, const IndexScoresArgs&) = 0;
    virtual Status select_blocks(Stream&, const SelectBlocksArgs&) = 0;
    virtual Status resolve_blocks(Stream&, const ResolveBlocksArgs&) = 0;
    virtual Status attend(Stream&, const AttendArgs&) = 0;
    virtual Status route(Stream&, const RouteArgs&) = 0;
    virtual Status moe(Stream&, const MoeArgs&) = 0;
    virtual Status ple_inject(Stream&, const PleInjectArgs&) = 0;
    virtual Status gather_rows(Stream&, const GatherRowsArgs&) = 0;
    virtual Status sample_candidates(Stream&, const SampleCandidatesArgs&) = 0;
};

// One row of sample_candidates in a plain loop; allocates nothing.
void sample_candidates_row(const SampleCandidatesArgs& args, int32_t row);

// resolve_blocks where compute runs on the host; allocates nothing.
Status resolve_blocks_on_host(const ResolveBlocksArgs& args);

// Plain loops with double sums: slow, and right. Needs no CPU feature.
std::unique_ptr<Ops> make_reference_ops();

}  // namespace terrace
