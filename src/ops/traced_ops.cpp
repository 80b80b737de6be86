// SPDX-License-Identifier: MIT
#include "ops/traced_ops.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "ops/mirror_args.h"

namespace terrace {
namespace {

// Trace memory is bounded: a step of the largest model has about 700 operations.
constexpr size_t kMostSpans = size_t{1} << 20;

struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
};

class TracedOps final : public Ops {
  public:
    TracedOps(std::unique_ptr<Ops> inner, Device& device, std::FILE* file)
        : inner_(std::move(inner)), device_(device), file_(file), name_(inner_->name()) {}
    ~TracedOps() override { write(); }

    const std::string& name() const override { return name_; }
    size_t workspace_bytes(const OpsLimits& l) const override { return inner_->workspace_bytes(l); }
    Status reserve(const OpsLimits& l) override { return inner_->reserve(l); }
    size_t attend_state_bytes(int32_t rows, int32_t heads, int32_t head_dim) const override {
        return inner_->attend_state_bytes(rows, heads, head_dim);
    }

    Status embed(Stream& s, const EmbedArgs& a) override {
        return span(s, "embed", a.rows, [&] { return inner_->embed(s, a); });
    }
    Status hyper_read(Stream& s, const HyperReadArgs& a) override {
        return span(s, "hyper_read", a.rows, [&] { return inner_->hyper_read(s, a); });
    }
    Status hyper_write(Stream& s, const HyperWriteArgs& a) override {
        return span(s, "hyper_write", a.rows, [&] { return inner_->hyper_write(s, a); });
    }
    Status linear(Stream& s, const LinearArgs& a) override {
        std::string what = "linear";
        for (int j = 0; j < a.n_jobs; ++j)
            what += fmt::format(" {}x{}", a.jobs[j].weight->in, a.jobs[j].weight->out);
        return span(s, what, a.rows, [&] { return inner_->linear(s, a); });
    }
    Status gdn(Stream& s, const GdnArgs& a) override {
        return span(s, "gdn", a.step.n_rows, [&] { return inner_->gdn(s, a); });
    }
    Status qsa_prepare(Stream& s, const QsaPrepareArgs& a) override {
        return span(s, "qsa_prepare", a.step.n_rows, [&] { return inner_->qsa_prepare(s, a); });
    }
    Status qsa_pool(Stream& s, const QsaPoolArgs& a) override {
        return span(s, "qsa_pool", a.step.n_rows, [&] { return inner_->qsa_pool(s, a); });
    }
    Status index_scores(Stream& s, const IndexScoresArgs& a) override {
        return span(s, "index_scores", a.rows, [&] { return inner_->index_scores(s, a); });
    }
    Status select_blocks(Stream& s, const SelectBlocksArgs& a) override {
        return span(s, "select_blocks", a.rows, [&] { return inner_->select_blocks(s, a); });
    }
    Status resolve_blocks(Stream& s, const ResolveBlocksArgs& a) override {
        return span(s, "resolve_blocks", a.rows, [&] { return inner_->resolve_blocks(s, a); });
    }
    Status attend(Stream& s, const AttendArgs& a) override {
        return span(s, "attend", a.rows, [&] { return inner_->attend(s, a); });
    }
    Status route(Stream& s, const RouteArgs& a) override {
        return span(s, "route", a.rows, [&] { return inner_->route(s, a); });
    }
    Status moe(Stream& s, const MoeArgs& a) override {
        return span(s, "moe", a.rows, [&] { return inner_->moe(s, a); });
    }
    Status ple_inject(Stream& s, const PleInjectArgs& a) override {
        return span(s, "ple_inject", a.step.n_rows, [&] { return inner_->ple_inject(s, a); });
    }
    Status gather_rows(Stream& s, const GatherRowsArgs& a) override {
        return span(s, "gather_rows", a.n, [&] { return inner_->gather_rows(s, a); });
    }
    Status sample_candidates(Stream& s, const SampleCandidatesArgs& a) override {
        return span(s, "sample_candidates", a.rows,
                    [&] { return inner_->sample_candidates(s, a); });
    }

  private:
    struct Span {
        std::string what;
        int32_t rows;
        std::unique_ptr<Event> from, to;
    };

    template <class F>
    Status span(Stream& stream, std::string what, int32_t rows, F&& call) {
        if (spans_.size() >= kMostSpans) {
            ++left_out_;
            return call();
        }
        Span s{std::move(what), rows, nullptr, nullptr};
        TERRACE_ASSIGN(s.from, device_.make_event());
        TERRACE_ASSIGN(s.to, device_.make_event());
        TERRACE_TRY(stream.record(*s.from));
        TERRACE_TRY(call());
        TERRACE_TRY(stream.record(*s.to));
        spans_.push_back(std::move(s));
        return {};
    }

    void write() {
        fmt::print(file_.get(), "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        const char* comma = "";
        for (Span& s : spans_) {
            if (!s.to->wait_host()) break;
            const auto begin = s.from->since(*spans_.front().from), took = s.to->since(*s.from);
            if (!begin || !took) break;
            fmt::print(file_.get(),
                       "{}{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":{:.3f},"
                       "\"dur\":{:.3f},\"args\":{{\"rows\":{}}}}}",
                       comma, s.what, *begin * 1e3, *took * 1e3, s.rows);
            comma = ",\n";
        }
        fmt::print(file_.get(), "\n]}}\n");
        if (std::ferror(file_.get())) log_warn("trace: the file could not be written completely");
        if (left_out_ > 0)
            log_warn(fmt::format("trace: {} operations beyond the first {} are left out", left_out_,
                                 kMostSpans));
    }

    std::unique_ptr<Ops> inner_;
    Device& device_;
    std::unique_ptr<std::FILE, CloseFile> file_;
    std::string name_;
    std::vector<Span> spans_;
    int64_t left_out_ = 0;
};

}  // namespace

Result<std::unique_ptr<Ops>> make_traced_ops(std::unique_ptr<Ops> inner, Device& device,
                                             const std::filesystem::path& file) {
    std::FILE* f = std::fopen(file.c_str(), "w");
    if (!f)
        return Error{Code::io, fmt::format("--trace {}: {}", file.string(), std::strerror(errno))};
    return std::unique_ptr<Ops>(std::make_unique<TracedOps>(std::move(inner), device, f));
}

}  // namespace terrace
