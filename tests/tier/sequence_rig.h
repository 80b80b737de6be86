// Sequences beside a naive model of them. The naive side keeps every row of every plane and the
// whole recurrent state of a sequence in plain vectors of its own and shares nothing; the real side
// writes the same values where a kernel would, through block table, RowSource and IndexPlanes.
// difference() then says where the two part. Test thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/support.h"
#include "tier/sequence_store.h"

namespace terrace::test {

struct NaiveSequence {
    std::vector<std::vector<float>> rows;  // [position][layer: K, V, raw]
    std::vector<float> state;              // everything in its slot
    struct Checkpoint {
        size_t length;
        std::vector<float> state;
    };
    std::optional<Checkpoint> checkpoint;
};

struct TestSequence {
    SequenceMemory memory;
    NaiveSequence naive;
};

class SequenceRig {
  public:
    SequenceRig(int32_t pages, int32_t slots, PlaneType type = PlaneType::f16);

    SequenceStore& store() { return *store_; }
    Stream& stream() { return *stream_; }

    // Each does the same on both sides; on an error the naive side is left as it was.
    Result<TestSequence> create();
    Status append(TestSequence& s, int32_t n);
    Result<TestSequence> fork(const TestSequence& s);
    void truncate(TestSequence& s, int32_t length);
    Status checkpoint(TestSequence& s);
    Status restore(TestSequence& s);

    // Empty when length, all rows [0, length), all complete pooled rows, the state and the
    // checkpoint's length are as the naive side has them.
    std::string difference(const TestSequence& s) const;
    // Empty when every page is held exactly by the tables of `live`, and every slot by them too.
    std::string leak(const std::vector<const TestSequence*>& live) const;

  private:
    struct Place {
        int32_t page, offset;
    };
    Place place(const SequenceMemory& m, size_t position) const;
    std::byte* kv(int32_t layer, Place at, int half) const;
    std::byte* raw(int32_t layer, Place at) const;
    std::byte* pooled(int32_t layer, const SequenceMemory& m, size_t block) const;
    void put(std::byte* to, const float* values, size_t n) const;
    std::vector<float> get(const std::byte* from, size_t n) const;
    std::vector<float> read_state(SlotId slot) const;
    void write_state(SlotId slot, const std::vector<float>& values);

    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Stream> stream_;
    Budget budget_{"host memory", 0};
    std::unique_ptr<SequenceStore> store_;
    Random random_{1};
};

}  // namespace terrace::test
