// terrace inspect: what a model folder holds. Reads config and headers, binds every tensor, and
// computes nothing.
// SPDX-License-Identifier: MIT
#include "inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "commands.h"
#include "common.h"
#include "tier/memory_plan.h"

namespace terrace {
namespace {

struct Options {
    CommonOptions common;
    bool json = false;
};

Result<int> run(const Options& o) {
    engine_options(o.common);
    TERRACE_ASSIGN(const ModelDir dir, ModelDir::open(o.common.model));
    TERRACE_ASSIGN(const ModelWeights weights, bind_weights(dir));
    const ModelConfig& c = dir.config();
    const Checkpoint& files = dir.checkpoint();
    if (o.json) {
        JsonOut json;
        json.begin_object().text("model", o.common.model);
        json.begin_array("files");
        for (const auto& file : files.files())
            json.text("", file.filename().string());
        json.end_array().integer("tensors", files.all().size());
        json.integer("bytes", files.total_bytes());
        config_json(json, c);
        class_json(json, "classes", weights.classes);
        class_json(json, "skipped", weights.skipped);
        json.begin_array("unknown");
        for (const std::string& name : weights.unknown)
            json.text("", name);
        json.end_array().flag("tokenizer", dir.has_file("tokenizer.json"));
        out(json.end_object().take());
        return 0;
    }
    out(fmt::format("model      {}: {} in {} tensors of {} files\n", o.common.model,
                    human_bytes(files.total_bytes()), files.all().size(), files.files().size()));
    out(config_lines(c));
    out(fmt::format("tokenizer  {}\n\n",
                    dir.has_file("tokenizer.json") ? "tokenizer.json" : "none"));
    out(class_table(weights.classes));
    if (!weights.skipped.empty())
        out("\nskipped, not needed for text:\n" + class_table(weights.skipped));
    if (!weights.unknown.empty())
        out(fmt::format("\nunknown tensors, not used: {}\n", fmt::join(weights.unknown, ", ")));
    return 0;
}

}  // namespace

std::string class_table(const std::map<std::string, WeightClass>& classes) {
    std::string text = fmt::format("{:<20} {:>9} {:>16} {:>7} {:>12}\n", "class", "tensors",
                                   "weights", "bits", "bytes");
    WeightClass sum;
    const auto line = [&](const std::string& name, const WeightClass& k) {
        text += fmt::format("{:<20} {:>9} {:>16} {:>7.2f} {:>12}\n", name, k.tensors, k.values,
                            k.bits(), human_bytes(static_cast<uint64_t>(k.bytes)));
        sum.tensors += k.tensors;
        sum.values += k.values;
        sum.bytes += k.bytes;
    };
    for (const auto& [name, k] : classes)
        line(name, k);
    const WeightClass total = sum;
    line("total", total);
    return text;
}

void class_json(JsonOut& json, std::string_view key,
                const std::map<std::string, WeightClass>& classes) {
    json.begin_object(key);
    for (const auto& [name, k] : classes) {
        json.begin_object(name).integer("tensors", k.tensors).integer("weights", k.values);
        json.real("bits", k.bits()).integer("bytes", k.bytes).end_object();
    }
    json.end_object();
}

std::string config_lines(const ModelConfig& c) {
    std::string text = fmt::format(
        "type       {}; {} layers: {} gdn, {} qsa; hidden {} x {} streams (rank {}), vocabulary "
        "{}, "
        "up to {} tokens\n",
        c.model_type, c.n_layers, c.count(LayerKind::gdn), c.count(LayerKind::qsa), c.hidden,
        c.hc_count, c.hc_rank, c.vocab, c.max_positions);
    text += fmt::format(
        "qsa        {} query heads, {} kv heads of {} ({} rotary, theta {:g}); index {} heads of "
        "{}, "
        "blocks of {}, budget {} tokens\n",
        c.n_heads, c.n_kv_heads, c.head_dim, c.rotary_dims, c.rope_theta, c.index_heads,
        c.index_dim, c.index_block, c.index_budget_tokens);
    text += fmt::format("gdn        {} key heads of {}, {} value heads of {}, convolution {}\n",
                        c.gdn_k_heads, c.gdn_k_dim, c.gdn_v_heads, c.gdn_v_dim, c.conv_kernel);
    text += fmt::format("experts    {} of {}, {} chosen; shared {}\n", c.n_experts, c.moe_width,
                        c.n_experts_per_token, c.shared_width);
    if (!c.ple_layers.empty()) {
        std::vector<int32_t> layers;
        for (const LayerIx layer : c.ple_layers)
            layers.push_back(ix(layer));
        text += fmt::format(
            "n-grams    before layer {}; {} heads of {}, up to {}-grams, from {} rows "
            "a head\n",
            fmt::join(layers, ","), c.ngram_heads(), c.ngram_head_dim(), c.ngram_size,
            c.ngram_vocab_base);
    }
    if (const auto& q = c.quantization)
        text +=
            fmt::format("quantised  {} {} {}, {} bits on average, head {}\n", q->method, q->version,
                        q->codebook, q->bits, q->head_bits ? std::to_string(*q->head_bits) : "?");
    return text;
}

void config_json(JsonOut& json, const ModelConfig& c) {
    json.begin_object("config").text("model_type", c.model_type);
    json.integer("layers", c.n_layers).integer("gdn_layers", c.count(LayerKind::gdn));
    json.integer("qsa_layers", c.count(LayerKind::qsa)).integer("hidden", c.hidden);
    json.integer("streams", c.hc_count).integer("vocab", c.vocab);
    json.integer("max_positions", c.max_positions).integer("heads", c.n_heads);
    json.integer("kv_heads", c.n_kv_heads).integer("head_dim", c.head_dim);
    json.integer("index_heads", c.index_heads).integer("index_dim", c.index_dim);
    json.integer("index_block", c.index_block)
        .integer("index_budget_tokens", c.index_budget_tokens);
    json.integer("experts", c.n_experts).integer("experts_per_token", c.n_experts_per_token);
    json.integer("expert_width", c.moe_width).integer("shared_width", c.shared_width);
    json.integer("ngram_heads", c.ple_layers.empty() ? 0 : c.ngram_heads());
    json.integer("ngram_vocab_base", c.ngram_vocab_base);
    if (const auto& q = c.quantization) {
        json.begin_object("quantization").text("method", q->method).text("version", q->version);
        json.text("codebook", q->codebook).real("bits", q->bits).end_object();
    }
    json.end_object();
}

Command inspect_command() {
    auto o = std::make_shared<Options>();
    Command c{
        "inspect",
        "Layers, sizes and bits of a model folder",
        "  terrace inspect --model models/demo\n  terrace inspect --model models/demo --json\n",
        {},
        {}};
    c.flags.heading("Model");
    c.flags.text("model", "DIR", o->common.model, "Model folder: config.json and *.safetensors")
        .missing = "give the folder that holds config.json and *.safetensors";
    c.flags.toggle("json", o->json, "Print a JSON document");
    add_output_flags(c.flags, o->common);
    c.run = [o] { return run(*o); };
    return c;
}

}  // namespace terrace
