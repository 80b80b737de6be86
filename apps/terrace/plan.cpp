// terrace plan: what a model would take on this machine, before it is loaded, or before it is
// downloaded (--config). Allocates nothing large.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "commands.h"
#include "common.h"
#include "estimate.h"
#include "inspect.h"

namespace terrace {
namespace {

struct Options {
    CommonOptions common;
    std::optional<std::string> config;
    PackFormat format;
    bool json = false;
};

struct Subject {
    std::string name;
    ModelConfig config;
    std::map<std::string, WeightClass> classes;
};

Result<Subject> subject(const Options& o) {
    if (o.config) {
        TERRACE_ASSIGN(const std::string text, read_text_file(*o.config, size_t{16} << 20));
        TERRACE_ASSIGN(ModelConfig config, parse_model_config(text, *o.config));
        auto classes = estimate_classes(config, o.format);
        return Subject{*o.config, std::move(config), std::move(classes)};
    }
    TERRACE_ASSIGN(const ModelDir dir, ModelDir::open(o.common.model));
    TERRACE_ASSIGN(ModelWeights weights, bind_weights(dir));
    return Subject{o.common.model, dir.config(), std::move(weights.classes)};
}

void print_json(const Subject& s, const EngineOptions& e, const MemoryPlan& plan,
                uint64_t token_bytes, uint64_t sequence_bytes) {
    JsonOut json;
    json.begin_object().text("model", s.name).integer("ctx", e.ctx).integer("max_seqs", e.max_seqs);
    json.integer("pool_tokens", e.pool_tokens).integer("prefill_chunk", e.prefill_chunk);
    json.integer("bytes_per_token", token_bytes).integer("bytes_per_sequence", sequence_bytes);
    class_json(json, "classes", s.classes);
    json.begin_array("plan");
    for (const MemoryRow& row : plan.rows) {
        json.begin_object().text("role", to_string(row.role)).integer("bytes", row.bytes);
        json.text("where", row.where).text("what", row.detail).end_object();
    }
    json.end_array().integer("total", plan.total()).integer("limit", plan.limit);
    if (plan.device_limit != 0)
        json.integer("device_total", plan.total(MemSpace::device))
            .integer("device_limit", plan.device_limit);
    json.flag("fits", plan.check().has_value());
    out(json.end_object().take());
}

Result<int> run(const Options& o) {
    EngineOptions options = engine_options(o.common);
    if (options.max_seqs == 0) options.max_seqs = 4;
    TERRACE_ASSIGN(const Subject s, subject(o));
    TERRACE_ASSIGN(options, resolve_options(std::move(options), s.config));
    TERRACE_ASSIGN(const Backend backend, open_backend(options.backend));
    const WeightHome home = planned_home(backend, s.classes);
    if (home.space == MemSpace::device && options.vram_limit == 0)
        options.vram_limit = backend.device->free_bytes();
    place_planes(s.config, s.classes, options, backend.ops.get(), home);
    place_mirror(s.config, s.classes, options, backend.ops.get(), home);
    TERRACE_TRY(place_arena(s.config, s.classes, options, backend.ops.get(), home));
    const MemoryPlan plan = plan_memory(s.config, s.classes, options, backend.ops.get(), home);
    const PlaneGeometry planes = Model::plane_geometry(s.config, options.kv_type, 1);
    const uint64_t token_bytes = static_cast<uint64_t>(planes.layers) *
                                 (planes.kv_bytes_per_token() + planes.raw_bytes_per_token() +
                                  planes.pooled_bytes_per_token());
    const uint64_t sequence_bytes = Model::state_geometry(s.config, 1).bytes_per_slot();
    if (o.json) {
        print_json(s, options, plan, token_bytes, sequence_bytes);
        return 0;
    }
    out(fmt::format("model      {}{}\n", s.name,
                    o.config ? fmt::format(" (sizes estimated: experts {} bit, attention {} bit, "
                                           "n-gram table {} bit)",
                                           o.format.weights.bpw, o.format.weights.attention_bits,
                                           o.format.ngram_bits)
                             : ""));
    out(config_lines(s.config) + "\n" + class_table(s.classes));
    out(
        fmt::format("\nper token     {} in {} sparse layers: K and V {} B, raw index {} B, pooled "
                    "index {} B each\n",
                    human_bytes(token_bytes), planes.layers, planes.kv_bytes_per_token(),
                    planes.raw_bytes_per_token(), planes.pooled_bytes_per_token()));
    out(fmt::format("per sequence  {} of recurrent state, and as much for its checkpoint\n",
                    human_bytes(sequence_bytes)));
    out(fmt::format("asked for     {} sequences of up to {} tokens, {} tokens together\n\n",
                    options.max_seqs, options.ctx, options.pool_tokens));
    out(plan.table());
    const Status fits = plan.check();
    const std::string have =
        plan.device_limit == 0
            ? human_bytes(plan.limit)
            : fmt::format("{} of GPU memory and {} of host memory", human_bytes(plan.device_limit),
                          human_bytes(plan.limit));
    out(fits ? fmt::format("fits into the {} that may be used\n", have)
             : fmt::format("DOES NOT FIT: {}\n", fits.error().message));
    return 0;
}

}  // namespace

Command plan_command() {
    auto o = std::make_shared<Options>();
    Command c{
        "plan",
        "Memory that a model would take, by role",
        "  terrace plan --model models/demo --ctx 32768 --max-seqs 8\n"
        "  terrace plan --config docs/qwen3.8-flash-next.config.json --bpw 3 --attention-bits 5 "
        "--ctx 262144 --max-seqs 1\n",
        {},
        {}};
    c.flags.heading("Plan");
    c.flags.text("config", "FILE", o->config, "A config.json instead of a model folder");
    c.flags.real("bpw", o->format.weights.bpw, 1, 8,
                 "Bits per weight of routed experts, with --config");
    c.flags.integer("attention-bits", o->format.weights.attention_bits, 1, 8,
                    "Bits of attention, delta net, shared experts and head, with --config");
    c.flags.integer("ngram-bits", o->format.ngram_bits, 1, 16,
                    "Bits of the n-gram table, 1..8 or 16, with --config");
    c.flags.toggle("json", o->json, "Print a JSON document");
    add_common_flags(c.flags, o->common, ModelFlag::optional);
    adapt_presets(c.flags, o->common, "4", "");
    c.flags.clash("config", "model");
    c.flags.rule([o = o.get()]() -> Status {
        if (o->config || !o->common.model.empty()) {
            if (o->format.ngram_bits <= 8 || o->format.ngram_bits == 16) return {};
            return Error{Code::invalid_argument,
                         fmt::format("--ngram-bits is {}: need 1..8 or 16", o->format.ngram_bits)};
        }
        return Error{Code::invalid_argument, "nothing to plan: give --model DIR or --config FILE"};
    });
    c.run = [o] { return run(*o); };
    return c;
}

}  // namespace terrace
