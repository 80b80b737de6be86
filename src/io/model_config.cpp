// SPDX-License-Identifier: MIT
#include "io/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "io/json.h"

namespace terrace {
namespace {

// Generous upper limits: far above any model, low enough that products of two fit in 64 bits and
// buffers sized from them cannot be absurd by accident.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxHeads = 1 << 12;
constexpr int64_t kMaxLayers = 1 << 12;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxProduct = 1 << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 30;
// Tokens of one K/V page; an index block must not be split over two.
constexpr int32_t kPageTokens = 256;

// Reads members of one object and remembers the first error, so that a long list of fields reads as
// a list. After an error every read returns its lower limit, which keeps later arithmetic defined.
class Fields {
  public:
    explicit Fields(Json object) : object_(std::move(object)) {}

    int32_t count(std::string_view key, int64_t max) {
        return static_cast<int32_t>(integer(key, 1, max));
    }
    int32_t count_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
        return static_cast<int32_t>(present(key) ? integer(key, min, max) : fallback);
    }

    int64_t integer(std::string_view key, int64_t min, int64_t max) {
        const int64_t v = take(object_.get_int(key), min);
        if (!error_ && (v < min || v > max))
            refuse(key, fmt::format("is {}, need {}..{}", v, min, max));
        return error_ ? min : v;
    }

    double positive(std::string_view key, double max) {
        const double v = take(object_.get_double(key), 1.0);
        if (!error_ && !(v > 0 && v <= max))
            refuse(key, fmt::format("is {}, need above 0 and at most {}", v, max));
        return error_ ? 1.0 : v;
    }

    bool flag_or(std::string_view key, bool fallback) {
        return take(object_.bool_or(key, fallback), fallback);
    }
    std::string text_or(std::string_view key, std::string_view fallback) {
        return take(object_.string_or(key, fallback), std::string());
    }

    // A setting of which we compute one value only. Absent or null means that value.
    void only(std::string_view key, std::string_view supported) {
        const std::string v = text_or(key, supported);
        if (v != supported)
            refuse(key, fmt::format("is {}, supported: \"{}\"", quote_json(v), supported),
                   Code::unsupported);
    }
    void only_flag(std::string_view key, bool supported) {
        if (flag_or(key, supported) != supported)
            refuse(key, fmt::format("is {}, supported: {}", !supported, supported),
                   Code::unsupported);
    }

    void require(bool ok, std::string_view key, std::string_view problem) {
        if (!ok) refuse(key, problem);
    }
    void refuse(std::string_view key, std::string_view problem,
                Code code = Code::invalid_argument) {
        if (error_) return;
        error_ = Error{code, fmt::format("{} {}", object_.where(key), problem)};
    }
    void fail(Error e) {
        if (!error_) error_ = std::move(e);
    }

    bool present(std::string_view key) const {
        const auto v = object_.find(key);
        return v && !v->is_null();
    }
    template <class T>
    T take(Result<T> r, T fallback) {
        if (r) return std::move(r).value();
        fail(std::move(r).error());
        return fallback;
    }
    const Json& object() const { return object_; }
    bool ok() const { return !error_.has_value(); }
    Status status() const { return error_ ? Status(*error_) : Status(); }

  private:
    Json object_;
    std::optional<Error> error_;
};

void read_layer_kinds(Fields& f, ModelConfig& c) {
    if (!f.present("layer_types")) {
        // Layer i is sparse when i + 1 is a multiple of the interval (model spec 1.2).
        const int64_t interval = f.integer("full_attention_interval", 1, kMaxLayers);
        for (int64_t i = 0; f.ok() && i < c.n_layers; ++i)
            c.layer_kinds.push_back((i + 1) % interval == 0 ? LayerKind::qsa : LayerKind::gdn);
        return;
    }
    const auto types = f.object().find("layer_types")->elements();
    if (!types) return f.fail(types.error());
    for (const Json& type : *types) {
        const auto name = type.as_string();
        if (!name) return f.fail(name.error());
        if (*name == "linear_attention") {
            c.layer_kinds.push_back(LayerKind::gdn);
        } else if (*name == "full_attention" || *name == "qwen_sparse_attention") {
            c.layer_kinds.push_back(LayerKind::qsa);
        } else {
            return f.fail(type.error(
                Code::unsupported,
                fmt::format(
                    "is {}, supported: linear_attention, full_attention, qwen_sparse_attention",
                    quote_json(*name))));
        }
    }
    f.require(
        std::cmp_equal(c.layer_kinds.size(), c.n_layers), "layer_types",
        fmt::format("has {} entries, num_hidden_layers is {}", c.layer_kinds.size(), c.n_layers));
}

// rope_parameters holds the rope fields; older files have them beside the other fields.
void read_rope(Fields& f, ModelConfig& c) {
    Json source = f.object();
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
        if (!f.present(key)) continue;
        const Json block = *f.object().find(key);
        if (!block.is_object())
            return f.refuse(key, fmt::format("is {}, need an object", to_string(block.kind())));
        Fields rope(block);
        rope.only("rope_type", "default");
        rope.only("type", "default");
        if (!rope.ok()) return f.fail(rope.status().error());
        if (std::string_view(key) == "rope_parameters") source = block;
    }
    const auto number = [&](std::string_view key, double max) {
        Fields from(source.find(key) ? source : f.object());
        const double v = from.positive(key, max);
        if (!from.ok()) f.fail(from.status().error());
        return v;
    };
    c.rope_theta = number("rope_theta", 1e15);
    const double factor = number("partial_rotary_factor", 1.0);
    const double dims = factor * c.head_dim;
    c.rotary_dims = static_cast<int32_t>(std::lround(dims));
    if (f.ok() &&
        (std::abs(dims - c.rotary_dims) > 1e-6 || c.rotary_dims < 2 || c.rotary_dims % 2 != 0))
        f.fail(source.error(
            Code::invalid_argument,
            fmt::format("gives {} rotary dimensions (partial_rotary_factor {} of head_dim "
                        "{}), need an even integer of at least 2",
                        dims, factor, c.head_dim)));
    f.require(
        c.rotary_dims <= c.index_dim, "indexer_head_dim",
        fmt::format("is {}, need at least the {} rotary dimensions", c.index_dim, c.rotary_dims));
}

void read_ple(Fields& f, ModelConfig& c) {
    if (!f.present("ple_layer_ids")) return;
    const auto ids = f.object().find("ple_layer_ids")->elements();
    if (!ids) return f.fail(ids.error());
    for (const Json& id : *ids) {
        const auto v = id.as_int();
        if (!v) return f.fail(v.error());
        if (*v < 1 || *v > c.n_layers)
            return f.fail(
                id.error(Code::invalid_argument,
                         fmt::format("is {}, need 1..{} (counted from 1)", *v, c.n_layers)));
        const auto layer = static_cast<LayerIx>(*v - 1);
        if (!c.ple_layers.empty() && ix(c.ple_layers.back()) >= ix(layer))
            return f.fail(id.error(Code::invalid_argument, "is not above the entry before it"));
        c.ple_layers.push_back(layer);
    }
    if (c.ple_layers.empty()) return;
    c.ple_dim = f.count("ple_embed_dim", kMaxWidth);
    c.ple_conv_kernel = f.count("ple_conv_kernel_size", 64);
    c.ngram_size = static_cast<int32_t>(f.integer("ngram_size", 2, 16));
    c.heads_per_ngram = f.count("heads_per_ngram", 256);
    c.ngram_vocab_base = f.integer("ngram_vocab_size_base", 2, int64_t{1} << 40);
    c.ngram_divisor = f.count_or("make_ngram_vocab_size_divisible_by", 128, 1, 1 << 20);
    c.ngram_parts = f.count_or("split_ngram_parts", 1, 1, 1 << 16);
    f.require(
        c.ple_dim % c.ngram_heads() == 0, "ple_embed_dim",
        fmt::format("is {}, need a multiple of the {} hash heads (heads_per_ngram {} x {} n-gram "
                    "sizes)",
                    c.ple_dim, c.ngram_heads(), c.heads_per_ngram, c.ngram_size - 1));
}

void read_eos(Fields& f, const Json& root, ModelConfig& c) {
    auto v = f.object().find("eos_token_id");
    if (!v || v->is_null()) v = root.find("eos_token_id");
    if (!v || v->is_null())
        return f.refuse("eos_token_id", "is missing, need the end-of-text token");
    if (v->is_array()) {
        // The separator of n-grams is one token; a list does not say which.
        if (v->size() != 1)
            return f.fail(v->error(Code::unsupported,
                                   "is a list, need one token (put further stop tokens into "
                                   "generation_config.json)"));
        v = v->elements()->front();
    }
    const auto id = v->as_int();
    if (!id) return f.fail(id.error());
    if (*id < 0 || *id >= c.vocab)
        return f.fail(
            v->error(Code::invalid_argument,
                     fmt::format("is {}, need 0..{} (vocab_size {})", *id, c.vocab - 1, c.vocab)));
    c.eos = static_cast<TokenId>(*id);
}

void read_mtp(Fields& f, ModelConfig& c) {
    c.n_mtp_layers = f.count_or("mtp_num_hidden_layers", 0, 0, 64);
    if (f.present("mtp_num_hidden_layers") || !f.present("mtp")) return;
    Fields mtp(*f.object().find("mtp"));
    c.n_mtp_layers = mtp.count_or("num_hidden_layers", 0, 0, 64);
    if (!mtp.ok()) f.fail(mtp.status().error());
}

void read_fields(Fields& f, const Json& root, ModelConfig& c) {
    c.hidden = f.count("hidden_size", kMaxWidth);
    c.n_layers = f.count("num_hidden_layers", kMaxLayers);
    c.vocab = f.count("vocab_size", kMaxVocab);
    c.max_positions = f.count("max_position_embeddings", kMaxPositions);
    c.rms_eps = f.positive("rms_norm_eps", 1.0);
    c.hc_count = f.count("hc_count", 64);
    c.hc_rank = f.count("hc_lowrank", kMaxWidth);
    f.only("hidden_act", "silu");
    f.only("output_gate_type", "sigmoid");
    f.only("mamba_ssm_dtype", "float32");
    f.only_flag("attention_bias", false);
    read_layer_kinds(f, c);
    read_eos(f, root, c);

    c.n_heads = f.count("num_attention_heads", kMaxHeads);
    c.n_kv_heads = f.count("num_key_value_heads", kMaxHeads);
    c.head_dim = f.count("head_dim", kMaxWidth);
    f.require(
        c.n_heads % c.n_kv_heads == 0, "num_attention_heads",
        fmt::format("is {}, need a multiple of num_key_value_heads {}", c.n_heads, c.n_kv_heads));

    c.index_heads = f.count("indexer_n_heads", kMaxHeads);
    c.index_kv_heads = f.count("indexer_kv_heads", kMaxHeads);
    if (c.index_kv_heads != 1)
        f.refuse("indexer_kv_heads", fmt::format("is {}, supported: 1", c.index_kv_heads),
                 Code::unsupported);
    c.index_dim = f.count("indexer_head_dim", kMaxWidth);
    c.index_block = f.count("indexer_compress_ratio", kPageTokens);
    c.index_budget_tokens = f.count("indexer_budget", kMaxPositions);
    f.require(std::has_single_bit(static_cast<uint32_t>(c.index_block)), "indexer_compress_ratio",
              fmt::format("is {}, need a power of two up to {}", c.index_block, kPageTokens));
    f.require(c.index_budget_tokens % c.index_block == 0, "indexer_budget",
              fmt::format("is {} tokens, need a multiple of indexer_compress_ratio {}",
                          c.index_budget_tokens, c.index_block));
    read_rope(f, c);

    c.gdn_k_heads = f.count("linear_num_key_heads", kMaxHeads);
    c.gdn_k_dim = f.count("linear_key_head_dim", kMaxWidth);
    c.gdn_v_heads = f.count("linear_num_value_heads", kMaxHeads);
    c.gdn_v_dim = f.count("linear_value_head_dim", kMaxWidth);
    c.conv_kernel = f.count("linear_conv_kernel_dim", 64);
    f.require(c.gdn_v_heads % c.gdn_k_heads == 0, "linear_num_value_heads",
              fmt::format("is {}, need a multiple of linear_num_key_heads {}", c.gdn_v_heads,
                          c.gdn_k_heads));

    c.n_experts = f.count("num_experts", 1 << 16);
    c.n_experts_per_token = f.count("num_experts_per_tok", c.n_experts);
    c.moe_width = f.count("moe_intermediate_size", kMaxWidth);
    c.shared_width = f.count("shared_expert_intermediate_size", kMaxWidth);
    c.norm_topk = f.flag_or("norm_topk_prob", true);

    // Widths that others compute in 32 bits.
    const auto bounded = [&](int64_t a, int64_t b, std::string_view key) {
        f.require(a * b <= kMaxProduct, key,
                  fmt::format("makes a width of {}, need at most {}", a * b, kMaxProduct));
    };
    bounded(c.hidden, c.hc_count, "hc_count");
    bounded(c.n_heads, c.head_dim, "num_attention_heads");
    bounded(c.index_heads, c.index_dim, "indexer_n_heads");
    bounded(c.gdn_k_heads, c.gdn_k_dim, "linear_num_key_heads");
    bounded(c.gdn_v_heads, c.gdn_v_dim, "linear_num_value_heads");

    read_ple(f, c);
    if (f.present("seed")) c.seed = f.integer("seed", 0, INT64_MAX);
    read_mtp(f, c);
}

Result<std::optional<QuantizationInfo>> read_quantization(const Json& root) {
    const auto block = root.find("quantization_config");
    if (!block || block->is_null()) return std::optional<QuantizationInfo>();
    QuantizationInfo q;
    TERRACE_ASSIGN(q.method, block->get_string("quant_method"));
    if (q.method != "exl3")
        return block->error(Code::unsupported,
                            fmt::format("has quant_method {}, supported: \"exl3\", or no "
                                        "quantization_config (bf16)",
                                        quote_json(q.method)));
    TERRACE_ASSIGN(q.version, block->string_or("version", ""));
    TERRACE_ASSIGN(q.codebook, block->string_or("codebook", ""));
    TERRACE_ASSIGN(q.bits, block->double_or("bits", 0));
    if (const auto head = block->find("head_bits"); head && !head->is_null()) {
        TERRACE_ASSIGN(const int64_t bits, block->int_or("head_bits", 0));
        if (bits < 0 || bits > 64)
            return block->error(Code::invalid_argument,
                                fmt::format("has head_bits {}, need 0..64", bits));
        q.head_bits = static_cast<int32_t>(bits);
    }
    return std::optional<QuantizationInfo>(std::move(q));
}

}  // namespace

std::string_view to_string(LayerKind kind) {
    return kind == LayerKind::gdn ? "gdn" : "qsa";
}

int32_t ModelConfig::count(LayerKind which) const {
    return static_cast<int32_t>(std::count(layer_kinds.begin(), layer_kinds.end(), which));
}

bool ModelConfig::has_ple(LayerIx layer) const {
    return std::find(ple_layers.begin(), ple_layers.end(), layer) != ple_layers.end();
}

Result<ModelConfig> parse_model_config(std::string_view json, std::string_view where) {
    TERRACE_ASSIGN(const Json root, parse_json(json, where, {.max_bytes = size_t{16} << 20}));
    if (!root.is_object())
        return root.error(Code::invalid_argument,
                          fmt::format("is {}, need an object", to_string(root.kind())));
    ModelConfig c;
    TERRACE_ASSIGN(c.model_type, root.get_string("model_type"));
    Json text = root;
    if (c.model_type == "qwen4_exp") {
        TERRACE_ASSIGN(text, root.get("text_config"));
        if (!text.is_object())
            return text.error(Code::invalid_argument,
                              fmt::format("is {}, need an object", to_string(text.kind())));
        TERRACE_ASSIGN(const std::string inner, text.string_or("model_type", "qwen4_exp_text"));
        if (inner != "qwen4_exp_text")
            return text.find("model_type")
                ->error(Code::unsupported,
                        fmt::format("is {}, supported: \"qwen4_exp_text\"", quote_json(inner)));
        c.tensor_prefix = "model.language_model.";
    } else if (c.model_type == "qwen4_exp_text") {
        c.tensor_prefix = "model.";
    } else {
        return root.find("model_type")
            ->error(Code::unsupported,
                    fmt::format("is {}, supported: \"qwen4_exp\", \"qwen4_exp_text\"",
                                quote_json(c.model_type)));
    }

    Fields f(text);
    read_fields(f, root, c);
    TERRACE_TRY(f.status());
    // The wrapper's own word wins where both have one: it describes the stored head.
    TERRACE_ASSIGN(const bool tied_text, text.bool_or("tie_word_embeddings", false));
    TERRACE_ASSIGN(c.tie_word_embeddings, root.bool_or("tie_word_embeddings", tied_text));
    TERRACE_ASSIGN(c.quantization, read_quantization(root));
    return c;
}

GenerationConfig default_generation(const ModelConfig& model) {
    GenerationConfig g;
    g.eos = {model.eos};
    return g;
}

Result<GenerationConfig> parse_generation_config(std::string_view json, std::string_view where,
                                                 const ModelConfig& model) {
    TERRACE_ASSIGN(const Json root, parse_json(json, where, {.max_bytes = size_t{16} << 20}));
    if (!root.is_object())
        return root.error(Code::invalid_argument,
                          fmt::format("is {}, need an object", to_string(root.kind())));
    GenerationConfig g = default_generation(model);
    if (const auto eos = root.find("eos_token_id"); eos && !eos->is_null()) {
        std::vector<Json> ids = {*eos};
        if (eos->is_array()) {
            TERRACE_ASSIGN(ids, eos->elements());
        }
        std::vector<TokenId> stops;
        for (const Json& id : ids) {
            TERRACE_ASSIGN(const int64_t v, id.as_int());
            if (v < 0 || v >= model.vocab)
                return id.error(Code::invalid_argument,
                                fmt::format("is {}, need 0..{} (vocab_size {})", v, model.vocab - 1,
                                            model.vocab));
            if (std::find(stops.begin(), stops.end(), v) == stops.end())
                stops.push_back(static_cast<TokenId>(v));
        }
        if (!stops.empty()) g.eos = std::move(stops);
    }
    TERRACE_ASSIGN(g.do_sample, root.bool_or("do_sample", false));

    const auto number = [&](const char* key, double min,
                            double max) -> Result<std::optional<double>> {
        const auto v = root.find(key);
        if (!v || v->is_null()) return std::optional<double>();
        TERRACE_ASSIGN(const double d, v->as_double());
        if (!(d >= min && d <= max))
            return v->error(Code::invalid_argument, fmt::format("is {}, need {}..{}", d, min, max));
        return std::optional<double>(d);
    };
    TERRACE_ASSIGN(g.temperature, number("temperature", 0, 100));
    TERRACE_ASSIGN(g.top_p, number("top_p", 0, 1));
    TERRACE_ASSIGN(g.min_p, number("min_p", 0, 1));
    TERRACE_ASSIGN(g.repetition_penalty, number("repetition_penalty", 1e-6, 1e6));
    // -1 is a common way to write off.
    TERRACE_ASSIGN(const std::optional<double> top_k, number("top_k", -1, INT32_MAX));
    if (top_k) {
        TERRACE_ASSIGN(const int64_t k, root.get_int("top_k"));
        g.top_k = static_cast<int32_t>(std::max<int64_t>(k, 0));
    }
    return g;
}

}  // namespace terrace
