// SPDX-License-Identifier: MIT
#include "cpu/cpu_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace terrace {
namespace {

size_t up64(size_t n) {
    return (n + 63) / 64 * 64;
}
size_t floats(int64_t n) {
    return up64(static_cast<size_t>(n) * sizeof(float));
}

// Rows of a hyper-connection taken at once: normed streams and gates of 64 rows of the real model
// are 5 MiB, and a weight read from memory serves them all.
constexpr int kHyperRows = 64;

TypedRun typed(const PlainTensor& t) {
    return {t.data, static_cast<int>(t.dtype)};
}

}  // namespace

static_assert(static_cast<int>(DType::f32) == 0 && static_cast<int>(DType::f16) == 1 &&
              static_cast<int>(DType::bf16) == 2);

Result<std::unique_ptr<Ops>> make_cpu_ops(Device& device, WorkerPool& pool,
                                          const CpuOpsOptions& options) {
    if (device.kind() == DeviceKind::cuda)
        return Error{Code::unsupported,
                     fmt::format("cpu operations cannot address the memory of {}", device.name())};
    const KernelTable* kernels = select_kernels(options.isa);
    if (!kernels)
        return Error{Code::unsupported,
                     "cpu operations: this processor lacks the instruction set (AVX2, FMA and F16C "
                     "at least): use the reference operations or another --isa"};
    return std::unique_ptr<Ops>(
        std::make_unique<CpuOps>(device, pool, *kernels, options.activations));
}

CpuOps::CpuOps(Device& device, WorkerPool& pool, const KernelTable& kernels,
               Activations activations)
    : device_(device),
      pool_(pool),
      kernels_(kernels),
      activations_(activations),
      pieces_(kernels, activations),
      name_(fmt::format("cpu {}", kernels.name)) {}

// ---- scratch -----------------------------------------------------------------------------------

CpuOps::Layout CpuOps::linear_layout(int rows, int in, int out) const {
    Exl3Tensor w;
    w.in = column_blocks_of(std::max(in, 1)) * kColumnBlock;
    w.out = column_blocks_of(std::max(out, 1)) * kColumnBlock;
    size_t most = 0;
    for (Codebook codebook : {Codebook::mul1, Codebook::mcg}) {
        w.codebook = codebook;
        const std::array<Exl3Job, 1> one{{{&w, nullptr, 0, 0, nullptr}}};
        most = std::max(most, exl3_scratch_bytes(kernels_, pool_.size(), rows, one, activations_));
    }
    Layout l;
    l.linear = up64(most);
    return l;
}

CpuOps::Layout CpuOps::hyper_layout(int rows, int streams, int hidden, int rank) const {
    const int block = std::min(rows, kHyperRows);
    const int64_t wide = int64_t{streams} * hidden;
    Layout l;
    l.shared =
        2 * floats(block * wide) + floats(int64_t{block} * rank) + floats(int64_t{block} * streams);
    return l;
}

CpuOps::Layout CpuOps::layout(const OpsLimits& m) const {
    Layout l;
    const auto add = [&](const Layout& o) {
        l.linear = std::max(l.linear, o.linear);
        l.shared = std::max(l.shared, o.shared);
        l.rows = std::max(l.rows, o.rows);
        l.thread = std::max(l.thread, o.thread);
    };
    // Eight jobs of one call at most, each with its own packed input.
    Layout jobs = linear_layout(m.rows, m.widest, m.widest);
    jobs.linear *= kMaxLinearJobs;
    add(jobs);
    add(linear_layout(m.head_rows, m.hidden, m.vocab));
    add(hyper_layout(m.rows, m.streams, m.hidden, m.rank));
    add(gdn_layout(m.rows, m.gdn_channels, m.gdn_v_heads, m.gdn_k_dim, m.gdn_v_dim));
    add(ple_layout(m.rows, m.streams, m.hidden));
    add(attend_layout(m.head_dim));
    add(index_layout(0));
    if (m.experts > 0)
        add(moe_layout(m.rows, m.k, m.experts, m.hidden, m.moe_width, m.shared_width));
    l.rows = std::max(l.rows, floats(std::max({m.rows, m.head_rows, 1})));
    return l;
}

size_t CpuOps::workspace_bytes(const OpsLimits& limits) const {
    return layout(limits).total(pool_.size());
}

Status CpuOps::reserve(const OpsLimits& limits) {
    const Layout wanted = layout(limits);
    scratch_ = Buffer();
    have_ = Layout();
    TERRACE_ASSIGN(scratch_, device_.allocate(wanted.total(pool_.size()), MemSpace::device,
                                              Fill::unspecified));
    have_ = wanted;
    return {};
}

Status CpuOps::need(const char* op, const Layout& call) const {
    if (call.linear <= have_.linear && call.shared <= have_.shared && call.rows <= have_.rows &&
        call.thread <= have_.thread)
        return {};
    return Error{Code::invalid_argument,
                 fmt::format("{}: need scratch of {} + {} + {} bytes and {} a thread, reserved are "
                             "{} + {} + {} and {}: call reserve() with limits that cover this call",
                             op, call.linear, call.shared, call.rows, call.thread, have_.linear,
                             have_.shared, have_.rows, have_.thread)};
}

// ---- rows --------------------------------------------------------------------------------------

Status CpuOps::embed(Stream&, const EmbedArgs& a) {
    const auto hidden = static_cast<size_t>(a.hidden);
    tasks(a.rows, [&](int64_t r, int) {
        float* h = a.h.device_pointer() + static_cast<size_t>(r * a.streams) * hidden;
        kernels_.ops.widen(
            {typed(a.table), int64_t{a.tokens.device_pointer()[r]} * a.hidden, a.hidden, h});
        for (int s = 1; s < a.streams; ++s)
            std::memcpy(h + static_cast<size_t>(s) * hidden, h, hidden * sizeof(float));
    });
    return {};
}

Status CpuOps::gather_rows(Stream&, const GatherRowsArgs& a) {
    for (int i = 0; i < a.n; ++i)
        std::memcpy(a.out.device_pointer() + int64_t{i} * a.width,
                    a.in.device_pointer() + int64_t{a.rows.device_pointer()[i]} * a.width,
                    static_cast<size_t>(a.width) * sizeof(float));
    return {};
}

Status CpuOps::sample_candidates(Stream&, const SampleCandidatesArgs& a) {
    tasks(a.rows, [&](int64_t r, int) { sample_candidates_row(a, static_cast<int32_t>(r)); });
    return {};
}

Status CpuOps::hyper_write(Stream&, const HyperWriteArgs& a) {
    // One stream of one row is a task: four for a decode row, 10 KiB each in the real model.
    tasks(int64_t{a.rows} * a.streams, [&](int64_t i, int) { write_stream(a, i); });
    return {};
}

void CpuOps::write_stream(const HyperWriteArgs& a, int64_t i) const {
    kernels_.ops.axpy({a.inj.device_pointer()[i], a.y.device_pointer() + i / a.streams * a.hidden,
                       a.h.device_pointer() + i * a.hidden, a.hidden});
}

// ---- linear ------------------------------------------------------------------------------------

Status CpuOps::linear(Stream&, const LinearArgs& a) {
    if (a.n_jobs < 0 || a.n_jobs > kMaxLinearJobs)
        return Error{Code::invalid_argument,
                     fmt::format("linear: {} jobs, at most {}", a.n_jobs, kMaxLinearJobs)};
    std::array<Exl3Job, kMaxLinearJobs> exl3;
    std::array<const LinearJob*, kMaxLinearJobs> plain;
    size_t n_exl3 = 0, n_plain = 0;
    int in = 0;
    for (int j = 0; j < a.n_jobs; ++j) {
        const LinearJob& job = a.jobs[j];
        if (!job.weight) return Error{Code::invalid_argument, "linear: a job without a weight"};
        const LinearWeight& w = *job.weight;
        if (j > 0 && w.in != in)
            return Error{Code::invalid_argument,
                         fmt::format("linear: jobs of {} and {} inputs in one call", in, w.in)};
        in = w.in;
        TERRACE_TRY(LinearPieces::check(w, w.in, w.out, "linear"));
        if (w.kind == LinearKind::exl3)
            exl3[n_exl3++] = {&w.exl3, job.y.device_pointer(), static_cast<size_t>(job.y_stride),
                              w.out, nullptr};
        else
            plain[n_plain++] = &job;
    }
    if (a.rows <= 0) return {};
    const float* x = a.x.device_pointer();
    if (n_exl3 > 0) {
        const std::span<const Exl3Job> jobs(exl3.data(), n_exl3);
        Layout call;
        call.linear = exl3_scratch_bytes(kernels_, pool_.size(), a.rows, jobs, activations_);
        TERRACE_TRY(need("linear", call));
        exl3_linear(kernels_, pool_, x, static_cast<size_t>(a.x_stride), a.rows, in, jobs,
                    activations_, {linear_scratch(), have_.linear});
    }
    if (n_plain == 0) return {};
    // Outputs of all plain jobs as one list of groups: about 64 KiB of weights, or a cache line of
    // y.
    const int group = std::max(16, 32768 / in / 16 * 16);
    int64_t n_groups = 0;
    for (size_t j = 0; j < n_plain; ++j)
        n_groups += (plain[j]->weight->out + group - 1) / group;
    tasks(n_groups, [&](int64_t task, int) {
        size_t j = 0;
        for (int64_t here; task >= (here = (plain[j]->weight->out + group - 1) / group); ++j)
            task -= here;
        const LinearJob& job = *plain[j];
        const int first = static_cast<int>(task) * group;
        dense_outputs(kernels_, dense_weight(*job.weight), first,
                      std::min(first + group, job.weight->out), x, static_cast<size_t>(a.x_stride),
                      a.rows, job.y.device_pointer(), static_cast<size_t>(job.y_stride));
    });
    return {};
}

// ---- hyper-connections
// ---------------------------------------------------------------------------

Status CpuOps::hyper_read(Stream& stream, const HyperReadArgs& a) {
    const HyperWeights& w = *a.weights;
    const int wide = a.streams * a.hidden;
    const bool with_inject = !a.inj.empty();
    TERRACE_TRY(LinearPieces::check(w.down, wide, a.rank, "hyper_read down"));
    TERRACE_TRY(LinearPieces::check(w.up, a.rank, wide, "hyper_read up"));
    if (with_inject)
        TERRACE_TRY(LinearPieces::check(w.inject, wide, a.streams, "hyper_read inject"));
    TERRACE_TRY(need("hyper_read", hyper_layout(a.rows, a.streams, a.hidden, a.rank)));
    const bool plain = w.down.kind == LinearKind::plain && w.up.kind == LinearKind::plain &&
                       (!with_inject || w.inject.kind == LinearKind::plain);
    const auto swide = static_cast<size_t>(wide), srank = static_cast<size_t>(a.rank);
    const size_t block = static_cast<size_t>(std::min(a.rows, kHyperRows));
    float* normed = reinterpret_cast<float*>(shared_scratch());
    float* gates = normed + floats(static_cast<int64_t>(block * swide)) / sizeof(float);
    float* mid = gates + floats(static_cast<int64_t>(block * swide)) / sizeof(float);
    const float share = 1.0f / static_cast<float>(a.streams);
    const HyperWriteArgs add{a.h, a.add_y, a.add_inj, a.rows, a.streams, a.hidden};
    for (int r0 = 0; r0 < a.rows; r0 += kHyperRows) {
        const int n = std::min(kHyperRows, a.rows - r0);
        float* h = a.h.device_pointer() + static_cast<size_t>(r0) * swide;
        float* x = a.x.device_pointer() + int64_t{r0} * a.hidden;
        float* inj = with_inject ? a.inj.device_pointer() + int64_t{r0} * a.streams : nullptr;
        tasks(int64_t{n} * a.streams, [&](int64_t i, int) {
            if (!a.add_y.empty()) write_stream(add, int64_t{r0} * a.streams + i);
            kernels_.ops.norm({h + i * a.hidden, typed(w.norm), i % a.streams * a.hidden, a.hidden,
                               a.eps, normed + i * a.hidden});
        });
        const auto activate_mid = [&](int begin, int end) {
            for (int r = 0; r < n; ++r) {
                float* m = mid + static_cast<size_t>(r) * srank + begin;
                kernels_.ops.unary({Unary::silu, share, m, m, end - begin});
            }
        };
        const auto activate_inj = [&](int begin, int end) {
            for (int r = 0; r < n; ++r) {
                float* i = inj + r * a.streams + begin;
                kernels_.ops.unary({Unary::two_sigmoid, share, i, i, end - begin});
            }
        };
        const auto mix = [&](int begin, int end) {
            for (int r = 0; r < n; ++r) {
                const size_t at = static_cast<size_t>(r) * swide + static_cast<size_t>(begin);
                kernels_.ops.mix({gates + at, normed + at, static_cast<size_t>(a.hidden), a.streams,
                                  end - begin, x + int64_t{r} * a.hidden + begin});
            }
        };
        if (!plain) {  // some weight is quantised: whole linears, then the rest
            LinearArgs l;
            l.x = {normed, static_cast<size_t>(n) * swide};
            l.x_stride = wide;
            l.rows = n;
            l.jobs[l.n_jobs++] = {&w.down, {mid, static_cast<size_t>(n) * srank}, a.rank};
            if (inj)
                l.jobs[l.n_jobs++] = {
                    &w.inject, {inj, static_cast<size_t>(n * a.streams)}, a.streams};
            TERRACE_TRY(linear(stream, l));
            activate_mid(0, a.rank);
            if (inj) activate_inj(0, a.streams);
            LinearArgs up;
            up.x = {mid, static_cast<size_t>(n) * srank};
            up.x_stride = a.rank;
            up.rows = n;
            up.n_jobs = 1;
            up.jobs[0] = {&w.up, {gates, static_cast<size_t>(n) * swide}, wide};
            TERRACE_TRY(linear(stream, up));
            tasks(column_blocks_of(a.hidden), [&](int64_t b, int) {
                mix(static_cast<int>(b) * kColumnBlock,
                    std::min(a.hidden, static_cast<int>(b + 1) * kColumnBlock));
            });
            continue;
        }
        // 16 outputs of down are 320 KiB in the real model; the last task is inject.
        const int down_tasks = (a.rank + 15) / 16;
        tasks(down_tasks + (inj ? 1 : 0), [&](int64_t t, int) {
            if (t == down_tasks) {
                dense_outputs(kernels_, dense_weight(w.inject), 0, a.streams, normed, swide, n, inj,
                              static_cast<size_t>(a.streams));
                return activate_inj(0, a.streams);
            }
            const int begin = static_cast<int>(t) * 16, end = std::min(begin + 16, a.rank);
            dense_outputs(kernels_, dense_weight(w.down), begin, end, normed, swide, n, mid, srank);
            activate_mid(begin, end);
        });
        // 128 channels of every stream: their gates and their mean.
        tasks(column_blocks_of(a.hidden), [&](int64_t b, int) {
            const int begin = static_cast<int>(b) * kColumnBlock;
            const int end = std::min(begin + kColumnBlock, a.hidden);
            for (int s = 0; s < a.streams; ++s)
                dense_outputs(kernels_, dense_weight(w.up), s * a.hidden + begin,
                              s * a.hidden + end, mid, srank, n, gates, swide);
            mix(begin, end);
        });
    }
    return {};
}

}  // namespace terrace
