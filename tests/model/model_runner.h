// Drives a Model over one sequence for tests: opens a folder, makes planes and states, feeds tokens
// in chosen chunks, collects logits, and records what an observer sees.
// SPDX-License-Identifier: MIT
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/placement.h"
#include "support/support.h"

namespace terrace::test {

// tests/data/NAME, or models/demo for "demo".
std::filesystem::path model_path(const std::string& name);

class ModelRunner : public StepObserver {
  public:
    struct Options {
        PlaneType planes = PlaneType::f32;
        int32_t max_rows = 512;
        int32_t max_tokens = 4096;
        int32_t seqs = 4;
        NgramPlacement ngram = NgramPlacement::mapped;
        MemSpace kv_space = MemSpace::device, raw_space = MemSpace::device;
        int32_t mirror_slots = 0;  // of every layer
        Device* device = nullptr;  // null: a host device of the runner's own
        bool observe = true;       // off: steps of one row each may be replayed as graphs
        int32_t half_pages = 0;    // of an arena to stage prefill by; 0: none
        // Makes the arena; empty: KvStaging::create.
        std::function<std::unique_ptr<KvStaging>(Device&, Budget&, const StagingGeometry&)>
            make_staging = {};
    };
    // Takes a reference to ops; it and a device given must outlive the runner.
    ModelRunner(const std::string& name, Ops& ops, const Options& options);

    SequenceStore& store() { return *store_; }
    Stream& stream() { return *stream_; }
    Model& model() { return *model_; }
    KvStaging* staging() { return staging_.get(); }
    const ModelConfig& config() const { return dir_->config(); }
    const ModelDir& dir() const { return *dir_; }

    struct Sequence {
        SequenceMemory memory;
        std::vector<TokenId> tokens;  // all committed ones
    };
    Sequence start();
    // One step of several sequences: appends news[i] to seqs[i]; logits of every new row, in order.
    std::vector<std::vector<float>> step(const std::vector<Sequence*>& seqs,
                                         const std::vector<std::vector<TokenId>>& news);
    // Feeds `tokens` in chunks of `chunk` and returns the logits of every row, [n][vocab].
    std::vector<float> feed(Sequence& seq, const std::vector<TokenId>& tokens, int32_t chunk);

    // Observed, by layer: residual streams of the rows of the last step; selected positions by
    // [layer][position] over all steps since clear().
    std::map<int, std::vector<float>> hidden;
    std::map<int, std::map<int, std::vector<int32_t>>> selected_blocks;

    void after_layer(LayerIx, int32_t rows, DevSpan<const float> h) override;
    void selected(LayerIx, int32_t first_row, int32_t rows, int32_t top,
                  DevSpan<const int32_t> blocks, DevSpan<const int32_t> counts) override;
    void routed(LayerIx, int32_t, int32_t, DevSpan<const int32_t>) override {}

  private:
    template <class T>
    std::vector<std::remove_const_t<T>> download(DevSpan<T> span) {
        std::vector<std::remove_const_t<T>> out(span.size());
        must(stream_->copy(out.data(), span.device_pointer(), out.size() * sizeof(T)));
        must(stream_->synchronize());
        return out;
    }

    std::unique_ptr<ModelDir> dir_;
    Ops& ops_;
    Options options_;
    std::unique_ptr<Device> own_device_;
    Device* device_;
    std::unique_ptr<Stream> stream_;
    Budget budget_{"host memory", 0};
    std::unique_ptr<SequenceStore> store_;
    std::unique_ptr<KvStaging> staging_;
    std::unique_ptr<Model> model_;
    std::vector<int32_t> row_positions_;
};

// A tensor of a safetensors file as floats or ints.
class Golden {
  public:
    explicit Golden(const std::filesystem::path& file);
    bool has(const std::string& name) const { return file_.find(name) != nullptr; }
    std::vector<float> floats(const std::string& name) const;
    std::vector<int32_t> ints(const std::string& name) const;

  private:
    SafetensorsFile file_;
};

float max_abs_difference(const float* a, const float* b, size_t n);
// KL(softmax(p) || softmax(q)) in nats.
double kl_divergence(const float* p, const float* q, size_t n);

}  // namespace terrace::test
