// Moves bound weights into the memory of a device that has its own: every tensor to an address of
// kWeightAlign, views rewritten to it, so that layers and operations see no difference. On a unified
// device weights stay where the checkpoint has them. Called once at start by the engine thread.
// SPDX-License-Identifier: MIT
#pragma once
#include "model/weights.h"
#include "tier/budget.h"

namespace terrace {

// Bytes that weights take once placed, padding included, as the planner and the budget count them.
struct WeightBytes {
    uint64_t weights = 0;  // all but routed experts; expert tables included
    uint64_t experts = 0;
};
WeightBytes placed_bytes(const ModelWeights& weights);

// Copies everything through a pinned window and waits for it. Host copies that only served binding
// (ModelWeights::owned) are given back. Error out_of_memory as the device says.
Status place_weights(ModelWeights& weights, Device& device, Stream& stream, Budget& budget);

// Fills MoeWeights::device_experts of every layer: entries in device memory, or the host's own on a
// unified device. Part of place_weights(); for weights that were made on the device.
Status place_expert_tables(ModelWeights& weights, Device& device, Stream& stream, Budget& budget);
uint64_t expert_table_bytes(const ModelWeights& weights);

// Copies a long run of bytes to a device through two pinned buffers, the copy of one overlapping the
// filling of the other.
class UploadWindow {
  public:
    static Result<UploadWindow> create(Device& device, Stream& stream, size_t bytes);

    // Memory for the next `bytes` (at most the window) of the upload; the previous piece must have
    // been sent.
    Result<std::byte*> next();
    size_t bytes() const { return bytes_; }
    Status send(std::byte* to, size_t bytes);  // the piece that next() gave
    Status finish();                           // waits for all of it

  private:
    UploadWindow() = default;
    Stream* stream_ = nullptr;
    size_t bytes_ = 0;
    Buffer buffers_[2];
    std::unique_ptr<Event> free_[2];
    bool used_[2] = {false, false};
    int current_ = 0;
};

}  // namespace terrace
