// Ops for NVIDIA GPUs: owns the scratch arena, counters and boxes, hands each call to its family.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "cuda/attn/attn_ops.h"
#include "cuda/cuda_backend.h"
#include "cuda/device/cuda_device.h"
#include "cuda/gemm/gemm.h"
#include "cuda/linear/linear_ops.h"
#include "cuda/moe/moe_ops.h"
#include "cuda/recurrent/recurrent_ops.h"
#include "cuda/sample/candidates.h"
#include "cuda/streams/stream_ops.h"

namespace terrace {
namespace {

class CudaOps final : public Ops {
  public:
    explicit CudaOps(cuda::CudaDevice& device) : device_(device), name_("cuda " + device.name()) {}

    const std::string& name() const override { return name_; }

    size_t workspace_bytes(const OpsLimits& l) const override {
        const cuda::DeviceInfo& info = device_.info();
        return own_bytes() +
               std::max({cuda::linear_scratch_bytes(info, l), cuda::gemm_scratch_bytes(info, l),
                         cuda::moe_scratch_bytes(info, l), cuda::attn_scratch_bytes(info, l),
                         cuda::recurrent_scratch_bytes(info, l),
                         cuda::stream_scratch_bytes(info, l), cuda::sample_scratch_bytes(l),
                         size_t{256}});
    }

    Status reserve(const OpsLimits& limits) override {
        const size_t bytes = workspace_bytes(limits);
        if (bytes > memory_.bytes()) {
            memory_ = {};
            TERRACE_ASSIGN(memory_, device_.allocate(bytes, MemSpace::device, Fill::zero));
        }
        return {};
    }

    size_t attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim) const override {
        return cuda::attend_state_bytes(rows, heads, head_dim);
    }

    Status embed(Stream& s, const EmbedArgs& a) override { return cuda::embed(at(s), a); }
    Status hyper_read(Stream& s, const HyperReadArgs& a) override {
        return cuda::hyper_read(at(s), a);
    }
    Status hyper_write(Stream& s, const HyperWriteArgs& a) override {
        return cuda::hyper_write(at(s), a);
    }
    Status linear(Stream& s, const LinearArgs& a) override { return cuda::linear(at(s), a); }
    Status gdn(Stream& s, const GdnArgs& a) override { return cuda::gdn(at(s), a); }
    Status qsa_prepare(Stream& s, const QsaPrepareArgs& a) override {
        return cuda::qsa_prepare(at(s), a);
    }
    Status qsa_pool(Stream& s, const QsaPoolArgs& a) override { return cuda::qsa_pool(at(s), a); }
    Status index_scores(Stream& s, const IndexScoresArgs& a) override {
        return cuda::index_scores(at(s), a);
    }
    Status select_blocks(Stream& s, const SelectBlocksArgs& a) override {
        return cuda::select_blocks(at(s), a);
    }
    Status resolve_blocks(Stream& s, const ResolveBlocksArgs& a) override {
        return cuda::resolve_blocks(at(s), a);
    }
    Status attend(Stream& s, const AttendArgs& a) override { return cuda::attend(at(s), a); }
    Status route(Stream& s, const RouteArgs& a) override { return cuda::route(at(s), a); }
    Status moe(Stream& s, const MoeArgs& a) override { return cuda::moe(at(s), a); }
    Status ple_inject(Stream& s, const PleInjectArgs& a) override {
        return cuda::ple_inject(at(s), a);
    }
    Status gather_rows(Stream& s, const GatherRowsArgs& a) override {
        return cuda::gather_rows(at(s), a);
    }
    Status sample_candidates(Stream& s, const SampleCandidatesArgs& a) override {
        return cuda::sample_candidates(at(s), a);
    }

  private:
    // Counters and boxes.
    static constexpr size_t own_bytes() {
        return (size_t{cuda::kCounters} + size_t{cuda::kBoxes}) * sizeof(uint32_t);
    }

    cuda::Launch at(Stream& s) {
        cuda::Launch l;
        l.stream = static_cast<cuda::CudaStream&>(s).handle();
        l.info = &device_.info();
        l.counters = reinterpret_cast<uint32_t*>(memory_.device_pointer());
        l.boxes = l.counters + cuda::kCounters;
        l.scratch = memory_.device_pointer() + own_bytes();
        l.scratch_bytes = memory_.bytes() - own_bytes();
        return l;
    }

    cuda::CudaDevice& device_;
    std::string name_;
    Buffer memory_;  // counters, boxes, scratch
};

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(Device& device) {
    if (device.kind() != DeviceKind::cuda)
        return Error{Code::invalid_argument, fmt::format("{} is not a CUDA device", device.name())};
    return std::unique_ptr<Ops>(std::make_unique<CudaOps>(static_cast<cuda::CudaDevice&>(device)));
}

}  // namespace terrace
