// The configuration of a Qwen4Exp-family model, read from config.json and checked, so that nobody
// behind this header meets a size that is zero, negative, or does not divide. Field meanings: model
// spec 1.2. Plain values, immutable after parsing; any thread.
//
// Two layouts are read: a text model (model_type qwen4_exp_text, fields at the top, tensors under
// "model.") and the multimodal wrapper (qwen4_exp, fields in text_config, tensors under
// "model.language_model."). What we do not compute (scaled rope, other gates or activations, other
// architectures) is refused here by name rather than computed wrongly later.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/types.h"

namespace terrace {

enum class LayerKind : uint8_t {
    gdn,  // gated delta net: recurrent state of fixed size
    qsa,  // sparse attention: K/V and index planes that grow with the sequence
};

std::string_view to_string(LayerKind kind);

// From quantization_config. Information only: widths and codebooks are read from the tensors.
struct QuantizationInfo {
    std::string method;                // "exl3"
    std::string version;               // of the converter; may be empty
    double bits = 0;                   // average per decoder weight
    std::optional<int32_t> head_bits;  // of lm_head; 16: not quantised
    std::string codebook;              // "mul1", "mcg", "3inst"; may be empty
};

struct ModelConfig {
    std::string model_type;     // "qwen4_exp_text" or "qwen4_exp"
    std::string tensor_prefix;  // "model." or "model.language_model."

    // Trunk
    int32_t hidden = 0;
    int32_t n_layers = 0;
    std::vector<LayerKind> layer_kinds;  // [n_layers]
    int32_t vocab = 0;
    int32_t max_positions = 0;
    double rms_eps = 0;
    bool tie_word_embeddings = false;
    int32_t hc_count = 0;  // residual streams, each `hidden` wide
    int32_t hc_rank = 0;   // of the stream mixer
    TokenId eos = 0;       // end of text; also the n-gram separator

    // QSA attention
    int32_t n_heads = 0;  // query heads, a multiple of n_kv_heads
    int32_t n_kv_heads = 0;
    int32_t head_dim = 0;
    int32_t rotary_dims = 0;  // even, at most head_dim and index_dim
    double rope_theta = 0;

    // QSA indexer
    int32_t index_heads = 0;
    int32_t index_kv_heads = 0;  // 1
    int32_t index_dim = 0;
    int32_t index_budget_tokens = 0;  // a multiple of index_block
    int32_t index_block = 0;          // tokens per block: a power of two that divides 256

    // GDN
    int32_t gdn_k_heads = 0;
    int32_t gdn_k_dim = 0;
    int32_t gdn_v_heads = 0;  // a multiple of gdn_k_heads
    int32_t gdn_v_dim = 0;
    int32_t conv_kernel = 0;

    // MoE, in every layer
    int32_t n_experts = 0;
    int32_t n_experts_per_token = 0;
    int32_t moe_width = 0;
    int32_t shared_width = 0;
    bool norm_topk = true;  // chosen experts' weights are scaled to sum 1

    // n-gram embedding (PLE). Without one, ple_layers is empty and the rest is 0.
    std::vector<LayerIx> ple_layers;  // 0-based (the file counts from 1): applied before this layer
    int32_t ple_dim = 0;              // a multiple of ngram_heads()
    int32_t ple_conv_kernel = 0;
    int32_t ngram_size = 0;        // longest n-gram; 3 means bigrams and trigrams
    int32_t heads_per_ngram = 0;   // hash heads for each n
    int64_t ngram_vocab_base = 0;  // head vocabulary sizes are the successive primes from here
    int32_t ngram_divisor = 0;     // the table's rows are padded to a multiple of this
    int32_t ngram_parts = 0;       // stored pieces of the table
    int64_t seed = 1234;           // of the hash multipliers

    int32_t n_mtp_layers = 0;  // draft layers stored beside the trunk; the trunk does not need them
    std::optional<QuantizationInfo> quantization;

    // Derived
    LayerKind kind(LayerIx layer) const { return layer_kinds[static_cast<size_t>(ix(layer))]; }
    int32_t count(LayerKind kind) const;
    int32_t block_top_k() const { return index_budget_tokens / index_block; }
    int32_t ngram_heads() const { return heads_per_ngram * (ngram_size - 1); }
    int32_t ngram_head_dim() const { return ple_layers.empty() ? 0 : ple_dim / ngram_heads(); }
    int32_t gdn_conv_channels() const {
        return 2 * gdn_k_heads * gdn_k_dim + gdn_v_heads * gdn_v_dim;
    }
    bool has_ple(LayerIx layer) const;
};

// `where` names the file in errors: "config.json: text_config.hidden_size is 0, need 1..1048576".
Result<ModelConfig> parse_model_config(std::string_view json, std::string_view where);

// How the model's authors want it sampled. Absent fields are absent, not defaults.
struct GenerationConfig {
    std::vector<TokenId> eos;  // generation stops on any of them; never empty
    bool do_sample = false;
    std::optional<double> temperature;         // >= 0
    std::optional<double> top_p;               // 0..1
    std::optional<int32_t> top_k;              // >= 0; 0 means off
    std::optional<double> min_p;               // 0..1
    std::optional<double> repetition_penalty;  // > 0
};

// What holds without a generation_config.json: stop on the model's eos, greedy.
GenerationConfig default_generation(const ModelConfig& model);
Result<GenerationConfig> parse_generation_config(std::string_view json, std::string_view where,
                                                 const ModelConfig& model);

}  // namespace terrace
