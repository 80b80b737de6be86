// SPDX-License-Identifier: MIT
#include "engine/runtime.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "ops/traced_ops.h"

namespace terrace {
namespace {

// Pages of K/V planes that are pinned at a time: 32 MiB per layer of the real model, about 10 ms in
// which the driver may hold up launches. 16 Ki tokens to begin with.
constexpr int32_t kGrowthPages = 64;
constexpr int32_t kMaxContext = 1 << 24;  // 16 M tokens: positions and block indices stay int32

int32_t pages_of(const EngineOptions& o) {
    // A page more per sequence: each may end inside one.
    return (o.pool_tokens + kPageTokens - 1) / kPageTokens + o.max_seqs;
}

constexpr uint64_t kMostArena = uint64_t{1} << 30, kLeastArena = uint64_t{32} << 20;  // of a half

// Without an arena when options say so, or before they are decided.
StagingGeometry staging_geometry(const ModelConfig& config, const EngineOptions& o,
                                 const Ops* ops) {
    if (o.kv_staging == KvStagingMode::off || o.kv_arena == 0 || !ops) return {};
    StagingGeometry none;
    none.planes = plane_geometry(config, o);
    const uint64_t half_pages = o.kv_arena / none.page_bytes();
    return Model::staging_geometry(config, step_limits(o), none.planes,
                                   static_cast<int32_t>(std::min<uint64_t>(half_pages, INT32_MAX)),
                                   *ops);
}

// Whoever opens an engine, a program or the C API, hears of what is slower than asked.
void warn_of(const Backend& backend) {
    for (const std::string& note : backend.notes)
        log_warn(note);
    for (const std::string& remark : backend.remarks)
        log_warn(remark);
}

}  // namespace

StepLimits step_limits(const EngineOptions& o) {
    StepLimits l;
    l.rows = o.prefill_chunk + o.max_seqs;
    l.seqs = o.max_seqs;
    l.logit_rows = o.logit_rows;
    l.max_tokens = o.ctx;
    return l;
}

Result<EngineOptions> resolve_options(EngineOptions o, const ModelConfig& config) {
    const auto bad = [](const char* flag, int64_t value, const std::string& need) {
        return Error{Code::invalid_argument, fmt::format("{} is {}: need {}", flag, value, need)};
    };
    if (o.ctx == 0) o.ctx = std::min(config.max_positions, 8192);
    if (o.ctx < 1 || o.ctx > kMaxContext)
        return bad("--ctx", o.ctx, fmt::format("1..{}", kMaxContext));
    if (o.max_seqs < 1 || o.max_seqs > 1024) return bad("--max-seqs", o.max_seqs, "1..1024");
    if (o.prefill_chunk < kGdnChunk || o.prefill_chunk > 65536 || o.prefill_chunk % kGdnChunk != 0)
        return bad("--prefill-chunk", o.prefill_chunk, "a multiple of 64, 64..65536");
    const int64_t all = int64_t{o.ctx} * o.max_seqs;
    if (o.pool_tokens == 0)
        o.pool_tokens = static_cast<int32_t>(std::min<int64_t>(all, INT32_MAX / 2));
    if (o.pool_tokens < o.ctx)
        return bad("--pool-tokens", o.pool_tokens, fmt::format("at least --ctx ({})", o.ctx));
    if (o.logit_rows == 0) o.logit_rows = o.max_seqs;
    o.logit_rows = std::clamp(o.logit_rows, o.max_seqs, o.prefill_chunk + o.max_seqs);
    if (o.host_limit == 0) o.host_limit = available_memory();
    return o;
}

PlaneGeometry plane_geometry(const ModelConfig& config, const EngineOptions& o) {
    PlaneGeometry g = Model::plane_geometry(config, o.kv_type, pages_of(o));
    if (o.kv_offload == KvOffload::host) {
        g.kv_space = MemSpace::host_pinned;
        g.raw_space = o.kv_raw;
        g.growth_pages = kGrowthPages;
    }
    return g;
}

MemoryPlan plan_memory(const ModelConfig& c, const std::map<std::string, WeightClass>& classes,
                       const EngineOptions& o, const Ops* ops, const WeightHome& home) {
    MemoryPlan plan;
    plan.limit = o.host_limit;
    const bool on_device = home.space == MemSpace::device;
    if (on_device) plan.device_limit = o.vram_limit;
    const std::string& where = home.where;
    uint64_t weights = 0, experts = 0, ngram = 0;
    for (const auto& [name, k] : classes)
        (name == "routed experts" ? experts
         : name == "n-gram table" ? ngram
                                  : weights) += static_cast<uint64_t>(k.bytes);
    if (on_device) {
        weights = home.bytes.weights;
        experts = home.bytes.experts;
    }
    const StepLimits limits = step_limits(o);
    const PlaneGeometry planes = plane_geometry(c, o);
    const StateGeometry states = Model::state_geometry(c, 2 * o.max_seqs);
    const uint64_t plane_tokens =
        static_cast<uint64_t>(planes.layers) * static_cast<uint64_t>(planes.pages) * kPageTokens;
    const uint64_t pooled_bytes = static_cast<uint64_t>(planes.layers) *
                                  static_cast<uint64_t>(planes.pages) *
                                  planes.pooled_bytes_per_page();
    const std::string pages =
        fmt::format("{} layers x {} pages of {} tokens", planes.layers, planes.pages, kPageTokens);
    const char* host = on_device ? "GPU memory" : "host memory";
    plan.rows.push_back({Role::weights, weights, where, "all but experts and n-gram table"});
    plan.rows.push_back({Role::experts, experts, where,
                         fmt::format("{} layers x {} experts", c.n_layers, c.n_experts)});
    plan.rows.push_back(
        {Role::kv, plane_tokens * planes.kv_bytes_per_token(), host,
         fmt::format("{}, {} B/token", pages,
                     static_cast<uint64_t>(planes.layers) * planes.kv_bytes_per_token())});
    const int32_t mirrored = mirror_slots(planes, o);
    plan.rows.push_back({Role::kv_mirror, KvMirror::bytes(planes, mirrored), host,
                         fmt::format("{} layers x {} blocks of {} tokens", planes.layers, mirrored,
                                     planes.block_tokens)});
    plan.rows.push_back(
        {Role::raw_index, plane_tokens * planes.raw_bytes_per_token(), host, pages});
    plan.rows.push_back({Role::pooled_index, pooled_bytes, host, pages});
    plan.rows.push_back({Role::state, static_cast<uint64_t>(states.slots) * states.bytes_per_slot(),
                         host,
                         fmt::format("{} slots (one per sequence and checkpoint)", states.slots)});
    plan.rows.push_back({Role::activations, Model::activation_bytes(c, limits), host,
                         fmt::format("steps of up to {} rows", limits.rows)});
    plan.rows.push_back({Role::workspace,
                         ops ? ops->workspace_bytes(Model::ops_limits(c, limits)) : 0, host,
                         ops ? ops->name() : ""});
    plan.rows.push_back({Role::logits, Model::logit_bytes(c, limits), host,
                         fmt::format("{} rows of {}", limits.logit_rows, c.vocab)});
    for (MemoryRow& row : plan.rows) {
        row.space = home.space;
        const bool off = (row.role == Role::kv && planes.kv_space != MemSpace::device) ||
                         (row.role == Role::raw_index && planes.raw_space != MemSpace::device);
        if (!on_device || !off) continue;
        row.space = MemSpace::host_pinned;
        row.where = "pinned host";
    }
    plan.rows.push_back({Role::staging, Model::staging_bytes(c, limits), "host memory",
                         "metadata and n-gram rows of a step"});
    if (const StagingGeometry staging = staging_geometry(c, o, ops); staging.device_bytes() > 0) {
        plan.rows.back().bytes += staging.host_bytes();
        plan.rows.push_back({Role::kv_arena, staging.device_bytes(), host,
                             fmt::format("2 halves of {} pages of a layer, {} of a step's own",
                                         staging.arena.half_pages, staging.arena.own_pages),
                             home.space});
    }
    // A mapped or pread table is on disk; only a copy takes memory.
    plan.rows.push_back({Role::ngram, o.ngram == NgramPlacement::ram ? ngram : 0, "host memory",
                         "copied to memory"});
    return plan;
}

void place_planes(const ModelConfig& config, const std::map<std::string, WeightClass>& classes,
                  EngineOptions& options, const Ops* ops, const WeightHome& home) {
    if (options.kv_offload != KvOffload::fit) return;
    options.kv_offload = KvOffload::off;
    if (home.space != MemSpace::device) return;
    const MemoryPlan plan = plan_memory(config, classes, options, ops, home);
    if (plan.device_limit != 0 && plan.total(MemSpace::device) > plan.device_limit)
        options.kv_offload = KvOffload::host;
}

namespace {
// As many blocks a layer as a mirror may have of itself. 8192 are 64 MiB a layer of the real model:
// sixteen steps' worth of other blocks. Fewer than 1024 push out each other within a step.
constexpr int32_t kMostAutoSlots = 8192, kFewestAutoSlots = 1024;

uint64_t block_bytes(const PlaneGeometry& g) {
    return static_cast<uint64_t>(g.block_tokens) * g.kv_bytes_per_token();
}
}  // namespace

int32_t mirror_slots(const PlaneGeometry& g, const EngineOptions& o) {
    if (o.kv_mirror == kMirrorAuto || o.kv_mirror == 0 || g.layers == 0) return 0;
    const uint64_t blocks =
        static_cast<uint64_t>(g.pages) * static_cast<uint64_t>(kPageTokens / g.block_tokens);
    const uint64_t of_size = o.kv_mirror / (static_cast<uint64_t>(g.layers) * block_bytes(g));
    return static_cast<int32_t>(std::min(blocks, std::max<uint64_t>(of_size, 1)));
}

void place_mirror(const ModelConfig& config, const std::map<std::string, WeightClass>& classes,
                  EngineOptions& options, const Ops* ops, const WeightHome& home) {
    const bool own_memory = home.space == MemSpace::device;
    const bool on_host = own_memory && options.kv_offload == KvOffload::host;
    if (own_memory && !on_host) {
        if (options.kv_mirror != kMirrorAuto && options.kv_mirror != 0)
            log_warn("--kv-mirror is of no use: K and V are in GPU memory");
        options.kv_mirror = 0;
        return;
    }
    const PlaneGeometry g = plane_geometry(config, options);
    const auto set = [&](int32_t slots) {
        options.kv_mirror =
            static_cast<uint64_t>(slots) * static_cast<uint64_t>(g.layers) * block_bytes(g);
    };
    if (options.kv_mirror != kMirrorAuto) return set(mirror_slots(g, options));
    options.kv_mirror = 0;
    if (!on_host) return;
    const MemoryPlan plan = plan_memory(config, classes, options, ops, home);
    for (int32_t slots = kMostAutoSlots; slots >= kFewestAutoSlots; slots /= 2) {
        set(slots);
        const int32_t fewer = mirror_slots(g, options);  // the pool may have fewer blocks
        if (plan.device_limit == 0 ||
            plan.total(MemSpace::device) + KvMirror::bytes(g, fewer) <= plan.device_limit)
            return set(fewer);
    }
    options.kv_mirror = 0;
    log_warn(
        "no GPU memory is left for a mirror of K/V blocks: every step reads its blocks from "
        "host memory");
}

Status place_arena(const ModelConfig& config, const std::map<std::string, WeightClass>& classes,
                   EngineOptions& o, const Ops* ops, const WeightHome& home) {
    if (home.space != MemSpace::device || o.kv_offload != KvOffload::host || !ops)
        o.kv_staging = KvStagingMode::off;
    if (o.kv_staging == KvStagingMode::off) {
        o.kv_arena = 0;
        return {};
    }
    StagingGeometry geometry;
    geometry.planes = plane_geometry(config, o);
    const uint64_t page = geometry.page_bytes();
    const uint64_t context = (static_cast<uint64_t>(o.ctx) + kPageTokens - 1) / kPageTokens;
    // Passes of a half that the longest history may take are bounded by their tables.
    const uint64_t least = (context + kMostPasses - 1) / kMostPasses * page;
    if (o.kv_arena != 0) {
        if (o.kv_arena < least)
            return Error{Code::invalid_argument,
                         fmt::format("--kv-arena is {}: need at least {} for --ctx {}",
                                     human_bytes(o.kv_arena), human_bytes(least), o.ctx)};
        return {};
    }
    const uint64_t want = std::min(context * page, std::max(kMostArena / page, uint64_t{1}) * page);
    const uint64_t enough = std::min(want, std::max(kLeastArena / page * page, least));
    const MemoryPlan plan = plan_memory(config, classes, o, ops, home);
    const uint64_t used = plan.total(MemSpace::device);
    for (o.kv_arena = want;; o.kv_arena = std::max(enough, o.kv_arena / 8 * 7 / page * page)) {
        const uint64_t need = staging_geometry(config, o, ops).device_bytes();
        if (plan.device_limit == 0 || used + need <= plan.device_limit) return {};
        if (o.kv_arena == enough) break;
    }
    o.kv_staging = KvStagingMode::off;
    o.kv_arena = 0;
    return {};
}

WeightHome planned_home(const Backend& backend, const std::map<std::string, WeightClass>& classes) {
    WeightHome home{"file map", MemSpace::host, {}};
    if (backend.device->unified()) return home;
    home = {"GPU memory", MemSpace::device, {}};
    for (const auto& [name, k] : classes)
        if (name != "n-gram table")
            (name == "routed experts" ? home.bytes.experts : home.bytes.weights) +=
                static_cast<uint64_t>(k.bytes);
    return home;
}

Status Runtime::resolve(const ModelConfig& config) {
    TERRACE_ASSIGN(options_, resolve_options(std::move(options_), config));
    return {};
}

Status Runtime::open_backend_and_trace() {
    TERRACE_ASSIGN(backend_, open_backend(options_.backend));
    warn_of(backend_);
    if (options_.trace.empty()) return {};
    TERRACE_ASSIGN(backend_.ops,
                   make_traced_ops(std::move(backend_.ops), *backend_.device, options_.trace));
    options_.graphs = Model::Graphs::off;
    return {};
}

// The plan is made and checked before the first large allocation; allocations then charge the same
// numbers.
Status Runtime::finish(const ModelConfig& config, ModelWeights weights,
                       std::vector<NgramTable> tables) {
    Device& device = *backend_.device;
    TERRACE_ASSIGN(stream_, device.make_stream());
    WeightHome home{dir_ ? "file map" : "host memory", MemSpace::host, {}};
    if (!device.unified()) {
        home = {"GPU memory", MemSpace::device, placed_bytes(weights)};
        // Synthetic weights are there already.
        if (options_.vram_limit == 0)
            options_.vram_limit = device.free_bytes() + device_budget().used();
    }
    place_planes(config, weights.classes, options_, backend_.ops.get(), home);
    place_mirror(config, weights.classes, options_, backend_.ops.get(), home);
    const bool may_stage = options_.kv_staging != KvStagingMode::off;
    TERRACE_TRY(place_arena(config, weights.classes, options_, backend_.ops.get(), home));
    if (may_stage && options_.kv_staging == KvStagingMode::off && !device.unified() &&
        options_.kv_offload == KvOffload::host)
        log_warn(
            "prefill reads K and V over the link row by row: no GPU memory is left for an "
            "arena to stage them: lower --ctx or --prefill-chunk, or raise --vram-limit");
    plan_ = plan_memory(config, weights.classes, options_, backend_.ops.get(), home);
    TERRACE_TRY(plan_.check());
    const PlaneGeometry geometry = plane_geometry(config, options_);
    if (!device.unified() && geometry.kv_space != MemSpace::device)
        log_info(
            fmt::format("K/V planes: {} of host memory per layer for {} layers, pinned in the "
                        "background from {} tokens on",
                        human_bytes((plan_.bytes(Role::kv) + plan_.bytes(Role::raw_index)) /
                                    static_cast<uint64_t>(std::max(geometry.layers, 1))),
                        geometry.layers, kGrowthPages * kPageTokens));
    if (device.unified())
        for (const Role role : {Role::weights, Role::experts}) {
            TERRACE_ASSIGN(Reservation r, budget_.reserve(role, plan_.bytes(role), "weights"));
            mapped_.push_back(std::move(r));
        }
    TERRACE_TRY(place_weights(weights, device, *stream_, device_budget()));
    const StepLimits limits = step_limits(options_);
    const OpsLimits ops_limits = Model::ops_limits(config, limits);
    {
        TERRACE_ASSIGN(
            Reservation r,
            device_budget().reserve(Role::workspace, backend_.ops->workspace_bytes(ops_limits),
                                    backend_.ops->name()));
        mapped_.push_back(std::move(r));
    }
    TERRACE_TRY(backend_.ops->reserve(ops_limits));
    TERRACE_ASSIGN(KvPlanes planes, KvPlanes::create(device, device_budget(), budget_, geometry));
    if (const int32_t slots = mirror_slots(geometry, options_); slots > 0) {
        TERRACE_ASSIGN(KvMirror mirror,
                       KvMirror::create(device, *stream_, device_budget(), geometry, slots));
        planes.add_mirror(std::move(mirror));
    }
    TERRACE_ASSIGN(StatePool states,
                   StatePool::create(device, device_budget(),
                                     Model::state_geometry(config, 2 * options_.max_seqs)));
    store_ = std::make_unique<SequenceStore>(std::move(planes), std::move(states));
    TERRACE_ASSIGN(model_, Model::create(config, std::move(weights), std::move(tables), device,
                                         *backend_.ops, device_budget(), budget_, limits));
    if (!options_.kv_trace.empty()) {
        if (options_.graphs == Model::Graphs::on && device.has_graphs())
            log_warn(
                "--kv-trace: decode steps are not replayed as graphs, and wait at every layer");
        options_.graphs = Model::Graphs::off;
        TERRACE_ASSIGN(
            KvTraceWriter writer,
            KvTraceWriter::create(options_.kv_trace, static_cast<uint32_t>(geometry.layers),
                                  static_cast<uint32_t>(geometry.block_tokens)));
        kv_trace_.emplace(std::move(writer), *stream_, config);
        model_->observe(&*kv_trace_);
    }
    model_->use_graphs(options_.graphs);
    if (const StagingGeometry staging = staging_geometry(config, options_, backend_.ops.get());
        staging.device_bytes() > 0) {
        TERRACE_ASSIGN(staging_, KvStaging::create(device, device_budget(), budget_, staging));
        model_->stage_with(staging_.get());
    }
    // Last: the driver takes one registration or allocation at a time, and this thread's would wait
    // behind all of them.
    store_->grow_in_background();
    return {};
}

Result<std::unique_ptr<Runtime>> Runtime::open(const EngineOptions& options) {
    std::unique_ptr<Runtime> r(new Runtime());
    r->options_ = options;
    {
        TERRACE_ASSIGN(ModelDir dir, ModelDir::open(options.model));
        r->dir_.emplace(std::move(dir));
    }
    const ModelDir& dir = *r->dir_;
    r->generation_ = dir.generation();
    TERRACE_TRY(r->resolve(dir.config()));
    if (dir.has_file("tokenizer.json")) {
        TERRACE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(options.model));
        r->tokenizer_.emplace(std::move(tokenizer));
    }
    TERRACE_ASSIGN(ModelWeights weights, bind_weights(dir));
    TERRACE_TRY(r->open_backend_and_trace());
    std::vector<NgramTable> tables;
    for (const LayerWeights& layer : weights.layers) {
        if (!layer.ple) continue;
        TERRACE_ASSIGN(
            NgramTable table,
            NgramTable::open(dir.checkpoint(), layer.ple->table_prefix, dir.config(),
                             static_cast<int32_t>(tables.size()), options.ngram, r->budget_));
        tables.push_back(std::move(table));
    }
    TERRACE_TRY(r->finish(dir.config(), std::move(weights), std::move(tables)));
    return r;
}

Result<std::unique_ptr<Runtime>> Runtime::open_synthetic(const EngineOptions& options,
                                                         const ModelConfig& config,
                                                         const SyntheticOptions& synthetic) {
    std::unique_ptr<Runtime> r(new Runtime());
    r->options_ = options;
    r->options_.ngram = NgramPlacement::ram;
    r->generation_ = default_generation(config);
    TERRACE_TRY(r->resolve(config));
    TERRACE_TRY(r->open_backend_and_trace());
    WorkerPool inline_pool(1);
    WorkerPool& pool = r->backend_.pool ? *r->backend_.pool : inline_pool;
    TERRACE_ASSIGN(ModelWeights weights,
                   synthetic_weights(config, synthetic, pool, *r->backend_.device,
                                     r->device_budget(), r->options_.host_limit));
    std::vector<NgramTable> tables;
    for (size_t i = 0; i < config.ple_layers.size(); ++i) {
        TERRACE_ASSIGN(NgramTable table,
                       NgramTable::synthetic(config, static_cast<int32_t>(i), r->budget_));
        weights.classes["n-gram table"].bytes += table.bytes();
        tables.push_back(std::move(table));
    }
    TERRACE_TRY(r->finish(config, std::move(weights), std::move(tables)));
    return r;
}

// Operations may still point into the model's memory while they die; the model goes first.
Runtime::~Runtime() {
    if (kv_trace_)
        if (const Status s = kv_trace_->close(); !s)
            log_warn(fmt::format("--kv-trace: {}", s.error().message));
    model_.reset();
    staging_.reset();
    store_.reset();
    stream_.reset();
}

MemoryPlan Runtime::report() const {
    MemoryPlan now = plan_;
    for (MemoryRow& row : now.rows)
        row.bytes = (row.space == MemSpace::device ? device_budget_ : budget_).used(row.role);
    return now;
}

Result<std::vector<MirrorCounters>> Runtime::mirror_counters() const {
    const KvMirror* const mirror = store_->planes().mirror();
    if (!mirror) return std::vector<MirrorCounters>{};
    return mirror->read_counters(*stream_);
}

int64_t Runtime::ngram_rows_read() const {
    return model_->ngram_rows_read();
}

}  // namespace terrace
