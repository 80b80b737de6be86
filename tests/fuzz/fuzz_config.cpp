// Any bytes as config.json and generation_config.json: an error, or a config that keeps the
// promises of io/model_config.h, on which everybody behind it divides and allocates. The JSON
// facade is walked over the same bytes.
// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdint>
#include <string_view>

#include "io/json.h"
#include "io/model_config.h"

namespace {

using namespace terrace;

void walk(const Json& value) {
    TERRACE_CHECK(!value.where().empty());
    (void)value.as_bool();
    (void)value.as_int();
    (void)value.as_double();
    if (const auto text = value.as_string()) {
        const auto again = parse_json(quote_json(*text), "quoted");
        TERRACE_CHECK(again.has_value() && again->as_string() == *text);
    }
    if (const auto elements = value.elements()) {
        TERRACE_CHECK(elements->size() == value.size());
        for (const Json& e : *elements)
            walk(e);
    }
    if (const auto members = value.members()) {
        TERRACE_CHECK(members->size() == value.size());
        for (const Json::Member& m : *members) {
            TERRACE_CHECK(value.find(m.key).has_value());
            walk(m.value);
        }
    }
}

void check(const ModelConfig& c) {
    TERRACE_CHECK(c.hidden > 0 && c.n_layers > 0 && c.vocab > 0 && c.hc_count > 0 && c.hc_rank > 0);
    TERRACE_CHECK(static_cast<size_t>(c.n_layers) == c.layer_kinds.size());
    TERRACE_CHECK(c.n_heads % c.n_kv_heads == 0 && c.gdn_v_heads % c.gdn_k_heads == 0);
    TERRACE_CHECK(c.rotary_dims >= 2 && c.rotary_dims % 2 == 0);
    TERRACE_CHECK(c.rotary_dims <= c.head_dim && c.rotary_dims <= c.index_dim);
    TERRACE_CHECK(256 % c.index_block == 0 && c.index_budget_tokens % c.index_block == 0);
    TERRACE_CHECK(c.n_experts_per_token >= 1 && c.n_experts_per_token <= c.n_experts);
    TERRACE_CHECK(c.eos >= 0 && c.eos < c.vocab && c.seed >= 0);
    TERRACE_CHECK(std::isfinite(c.rms_eps) && c.rms_eps > 0 && std::isfinite(c.rope_theta));
    TERRACE_CHECK(c.gdn_conv_channels() > 0);
    if (!c.ple_layers.empty())
        TERRACE_CHECK(c.ngram_head_dim() > 0 && c.ple_dim % c.ngram_heads() == 0);
    for (const LayerIx layer : c.ple_layers)
        TERRACE_CHECK(ix(layer) >= 0 && ix(layer) < c.n_layers);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto json = parse_json(text, "fuzz")) walk(*json);
    if (const auto config = parse_model_config(text, "fuzz")) check(*config);
    ModelConfig model;
    model.vocab = 512;
    if (const auto g = parse_generation_config(text, "fuzz", model)) {
        TERRACE_CHECK(!g->eos.empty());
        for (const TokenId id : g->eos)
            TERRACE_CHECK(id >= 0 && id < model.vocab);
    }
    return 0;
}
