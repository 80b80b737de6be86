// A model that is ready to compute: backend, weights, tables, planes, states, activations, each
// charged to its role. Opening either gives all of it or an error that says what was missing. Owned
// and used by the engine thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <memory>
#include <optional>

#include "engine/kv_trace_observer.h"
#include "engine/options.h"
#include "model/model.h"
#include "model/placement.h"
#include "model/synthetic.h"
#include "text/tokenizer.h"
#include "tier/memory_plan.h"

namespace terrace {

class Runtime {
  public:
    static Result<std::unique_ptr<Runtime>> open(const EngineOptions& options);
    // Random weights of `config`; no tokenizer.
    static Result<std::unique_ptr<Runtime>> open_synthetic(const EngineOptions& options,
                                                           const ModelConfig& config,
                                                           const SyntheticOptions& synthetic);
    ~Runtime();

    const EngineOptions& options() const { return options_; }  // with every default filled in
    const ModelConfig& config() const { return model_->config(); }
    const GenerationConfig& generation() const { return generation_; }
    const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
    Model& model() { return *model_; }
    SequenceStore& store() { return *store_; }
    Stream& stream() { return *stream_; }
    const Ops& ops() const { return *backend_.ops; }
    Status sample_candidates(const SampleCandidatesArgs& args) {
        return backend_.ops->sample_candidates(*stream_, args);
    }
    const Backend& backend() const { return backend_; }

    const MemoryPlan& plan() const { return plan_; }  // made before anything was allocated
    MemoryPlan report() const;                        // what is charged now, in the same rows
    int64_t ngram_rows_read() const;
    // Of the K/V mirror, one per sparse-attention layer; empty without one. Waits for the stream.
    Result<std::vector<MirrorCounters>> mirror_counters() const;
    KvTraffic kv_traffic() const { return staging_ ? staging_->traffic() : KvTraffic{}; }

  private:
    Runtime() : budget_("host memory", 0), device_budget_("GPU memory", 0) {}
    Status finish(const ModelConfig& config, ModelWeights weights, std::vector<NgramTable> tables);
    Status resolve(const ModelConfig& config);
    Status open_backend_and_trace();

    EngineOptions options_;
    GenerationConfig generation_;
    std::optional<Tokenizer> tokenizer_;
    std::optional<ModelDir> dir_;
    Backend backend_;
    // Of the device's memory: budget_ itself where that is the host's.
    Budget& device_budget() { return backend_.device->unified() ? budget_ : device_budget_; }

    Budget budget_, device_budget_;
    std::vector<Reservation>
        mapped_;  // charges of weights that lie in file maps or synthetic memory
    MemoryPlan plan_;
    std::unique_ptr<Stream> stream_;
    std::unique_ptr<SequenceStore> store_;
    std::unique_ptr<KvStaging> staging_;
    std::unique_ptr<Model> model_;
    std::optional<KvTraceObserver> kv_trace_;
};

// Sizes of the largest step under these options.
StepLimits step_limits(const EngineOptions& options);

// The plan of a model under options whose defaults are filled in (see resolve_options). `ops` may
// be null: its workspace is then left out.
struct WeightHome {
    std::string where;                // "file map", "host memory", "GPU memory"
    MemSpace space = MemSpace::host;  // device: everything but what feeds it lies in GPU memory
    WeightBytes bytes;                // as placed there; not used for host
};
MemoryPlan plan_memory(const ModelConfig& config, const std::map<std::string, WeightClass>& classes,
                       const EngineOptions& options, const Ops* ops, const WeightHome& home);

// Planes of a model under options whose placement is decided.
PlaneGeometry plane_geometry(const ModelConfig& config, const EngineOptions& options);

// Decides KvOffload::fit: the device's memory while the plan keeps within its limit.
void place_planes(const ModelConfig& config, const std::map<std::string, WeightClass>& classes,
                  EngineOptions& options, const Ops* ops, const WeightHome& home);

// Decides kMirrorAuto, after place_planes(): nothing unless K and V are on the host of a device with
// its own memory, else as many blocks as fit beside the plan. An explicit size becomes whole blocks.
void place_mirror(const ModelConfig& config, const std::map<std::string, WeightClass>& classes,
                  EngineOptions& options, const Ops* ops, const WeightHome& home);
// Blocks a layer in the mirror, of a size that is decided.
int32_t mirror_slots(const PlaneGeometry& planes, const EngineOptions& options);
// Decides the arena's size where staging is on: off when planes are not on the host of a device with
// its own memory, or nothing useful fits. Error: an arena that was asked for is too small.
Status place_arena(const ModelConfig& config, const std::map<std::string, WeightClass>& classes,
                   EngineOptions& options, const Ops* ops, const WeightHome& home);

// Where weights of these classes would live, before any was read: sizes as in the files.
WeightHome planned_home(const Backend& backend, const std::map<std::string, WeightClass>& classes);

// Fills in defaults and checks ranges: the error names the option, its value and what is allowed.
Result<EngineOptions> resolve_options(EngineOptions options, const ModelConfig& config);

}  // namespace terrace
