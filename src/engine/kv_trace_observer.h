// Writes the block selections of decoded rows to a trace file while a model runs. Waits for the
// stream at every sparse layer: slow, and the same bits. Engine thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <vector>

#include "model/model.h"
#include "tier/kv_trace.h"

namespace terrace {

class KvTraceObserver final : public StepObserver {
  public:
    // The stream is the model's.
    KvTraceObserver(KvTraceWriter writer, Stream& stream, const ModelConfig& config);

    void begin(const StepInput& input) override;
    void selected(LayerIx layer, int32_t first_row, int32_t rows, int32_t top,
                  DevSpan<const int32_t> blocks, DevSpan<const int32_t> counts) override;
    void after_layer(LayerIx, int32_t, DevSpan<const float>) override {}
    void routed(LayerIx, int32_t, int32_t, DevSpan<const int32_t>) override {}

    // Tells whether everything could be recorded.
    Status close();

  private:
    struct Row {
        uint32_t sequence, position;
        const int32_t* table;  // in tables_
        RowKind kind;
    };
    KvTraceWriter writer_;
    Stream* stream_;
    int32_t block_tokens_;
    std::vector<int32_t> sparse_index_;  // by layer of the model
    std::vector<int32_t> tables_, blocks_, counts_;
    std::vector<Row> rows_;
    KvTraceRecord record_;
    uint32_t step_ = 0;
    Status status_;
};

}  // namespace terrace
