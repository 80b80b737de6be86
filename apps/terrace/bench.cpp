// terrace bench: prompt and decode speed of a model folder, or of random weights of any
// configuration (--synthetic).
// SPDX-License-Identifier: MIT
#include "bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "common.h"
#include "stats.h"

namespace terrace {
namespace {

struct Options {
    CommonOptions common;
    BenchPlan plan{.prompts = {512}, .generated = {128}, .depths = {0}, .locality = {}};
    BenchFormat output = BenchFormat::md;
    std::optional<std::string> synthetic;
    SyntheticOptions weights;
    int32_t layers = 0, experts = 0, ngram_rows = 20011;
    bool fill_depth = false;
};

// A smaller model of the same kind: fewer layers and experts, a small n-gram table. What was
// changed goes to `notes`.
Result<ModelConfig> synthetic_config(const Options& o, std::vector<std::string>& notes) {
    TERRACE_ASSIGN(const std::string text, read_text_file(*o.synthetic, size_t{16} << 20));
    TERRACE_ASSIGN(ModelConfig c, parse_model_config(text, *o.synthetic));
    notes.push_back("random weights: speed is real, text would be noise");
    if (o.layers > 0 && o.layers != c.n_layers) {
        if (o.layers > c.n_layers)
            return Error{Code::invalid_argument, fmt::format("--layers is {}: {} has {}", o.layers,
                                                             *o.synthetic, c.n_layers)};
        notes.push_back(fmt::format("{} of {} layers", o.layers, c.n_layers));
        c.n_layers = o.layers;
        c.layer_kinds.resize(static_cast<size_t>(o.layers));
        std::erase_if(c.ple_layers, [&](LayerIx layer) { return ix(layer) >= o.layers; });
    }
    if (o.experts > 0 && o.experts != c.n_experts) {
        if (o.experts < c.n_experts_per_token || o.experts > c.n_experts)
            return Error{Code::invalid_argument,
                         fmt::format("--experts is {}: need {}..{}", o.experts,
                                     c.n_experts_per_token, c.n_experts)};
        notes.push_back(fmt::format("{} of {} experts", o.experts, c.n_experts));
        c.n_experts = o.experts;
    }
    if (!c.ple_layers.empty() && c.ngram_vocab_base > o.ngram_rows) {
        notes.push_back(
            fmt::format("n-gram table shrunk from {} to {} rows a head: its look-ups hit "
                        "caches more often than the real table's",
                        c.ngram_vocab_base, o.ngram_rows));
        c.ngram_vocab_base = o.ngram_rows;
    }
    return c;
}

int32_t largest(const std::vector<int32_t>& values) {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

Result<int> run(const Options& o) {
    BenchPlan plan = o.plan;
    plan.depth = o.fill_depth ? Depth::filled : Depth::computed;
    EngineOptions options = engine_options(o.common);
    const int64_t work = std::max(largest(plan.prompts), largest(plan.generated));
    if (work == 0) return Error{Code::invalid_argument, "nothing to measure: both -p and -n are 0"};
    const int64_t ctx = largest(plan.depths) + work + 1;
    if (options.max_seqs == 0) options.max_seqs = plan.batch;
    if (options.max_seqs < plan.batch)
        return Error{Code::invalid_argument,
                     fmt::format("--max-seqs is {}: --batch {} needs as many", options.max_seqs,
                                 plan.batch)};
    if (options.ctx == 0) options.ctx = static_cast<int32_t>(std::min<int64_t>(ctx, INT32_MAX));
    // Forks share the full pages of the depth; each needs its own for what it adds.
    if (options.pool_tokens == 0)
        options.pool_tokens = static_cast<int32_t>(
            std::min<int64_t>(options.ctx + (work + 2 * kPageTokens) * plan.batch, INT32_MAX / 2));
    BenchTitle title;
    std::unique_ptr<Runtime> runtime;
    const Stopwatch watch;
    if (o.synthetic) {
        TERRACE_ASSIGN(const ModelConfig config, synthetic_config(o, title.notes));
        TERRACE_ASSIGN(runtime, Runtime::open_synthetic(options, config, o.weights));
        announce(*runtime, watch.seconds());
        title.model =
            fmt::format("synthetic {} {}bpw", std::filesystem::path(*o.synthetic).stem().string(),
                        o.weights.bpw);
    } else {
        TERRACE_ASSIGN(runtime, open_runtime(options));
        std::filesystem::path folder = std::filesystem::path(o.common.model).lexically_normal();
        if (!folder.has_filename()) folder = folder.parent_path();
        title.model = folder.filename().string();
    }
    if (plan.depth == Depth::filled && largest(plan.depths) > 0)
        title.notes.push_back(
            "depth filled, not computed: random K, V and index keys, empty recurrent "
            "state; block selection is random rather than learned");
    if (plan.locality)
        title.notes.push_back(fmt::format(
            "decode steps at a filled depth select as ever, but attend to made-up lists: "
            "{} of each list is that of the step before, the rest drawn at random",
            *plan.locality));
    title.backend = runtime->ops().name();
    title.threads = runtime->backend().pool ? runtime->backend().pool->size() : 1;
    title.bytes = static_cast<uint64_t>(runtime->model().weights().resident_bytes());
    TERRACE_ASSIGN(const std::vector<BenchRow> rows, run_bench(*runtime, plan));
    out(print_bench(title, rows, o.output));
    report_stats(*runtime, o.common);
    return 0;
}

}  // namespace

Command bench_command() {
    auto o = std::make_shared<Options>();
    Command c{
        "bench",
        "Prompt and decode speed",
        "  terrace bench --model models/demo -p 512 -n 128 -d 0,4096\n"
        "  terrace bench --synthetic docs/qwen3.8-flash-next.config.json --layers 4 --experts 64 "
        "--bpw 3 -p 128 -n 16\n",
        {},
        {}};
    c.flags.heading("Measurements");
    c.flags.integers("n-prompt", o->plan.prompts, 0, 1 << 24, "Tokens of the prompt tests; 0: none")
        .letter = 'p';
    c.flags.integers("n-gen", o->plan.generated, 0, 1 << 24, "Tokens of the decode tests; 0: none")
        .letter = 'n';
    c.flags.integers("depth", o->plan.depths, 0, 1 << 24, "Tokens that are in the cache before")
        .letter = 'd';
    c.flags.integer("repetitions", o->plan.repetitions, 1, 1000, "Of every test").letter = 'r';
    c.flags.integer("batch", o->plan.batch, 1, 1024, "Sequences that decode together");
    c.flags.toggle("fill-depth", o->fill_depth,
                   "With --synthetic: fill the cache with random bytes instead of computing it");
    c.flags.real("kv-locality", o->plan.locality, "the model's own",
                 "With --fill-depth: share of the selected blocks that each decode step takes over "
                 "from the one before, 0..1");
    c.flags.choice<BenchFormat>(
        "output", o->output,
        {{"md", BenchFormat::md}, {"csv", BenchFormat::csv}, {"json", BenchFormat::json}},
        "Form of the table");
    c.flags.heading("Random weights");
    c.flags.text("synthetic", "FILE", o->synthetic, "A config.json instead of a model folder");
    c.flags.real("bpw", o->weights.bpw, 1, 8, "Bits per weight of routed experts");
    c.flags.integer("attention-bits", o->weights.attention_bits, 1, 8,
                    "Bits of attention, delta net, shared experts and head");
    c.flags.choice<Codebook>(
        "codebook", o->weights.codebook,
        {{"mul1", Codebook::mul1}, {"mcg", Codebook::mcg}, {"3inst", Codebook::three_inst}},
        "Codebook of the weights");
    c.flags.integer("layers", o->layers, 1, 4096, "Only the first N layers").preset = "all";
    c.flags.integer("experts", o->experts, 1, 65536, "Only N experts a layer").preset = "all";
    c.flags.integer("ngram-rows", o->ngram_rows, 2, INT32_MAX,
                    "Rows a head of the n-gram table, at most the configuration's");
    add_common_flags(c.flags, o->common, ModelFlag::optional);
    adapt_presets(c.flags, o->common, "as many as --batch", "as long as needed");
    c.flags.clash("synthetic", "model");
    c.flags.rule([o = o.get()]() -> Status {
        if (!o->synthetic && o->common.model.empty())
            return Error{Code::invalid_argument,
                         "nothing to measure: give --model DIR or --synthetic CONFIG.json"};
        if (o->fill_depth && !o->synthetic)
            return Error{Code::invalid_argument, "--fill-depth belongs to --synthetic"};
        const std::optional<float> share = o->plan.locality;
        if (share && !o->fill_depth)
            return Error{Code::invalid_argument, "--kv-locality belongs to --fill-depth"};
        if (share && !(*share >= 0 && *share <= 1))
            return Error{Code::invalid_argument,
                         fmt::format("--kv-locality is {}: need 0..1", *share)};
        return {};
    });
    c.run = [o] { return run(*o); };
    return c;
}

}  // namespace terrace
