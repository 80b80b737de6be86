// What a user may ask of an engine, as plain values; the command line, the environment and the C
// API all fill these. Nothing here reads the environment.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/types.h"
#include "device/planes.h"
#include "model/model.h"
#include "ops/backends.h"
#include "tier/ngram_table.h"

namespace terrace {

// Where K and V planes live. Bits do not depend on it.
enum class KvOffload : uint8_t {
    off,   // the device's memory
    host,  // pinned host memory, read over the link
    fit    // the device's memory while the plan fits there, else the host's
};

// EngineOptions::kv_mirror: as large as is useful and fits, where K and V are on the host.
constexpr uint64_t kMirrorAuto = UINT64_MAX;

// Whether prefilled rows whose K and V are on the host read them by way of an arena in the device's
// memory. Bits do not depend on it.
enum class KvStagingMode : uint8_t { off, where_it_pays };

struct EngineOptions {
    std::filesystem::path model;  // folder of an EXL3 pack or a plain checkpoint
    BackendOptions backend;
    int32_t ctx = 0;              // tokens a sequence may hold; 0: min(model's maximum, 8192)
    int32_t max_seqs = 4;         // sequences that may run at once
    int32_t pool_tokens = 0;      // tokens of all sequences together; 0: ctx * max_seqs
    int32_t prefill_chunk = 512;  // prompt rows of one step, a multiple of 64
    int32_t logit_rows = 0;       // rows of one step that may ask for logits; 0: max_seqs
    PlaneType kv_type = PlaneType::f16;
    KvOffload kv_offload = KvOffload::fit;
    MemSpace kv_raw = MemSpace::host_pinned;  // of raw index keys when K and V are on the host
    // Bytes of K/V blocks that are mirrored in the device's memory, all layers together; 0: none.
    uint64_t kv_mirror = kMirrorAuto;
    KvStagingMode kv_staging = KvStagingMode::where_it_pays;
    uint64_t kv_arena = 0;  // bytes of each of its two halves; 0: what --ctx needs and fits
    NgramPlacement ngram = NgramPlacement::mapped;
    uint64_t host_limit = 0;  // bytes; 0: what the machine has available
    uint64_t vram_limit = 0;  // bytes; 0: what the GPU has free
    // Replay decode steps as captured graphs where the device has them.
    Model::Graphs graphs = Model::Graphs::on;
    std::filesystem::path trace;  // Chrome trace of every operation; turns graphs off
    std::filesystem::path
        kv_trace;  // selections of decoded rows (tier/kv_trace.h); turns graphs off
};

struct SamplingParams {
    float temperature = 1.0f;  // 0: greedy
    int32_t top_k = 0;         // 0: off
    float top_p = 1.0f;        // (0, 1]
    float min_p = 0.0f;        // [0, 1): share of the best candidate's probability
    float repetition_penalty =
        1.0f;  // > 0; divides positive logits of seen tokens, multiplies negative
    float presence_penalty = 0.0f;   // subtracted once from tokens generated so far
    float frequency_penalty = 0.0f;  // subtracted per occurrence among generated tokens
    std::map<TokenId, float> logit_bias;
    uint64_t seed = 0;
};

struct Request {
    std::vector<TokenId> prompt;
    SamplingParams sampling;
    int32_t max_tokens = 256;       // generated ones
    std::vector<TokenId> stop_ids;  // besides the model's own, unless ignore_eos
    std::vector<std::string> stop_strings;
    bool ignore_eos = false;
    int32_t top_logprobs = -1;  // -1: none, else 0..20 alternatives per token
};

enum class FinishReason : uint8_t {
    none,
    stop_id,
    stop_string,
    length,
    context_full,
    cancelled,
    failed
};
std::string_view to_string(FinishReason reason);

struct TokenLogprob {
    TokenId token = 0;
    float logprob = 0;  // natural log, of the model's own distribution before sampling filters
};

// One generated token, or the end.
struct TokenEvent {
    SeqId seq{};
    TokenId token = -1;  // -1: no token with this event
    std::string text;    // whole characters, already cleared of stop strings
    FinishReason finish = FinishReason::none;
    std::string error;              // finish == failed
    std::vector<TokenLogprob> top;  // [0] is the token itself
    int32_t prompt_tokens = 0, generated_tokens = 0;
};

}  // namespace terrace
