// Measurements of terrace bench as plain values, and the tables they are printed as. Engine thread
// only.
// SPDX-License-Identifier: MIT
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/batch.h"

namespace terrace {

enum class Depth : uint8_t {
    computed,  // the cache holds what a prompt of that length leaves behind
    filled,    // random K, V and index keys and an empty recurrent state: quick, for timing only
};

struct BenchPlan {
    std::vector<int32_t> prompts, generated, depths;
    int32_t batch = 1;
    int32_t repetitions = 3;
    Depth depth = Depth::computed;
    // Share of the blocks of the step before that a decode step at a filled depth attends to again,
    // the others drawn at random; none: the model's own selection.
    std::optional<float> locality;
};

struct BenchRow {
    std::string test;  // "pp512", "tg128 @ d16384", "tg128 x4"
    int32_t depth = 0, batch = 1;
    int64_t tokens = 0;           // of one repetition, all sequences together
    std::vector<double> seconds;  // one per repetition
    Depth how = Depth::computed;
    std::optional<float> locality;

    double mean() const;       // tokens per second
    double deviation() const;  // of the sample; 0 for one repetition
};

// Each depth is filled once; every repetition works on a fork of it.
Result<std::vector<BenchRow>> run_bench(Runtime& runtime, const BenchPlan& plan);

struct BenchTitle {
    std::string model, backend;
    uint64_t bytes = 0;
    int threads = 1;
    std::vector<std::string> notes;
};
enum class BenchFormat : uint8_t { md, csv, json };
std::string print_bench(const BenchTitle& title, const std::vector<BenchRow>& rows,
                        BenchFormat format);

}  // namespace terrace
