// The forward pass of one step: rows of several sequences through all layers to logits. Owns the
// activation buffers, sized once for the largest step; forward() allocates nothing, does not block
// beyond its operations, and keeps no state between steps: everything that lasts lies in the pages
// and slots that the caller names. Engine thread only.
//
// Model spec 3 gives each formula; src/model/layer_*.cpp has one file per kind of layer.
// SPDX-License-Identifier: MIT
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "model/weights.h"
#include "ops/ops.h"
#include "tier/budget.h"
#include "tier/kv_staging.h"
#include "tier/ngram_table.h"
#include "tier/sequence_store.h"

namespace terrace {

// Sizes of the largest step.
struct StepLimits {
    int32_t rows = 512;         // tokens of one step
    int32_t seqs = 8;           // sequences of one step
    int32_t logit_rows = 8;     // rows whose logits one step may ask for
    int32_t max_tokens = 4096;  // longest sequence
};

// What one step computes. A value: the model reads it and keeps nothing of it.
struct StepInput {
    std::span<const TokenId> tokens;  // [rows], sequence after sequence
    std::span<const SeqRows> seqs;    // table_offset indexes block_tables
    std::span<const int32_t> block_tables;
    // Tokens of each sequence before its first row, oldest first, at most ngram_size - 1 of them.
    std::span<const std::span<const TokenId>> history;  // [seqs]
    std::span<const int32_t> logit_rows;                // rows whose logits are wanted, ascending
};

// Looks at intermediate values; for tests, traces and statistics. Spans are valid during the call.
class StepObserver {
  public:
    virtual ~StepObserver() = default;
    // Before everything else of a step.
    virtual void begin(const StepInput&) {}
    // Residual streams [rows][streams*hidden] after a layer.
    virtual void after_layer(LayerIx, int32_t rows, DevSpan<const float> h) = 0;
    // Blocks that rows [first_row, first_row + rows) of a sparse layer attend to, [rows][top].
    virtual void selected(LayerIx, int32_t first_row, int32_t rows, int32_t top,
                          DevSpan<const int32_t> blocks, DevSpan<const int32_t> counts) = 0;
    // Experts chosen by every row, [rows][k].
    virtual void routed(LayerIx, int32_t rows, int32_t k, DevSpan<const int32_t> ids) = 0;
};

// Largest score slab of one launch: rows x blocks floats.
constexpr size_t kScoreSlabBytes = size_t{32} << 20;

enum class MirrorCall : uint8_t;  // ops/mirror_args.h
struct StepBuffers;               // activations; model/buffers.h

class Model {
  public:
    // `tables`: one n-gram table per injection, in layer order. Takes the activation buffers from
    // `budget`, the device's, and the metadata that is copied there from `host_budget` (the same on
    // a unified device).
    static Result<std::unique_ptr<Model>> create(const ModelConfig& config, ModelWeights weights,
                                                 std::vector<NgramTable> tables, Device& device,
                                                 Ops& ops, Budget& budget, Budget& host_budget,
                                                 const StepLimits& limits);
    ~Model();

    const ModelConfig& config() const { return config_; }
    const ModelWeights& weights() const { return weights_; }
    const StepLimits& limits() const { return limits_; }

    // Logits of input.logit_rows go to logits() [logit_rows][vocab] on the device.
    Status forward(Stream& stream, const SequenceStore& store, const StepInput& input);
    DevSpan<const float> logits() const;

    // From now on prefilled rows read their history by way of `staging` where that pays; null: never.
    // Bits do not depend on it.
    void stage_with(KvStaging* staging) { staging_ = staging; }

    void observe(StepObserver* observer) { observer_ = observer; }

    // For measurements with random weights, whose selections have no likeness from step to step:
    // decode steps of `rows` sequences select as ever, but attend to these lists, [sparse layers]
    // [rows][top], ascending blocks below every row's complete ones. The caller may change them
    // between steps; the address is part of captured steps. Empty: off, the preset.
    void replace_selection(DevSpan<const int32_t> lists, int32_t rows) {
        lists_ = lists;
        list_rows_ = rows;
        captured_.clear();
    }

    // Decode steps of a shape seen before are captured once and replayed where the device has
    // graphs; off: every step is launched operation by operation, with the same bits.
    enum class Graphs : uint8_t { off, on };
    void use_graphs(Graphs graphs) { graphs_ = graphs; }
    int64_t replays() const { return replays_; }
    int64_t ngram_rows_read() const;

    // What create() will take; the planner asks before.
    static size_t activation_bytes(const ModelConfig& config, const StepLimits& limits);
    static size_t staging_bytes(const ModelConfig& config, const StepLimits& limits);
    static size_t logit_bytes(const ModelConfig& config, const StepLimits& limits);
    static OpsLimits ops_limits(const ModelConfig& config, const StepLimits& limits);

    // Geometry of the planes and states that this model's sequences need, and of an arena for
    // staging with halves of so many pages.
    static PlaneGeometry plane_geometry(const ModelConfig& config, PlaneType type, int32_t pages);
    static StateGeometry state_geometry(const ModelConfig& config, int32_t slots);
    static StagingGeometry staging_geometry(const ModelConfig& config, const StepLimits& limits,
                                            const PlaneGeometry& planes, int32_t half_pages,
                                            const Ops& ops);

  private:
    Model() = default;
    Status upload(Stream& stream, const StepInput& input);
    Status gather_ngrams(Stream& stream, const StepInput& input);
    Status plan_gathering(Stream& stream, const SequenceStore& store, const StepInput& input);
    Status run_layers(Stream& stream, const SequenceStore& store, int32_t logit_rows);
    Status replay(Stream& stream, const SequenceStore& store, const StepInput& input);
    Status gdn_layer(Stream& stream, const SequenceStore& store, const LayerWeights& layer,
                     int32_t gdn_index);
    Status qsa_layer(Stream& stream, const SequenceStore& store, const LayerWeights& layer,
                     LayerIx index, int32_t qsa_index);
    Status attention(Stream& stream, const SequenceStore& store, LayerIx layer_index,
                     int32_t qsa_index);
    Status resolve(Stream& stream, const SequenceStore& store, const AttendArgs& attend,
                   int32_t qsa_index, MirrorCall& call);
    Status moe_layer(Stream& stream, const LayerWeights& layer, LayerIx index);
    Status ple(Stream& stream, const SequenceStore& store, const LayerWeights& layer,
               int32_t ple_index);
    Status linear(Stream& stream, DevSpan<const float> x,
                  std::initializer_list<std::pair<const LinearWeight*, DevSpan<float>>> jobs);
    Rope rope() const;

    ModelConfig config_;
    ModelWeights weights_;
    std::vector<NgramTable> tables_;
    Ops* ops_ = nullptr;
    StepLimits limits_;
    std::unique_ptr<StepBuffers> b_;
    StepObserver* observer_ = nullptr;
    KvStaging* staging_ = nullptr;
    bool staged_ = false;      // the step in progress has rows that read by way of it
    StepRows step_;            // of the step in progress
    int32_t max_visible_ = 0;  // most complete blocks of any row of the step

    // What a captured step depends on besides device memory. Everything else (positions, pages,
    // slots, tokens) is read from the step's metadata on the device.
    struct Shape {
        int32_t rows = 0;
        bool sparse = false;
        auto operator<=>(const Shape&) const = default;
    };
    Graphs graphs_ = Graphs::on;
    std::map<Shape, std::unique_ptr<Graph>> captured_;  // null: seen once, launched eagerly
    int64_t replays_ = 0;
    DevSpan<const int32_t> lists_;  // see replace_selection()
    int32_t list_rows_ = 0;
};

}  // namespace terrace
