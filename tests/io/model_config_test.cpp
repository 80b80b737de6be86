// Both config layouts, the repository's real configs, and every refusal with one field changed.
// SPDX-License-Identifier: MIT
#include "io/model_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "io_support.h"

namespace terrace::test {
namespace {

using ::testing::ElementsAre;

const std::string& plain() {
    static const std::string text =
        must(read_text_file(data_path("tiny-bf16/config.json"), 1 << 20));
    return text;
}

const std::string& nested() {
    static const std::string text =
        must(read_text_file(data_path("tiny-exl3/config.json"), 1 << 20));
    return text;
}

Result<ModelConfig> parse(std::string_view json) {
    return parse_model_config(json, "config.json");
}

// The plain config with one occurrence of `from` replaced must be refused like this.
void expect_refused(std::string_view from, std::string_view to, Code code,
                    const std::string& text) {
    EXPECT_ERROR(parse(with(plain(), from, to)), code, text);
}

void expect_invalid(std::string_view from, std::string_view to, const std::string& text) {
    expect_refused(from, to, Code::invalid_argument, text);
}

TEST(ModelConfig, PlainConfigOfTheTinyModelIsRead) {
    const ModelConfig c = must(parse(plain()));
    EXPECT_EQ(c.model_type, "qwen4_exp_text");
    EXPECT_EQ(c.tensor_prefix, "model.");
    EXPECT_EQ(c.hidden, 128);
    EXPECT_EQ(c.n_layers, 5);
    using enum LayerKind;
    EXPECT_THAT(c.layer_kinds, ElementsAre(gdn, gdn, qsa, gdn, qsa));
    EXPECT_EQ(c.count(qsa), 2);
    EXPECT_EQ(c.count(gdn), 3);
    EXPECT_EQ(c.kind(LayerIx{2}), qsa);
    EXPECT_EQ(c.vocab, 512);
    EXPECT_EQ(c.max_positions, 4096);
    EXPECT_EQ(c.rms_eps, 1e-6);
    EXPECT_FALSE(c.tie_word_embeddings);
    EXPECT_EQ(c.hc_count, 4);
    EXPECT_EQ(c.hc_rank, 32);
    EXPECT_EQ(c.eos, 2);
    EXPECT_EQ(c.n_heads, 4);
    EXPECT_EQ(c.n_kv_heads, 2);
    EXPECT_EQ(c.head_dim, 64);
    EXPECT_EQ(c.rotary_dims, 16);
    EXPECT_EQ(c.rope_theta, 10000.0);
    EXPECT_EQ(c.index_heads, 3);
    EXPECT_EQ(c.index_kv_heads, 1);
    EXPECT_EQ(c.index_dim, 32);
    EXPECT_EQ(c.index_budget_tokens, 64);
    EXPECT_EQ(c.index_block, 4);
    EXPECT_EQ(c.block_top_k(), 16);
    EXPECT_EQ(c.gdn_k_heads, 4);
    EXPECT_EQ(c.gdn_k_dim, 32);
    EXPECT_EQ(c.gdn_v_heads, 8);
    EXPECT_EQ(c.gdn_v_dim, 32);
    EXPECT_EQ(c.conv_kernel, 4);
    EXPECT_EQ(c.gdn_conv_channels(), 2 * 4 * 32 + 8 * 32);
    EXPECT_EQ(c.n_experts, 8);
    EXPECT_EQ(c.n_experts_per_token, 3);
    EXPECT_EQ(c.moe_width, 128);
    EXPECT_EQ(c.shared_width, 128);
    EXPECT_TRUE(c.norm_topk);
    EXPECT_THAT(c.ple_layers, ElementsAre(LayerIx{1}, LayerIx{3}));
    EXPECT_TRUE(c.has_ple(LayerIx{3}));
    EXPECT_FALSE(c.has_ple(LayerIx{2}));
    EXPECT_EQ(c.ple_dim, 128);
    EXPECT_EQ(c.ple_conv_kernel, 4);
    EXPECT_EQ(c.ngram_size, 3);
    EXPECT_EQ(c.heads_per_ngram, 4);
    EXPECT_EQ(c.ngram_heads(), 8);
    EXPECT_EQ(c.ngram_head_dim(), 16);
    EXPECT_EQ(c.ngram_vocab_base, 200);
    EXPECT_EQ(c.ngram_divisor, 128);
    EXPECT_EQ(c.ngram_parts, 4);
    EXPECT_EQ(c.seed, 1234);
    EXPECT_EQ(c.n_mtp_layers, 0);
    EXPECT_FALSE(c.quantization.has_value());
}

TEST(ModelConfig, NestedConfigDiffersOnlyInPrefixAndQuantization) {
    const ModelConfig c = must(parse(nested()));
    const ModelConfig p = must(parse(plain()));
    EXPECT_EQ(c.model_type, "qwen4_exp");
    EXPECT_EQ(c.tensor_prefix, "model.language_model.");
    EXPECT_EQ(c.layer_kinds, p.layer_kinds);
    EXPECT_EQ(c.ple_layers, p.ple_layers);
    EXPECT_EQ(c.rotary_dims, p.rotary_dims);
    EXPECT_EQ(c.eos, p.eos);
    ASSERT_TRUE(c.quantization.has_value());
    EXPECT_EQ(c.quantization->method, "exl3");
    EXPECT_EQ(c.quantization->version, "1.4.7");
    EXPECT_EQ(c.quantization->bits, 3.6);
    EXPECT_EQ(c.quantization->head_bits, 6);
    EXPECT_EQ(c.quantization->codebook, "mul1");
}

TEST(ModelConfig, SeedAndNormTopkHaveTheDefaultsOfTheFamily) {
    std::string text = with(plain(), R"("seed": 1234,)", "");
    text = with(text, R"("norm_topk_prob": true,)", "");
    const ModelConfig c = must(parse(text));
    EXPECT_EQ(c.seed, 1234);
    EXPECT_TRUE(c.norm_topk);
    EXPECT_FALSE(
        must(parse(with(plain(), R"("norm_topk_prob": true)", R"("norm_topk_prob": false)")))
            .norm_topk);
}

TEST(ModelConfig, RealConfigOfTheSpecificationIsRead) {
    // Fields and values of model spec 1.1 and 1.2, as published: no seed, no norm_topk_prob, mtp.
    const ModelConfig c = must(parse(R"({"architectures":["Qwen4ExpForConditionalGeneration"],
        "model_type":"qwen4_exp","language_model_only":false,"tie_word_embeddings":false,
        "vision_config":{"depth":27},"text_config":{"model_type":"qwen4_exp_text","dtype":"bfloat16",
        "vocab_size":248320,"hidden_size":2560,"num_hidden_layers":48,"full_attention_interval":4,
        "num_attention_heads":24,"num_key_value_heads":2,"head_dim":256,"attention_bias":false,
        "max_position_embeddings":262144,"rms_norm_eps":1e-6,"hidden_act":"silu",
        "partial_rotary_factor":0.25,"rope_parameters":{"rope_type":"default","rope_theta":10000000,
        "partial_rotary_factor":0.25,"mrope_interleaved":true,"mrope_section":[11,11,10]},
        "linear_num_key_heads":16,"linear_key_head_dim":128,"linear_num_value_heads":48,
        "linear_value_head_dim":128,"linear_conv_kernel_dim":4,"mamba_ssm_dtype":"float32",
        "output_gate_type":"sigmoid","num_experts":512,"num_experts_per_tok":10,
        "moe_intermediate_size":640,"shared_expert_intermediate_size":640,"hc_count":4,
        "hc_lowrank":320,"ple_layer_ids":[2],"ple_embed_dim":2560,"ple_conv_kernel_size":4,
        "ngram_size":3,"heads_per_ngram":8,"ngram_vocab_size_base":20000000,
        "make_ngram_vocab_size_divisible_by":128,"split_ngram_parts":128,"indexer_n_heads":4,
        "indexer_kv_heads":1,"indexer_head_dim":128,"indexer_budget":2048,
        "indexer_compress_ratio":4,"mtp_num_hidden_layers":1,"bos_token_id":248044,
        "eos_token_id":248044,"pad_token_id":null}})"));
    EXPECT_EQ(c.count(LayerKind::qsa), 12);
    EXPECT_EQ(c.kind(LayerIx{3}), LayerKind::qsa);
    EXPECT_EQ(c.kind(LayerIx{4}), LayerKind::gdn);
    EXPECT_EQ(c.rotary_dims, 64);
    EXPECT_EQ(c.rope_theta, 1e7);
    EXPECT_EQ(c.block_top_k(), 512);
    EXPECT_EQ(c.gdn_conv_channels(), 10240);
    EXPECT_EQ(c.ngram_heads(), 16);
    EXPECT_EQ(c.ngram_head_dim(), 160);
    EXPECT_EQ(c.ngram_vocab_base, 20000000);
    EXPECT_EQ(c.n_mtp_layers, 1);
    EXPECT_EQ(c.seed, 1234);
    EXPECT_TRUE(c.norm_topk);
    EXPECT_EQ(c.eos, 248044);
}

TEST(ModelConfig, OtherArchitecturesAreRefusedByName) {
    expect_refused(
        R"("model_type": "qwen4_exp_text")", R"("model_type": "llama")", Code::unsupported,
        R"(config.json: model_type is "llama", supported: "qwen4_exp", "qwen4_exp_text")");
    EXPECT_ERROR(parse(R"({"hidden_size":1})"), Code::invalid_argument,
                 "config.json: model_type is missing");
    EXPECT_ERROR(parse(R"({"model_type":"qwen4_exp"})"), Code::invalid_argument,
                 "text_config is missing");
    EXPECT_ERROR(parse(R"({"model_type":"qwen4_exp","text_config":[]})"), Code::invalid_argument,
                 "text_config is an array, need an object");
    EXPECT_ERROR(
        parse(with(nested(), R"("model_type": "qwen4_exp_text")", R"("model_type": "qwen3_next")")),
        Code::unsupported, R"(text_config.model_type is "qwen3_next")");
    EXPECT_ERROR(parse("[]"), Code::invalid_argument, "is an array, need an object");
}

TEST(ModelConfig, EveryRequiredFieldIsNamedWhenAbsent) {
    for (const char* key : {"hidden_size",
                            "num_hidden_layers",
                            "vocab_size",
                            "max_position_embeddings",
                            "rms_norm_eps",
                            "hc_count",
                            "hc_lowrank",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "indexer_n_heads",
                            "indexer_kv_heads",
                            "indexer_head_dim",
                            "indexer_budget",
                            "indexer_compress_ratio",
                            "rope_theta",
                            "partial_rotary_factor",
                            "linear_num_key_heads",
                            "linear_key_head_dim",
                            "linear_num_value_heads",
                            "linear_value_head_dim",
                            "linear_conv_kernel_dim",
                            "num_experts",
                            "num_experts_per_tok",
                            "moe_intermediate_size",
                            "shared_expert_intermediate_size",
                            "ple_embed_dim",
                            "ple_conv_kernel_size",
                            "ngram_size",
                            "heads_per_ngram",
                            "ngram_vocab_size_base",
                            "eos_token_id"}) {
        const std::string quoted = fmt::format("\"{}\":", key);
        const auto c = parse(with(plain(), quoted, "\"renamed\":"));
        ASSERT_FALSE(c) << key;
        EXPECT_THAT(c.error().message, ::testing::HasSubstr(fmt::format("{} is missing", key)));
    }
}

TEST(ModelConfig, SizesMustBePositiveAndSane) {
    for (const char* key :
         {"hidden_size\": 128", "num_hidden_layers\": 5", "vocab_size\": 512", "hc_count\": 4",
          "hc_lowrank\": 32", "num_attention_heads\": 4", "num_key_value_heads\": 2",
          "head_dim\": 64", "indexer_n_heads\": 3", "indexer_budget\": 64",
          "indexer_compress_ratio\": 4", "linear_num_key_heads\": 4", "num_experts\": 8",
          "num_experts_per_tok\": 3", "moe_intermediate_size\": 128", "ngram_size\": 3",
          "max_position_embeddings\": 4096", "linear_conv_kernel_dim\": 4"}) {
        const std::string from = fmt::format("\"{}", key);
        const std::string name(key, std::string_view(key).find('"'));
        for (const char* value : {"0", "-4", "99999999999"})
            expect_invalid(from, fmt::format("\"{}\": {}", name, value),
                           fmt::format("config.json: {} is {}, need ", name, value));
        expect_invalid(from, fmt::format("\"{}\": 2.5", name),
                       fmt::format("{} is 2.5, need an integer", name));
        expect_invalid(from, fmt::format("\"{}\": \"4\"", name),
                       fmt::format("{} is a string, need an integer", name));
    }
    expect_invalid(R"("rms_norm_eps": 1e-06)", R"("rms_norm_eps": 0)",
                   "rms_norm_eps is 0, need above 0");
    expect_invalid(R"("rope_theta": 10000.0)", R"("rope_theta": -1)",
                   "config.json: rope_parameters.rope_theta is -1, need above 0");
}

TEST(ModelConfig, ErrorsInANestedConfigCarryTheWholePath) {
    EXPECT_ERROR(parse(with(nested(), R"("hidden_size": 128)", R"("hidden_size": 0)")),
                 Code::invalid_argument,
                 "config.json: text_config.hidden_size is 0, need 1..1048576");
    EXPECT_ERROR(parse(with(nested(), R"("hidden_size": 128,)", "")), Code::invalid_argument,
                 "config.json: text_config.hidden_size is missing");
    EXPECT_ERROR(parse(with(nested(), R"("rope_theta": 10000.0)", R"("rope_theta": "x")")),
                 Code::invalid_argument, "text_config.rope_parameters.rope_theta is a string");
}

TEST(ModelConfig, HeadCountsMustDivide) {
    expect_invalid(R"("num_key_value_heads": 2)", R"("num_key_value_heads": 3)",
                   "num_attention_heads is 4, need a multiple of num_key_value_heads 3");
    expect_invalid(R"("linear_num_key_heads": 4)", R"("linear_num_key_heads": 3)",
                   "linear_num_value_heads is 8, need a multiple of linear_num_key_heads 3");
    expect_invalid(R"("num_experts_per_tok": 3)", R"("num_experts_per_tok": 9)",
                   "num_experts_per_tok is 9, need 1..8");
}

TEST(ModelConfig, ProductsThatWouldOverflowAreRefused) {
    const std::string wide =
        with(plain(), R"("linear_value_head_dim": 32)", R"("linear_value_head_dim": 1048576)");
    EXPECT_ERROR(
        parse(with(wide, R"("linear_num_value_heads": 8)", R"("linear_num_value_heads": 4096)")),
        Code::invalid_argument,
        "linear_num_value_heads makes a width of 4294967296, need at most 16777216");
}

TEST(ModelConfig, RotaryDimensionsMustBeEvenAndFit) {
    expect_invalid(R"("partial_rotary_factor": 0.25)", R"("partial_rotary_factor": 0.234375)",
                   "rope_parameters gives 15 rotary dimensions");
    expect_invalid(R"("partial_rotary_factor": 0.25)", R"("partial_rotary_factor": 0.3)",
                   "gives 19.2 rotary dimensions (partial_rotary_factor 0.3 of head_dim 64)");
    expect_invalid(R"("partial_rotary_factor": 0.25)", R"("partial_rotary_factor": 1.5)",
                   "need above 0 and at most 1");
    expect_invalid(R"("partial_rotary_factor": 0.25)", R"("partial_rotary_factor": 1.0)",
                   "indexer_head_dim is 32, need at least the 64 rotary dimensions");
    expect_invalid(R"("indexer_head_dim": 32)", R"("indexer_head_dim": 8)",
                   "need at least the 16 rotary");
}

TEST(ModelConfig, RopeFieldsMayLieBesideTheOthers) {
    std::string text = with(plain(), R"("rope_parameters": {)", R"("unused": {)");
    EXPECT_ERROR(parse(text), Code::invalid_argument, "config.json: rope_theta is missing");
    text = with(text, R"("seed": 1234)", R"("rope_theta": 5000, "partial_rotary_factor": 0.5)");
    const ModelConfig c = must(parse(text));
    EXPECT_EQ(c.rope_theta, 5000.0);
    EXPECT_EQ(c.rotary_dims, 32);
}

TEST(ModelConfig, IndexBlocksMustFitThePageAndTheBudget) {
    expect_invalid(R"("indexer_compress_ratio": 4)", R"("indexer_compress_ratio": 6)",
                   "indexer_compress_ratio is 6, need a power of two up to 256");
    expect_invalid(R"("indexer_compress_ratio": 4)", R"("indexer_compress_ratio": 512)",
                   "need 1..256");
    expect_invalid(R"("indexer_budget": 64)", R"("indexer_budget": 62)",
                   "indexer_budget is 62 tokens, need a multiple of indexer_compress_ratio 4");
    expect_refused(R"("indexer_kv_heads": 1)", R"("indexer_kv_heads": 2)", Code::unsupported,
                   "indexer_kv_heads is 2, supported: 1");
}

TEST(ModelConfig, SettingsThatWeDoNotComputeAreRefused) {
    const auto refused = [](std::string_view from, std::string_view to, const std::string& text) {
        expect_refused(from, to, Code::unsupported, text);
    };
    refused(R"("hidden_act": "silu")", R"("hidden_act": "gelu")",
            R"(hidden_act is "gelu", supported: "silu")");
    refused(R"("output_gate_type": "sigmoid")", R"("output_gate_type": "silu")",
            R"(output_gate_type is "silu", supported: "sigmoid")");
    refused(R"("rope_type": "default")", R"("rope_type": "yarn")",
            R"(rope_parameters.rope_type is "yarn", supported: "default")");
    refused(R"("seed": 1234)", R"("rope_scaling": {"type": "linear", "factor": 2})",
            R"(rope_scaling.type is "linear", supported: "default")");
    refused(R"("attention_bias": false)", R"("attention_bias": true)",
            "attention_bias is true, supported: false");
    refused(R"("seed": 1234)", R"("mamba_ssm_dtype": "bfloat16")",
            R"(mamba_ssm_dtype is "bfloat16")");
}

TEST(ModelConfig, LayerTypesMustBeKnownAndComplete) {
    std::string text = nested();
    const std::string last = "\"linear_attention\",\n   \"full_attention\"\n";
    EXPECT_ERROR(
        parse(with(text, last, "\"linear_attention\",\n \"sliding_attention\"\n")),
        Code::unsupported,
        R"(text_config.layer_types[4] is "sliding_attention", supported: linear_attention)");
    EXPECT_ERROR(parse(with(text, last, "\"full_attention\"\n")), Code::invalid_argument,
                 "layer_types has 4 entries, num_hidden_layers is 5");
    EXPECT_ERROR(parse(with(text, last, "\"linear_attention\", 7\n")), Code::invalid_argument,
                 "layer_types[4] is a number, need a string");
}

TEST(ModelConfig, MissingLayerTypesFollowTheInterval) {
    std::string text = with(plain(), R"("layer_types")", R"("other")");
    EXPECT_ERROR(parse(text), Code::invalid_argument, "full_attention_interval is missing");
    const ModelConfig c =
        must(parse(with(text, R"("seed": 1234)", R"("full_attention_interval": 2)")));
    using enum LayerKind;
    EXPECT_THAT(c.layer_kinds, ElementsAre(gdn, qsa, gdn, qsa, gdn));
}

TEST(ModelConfig, PleLayersAreCheckedAndOptional) {
    const std::string ids = "\"ple_layer_ids\": [\n    2,\n    4\n  ]";
    expect_invalid(ids, R"("ple_layer_ids": [0])",
                   "ple_layer_ids[0] is 0, need 1..5 (counted from 1)");
    expect_invalid(ids, R"("ple_layer_ids": [2, 6])", "ple_layer_ids[1] is 6");
    expect_invalid(ids, R"("ple_layer_ids": [2, 2])",
                   "ple_layer_ids[1] is not above the entry before it");
    expect_invalid(ids, R"("ple_layer_ids": 2)", "ple_layer_ids is a number, need an array");
    expect_invalid(R"("ple_embed_dim": 128)", R"("ple_embed_dim": 100)",
                   "ple_embed_dim is 100, need a multiple of the 8 hash heads");
    for (const char* none : {R"("ple_layer_ids": [])", R"("ple_layer_ids": null)"}) {
        const ModelConfig c = must(parse(with(plain(), ids, none)));
        EXPECT_TRUE(c.ple_layers.empty());
        EXPECT_EQ(c.ngram_head_dim(), 0);
    }
}

TEST(ModelConfig, EosIsOneTokenOfTheVocabulary) {
    expect_invalid(R"("eos_token_id": 2)", R"("eos_token_id": 512)",
                   "eos_token_id is 512, need 0..511");
    expect_invalid(R"("eos_token_id": 2)", R"("eos_token_id": -1)", "eos_token_id is -1");
    expect_refused(R"("eos_token_id": 2)", R"("eos_token_id": [2, 3])", Code::unsupported,
                   "eos_token_id is a list");
    EXPECT_EQ(must(parse(with(plain(), R"("eos_token_id": 2)", R"("eos_token_id": [3])"))).eos, 3);
    // Some wrappers keep it at the top.
    std::string text = with(nested(), R"("eos_token_id": 2,)", "");
    text = with(text, R"("language_model_only": true,)", R"("eos_token_id": 7,)");
    EXPECT_EQ(must(parse(text)).eos, 7);
}

TEST(ModelConfig, MtpLayersAreCountedFromEitherPlace) {
    EXPECT_EQ(must(parse(with(plain(), R"("seed": 1234)", R"("mtp": {"num_hidden_layers": 2})")))
                  .n_mtp_layers,
              2);
    EXPECT_EQ(
        must(parse(with(plain(), R"("seed": 1234)", R"("mtp_num_hidden_layers": 1)"))).n_mtp_layers,
        1);
    expect_invalid(R"("seed": 1234)", R"("mtp": {"num_hidden_layers": -2})",
                   "mtp.num_hidden_layers is -2");
}

TEST(ModelConfig, OtherQuantizationMethodsAreRefused) {
    EXPECT_ERROR(parse(with(nested(), R"("quant_method": "exl3")", R"("quant_method": "awq")")),
                 Code::unsupported,
                 R"(quantization_config has quant_method "awq", supported: "exl3")");
    EXPECT_ERROR(parse(with(nested(), R"("quant_method": "exl3",)", "")), Code::invalid_argument,
                 "quantization_config.quant_method is missing");
    EXPECT_ERROR(parse(with(nested(), R"("head_bits": 6)", R"("head_bits": 1000)")),
                 Code::invalid_argument, "head_bits 1000");
    EXPECT_FALSE(
        must(parse(with(nested(), R"("head_bits": 6,)", ""))).quantization->head_bits.has_value());
}

TEST(ModelConfig, TieWordEmbeddingsOfTheWrapperWins) {
    EXPECT_TRUE(must(parse(with(plain(), R"("tie_word_embeddings": false)",
                                R"("tie_word_embeddings": true)")))
                    .tie_word_embeddings);
    const std::string outer = "\"tie_word_embeddings\": false,\n \"text_config\"";
    EXPECT_TRUE(must(parse(with(nested(), outer, "\"tie_word_embeddings\": true, \"text_config\"")))
                    .tie_word_embeddings);
}

TEST(GenerationConfig, EosMayBeOneTokenOrAList) {
    const ModelConfig model = must(parse(plain()));
    const auto eos = [&](std::string_view json) {
        return must(parse_generation_config(json, "generation_config.json", model)).eos;
    };
    EXPECT_THAT(eos(R"({"eos_token_id":5})"), ElementsAre(5));
    EXPECT_THAT(eos(R"({"eos_token_id":[5,2,5]})"), ElementsAre(5, 2));
    EXPECT_THAT(eos("{}"), ElementsAre(2));
    EXPECT_THAT(eos(R"({"eos_token_id":null})"), ElementsAre(2));
    EXPECT_THAT(eos(R"({"eos_token_id":[]})"), ElementsAre(2));
    EXPECT_THAT(default_generation(model).eos, ElementsAre(2));
}

TEST(GenerationConfig, SamplingFieldsAreOptionalAndChecked) {
    const ModelConfig model = must(parse(plain()));
    const auto read = [&](std::string_view json) {
        return parse_generation_config(json, "generation_config.json", model);
    };
    const GenerationConfig g = must(read(
        R"({"do_sample":true,"temperature":0.5,"top_p":0.9,"top_k":20,"min_p":0.01,"repetition_penalty":1.1})"));
    EXPECT_TRUE(g.do_sample);
    EXPECT_EQ(g.temperature, 0.5);
    EXPECT_EQ(g.top_p, 0.9);
    EXPECT_EQ(g.top_k, 20);
    EXPECT_EQ(g.min_p, 0.01);
    EXPECT_EQ(g.repetition_penalty, 1.1);
    const GenerationConfig none = must(read("{}"));
    EXPECT_FALSE(none.do_sample);
    EXPECT_FALSE(none.temperature || none.top_p || none.top_k || none.min_p ||
                 none.repetition_penalty);
    for (const char* bad : {R"({"temperature":-1})", R"({"top_p":1.5})", R"({"min_p":-0.1})",
                            R"({"repetition_penalty":0})", R"({"top_k":-5})",
                            R"({"top_k":99999999999})", R"({"do_sample":1})", R"({"top_p":"x"})",
                            R"({"eos_token_id":"x"})", R"({"eos_token_id":[512]})", "[]", "{"})
        EXPECT_FALSE(read(bad)) << bad;
    EXPECT_ERROR(read(R"({"top_p":1.5})"), Code::invalid_argument,
                 "generation_config.json: top_p is 1.5, need 0..1");
}

}  // namespace
}  // namespace terrace::test
