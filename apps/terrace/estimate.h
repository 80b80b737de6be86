// What a checkpoint of a configuration would take, class by class, without having one: for plans of
// models that are not on this machine. Pure functions; any thread. Sizes are those of EXL3 packs
// (EXL3 format 1.1 and 1.8; n-gram rows: model spec 2.2) and agree with synthetic_bytes().
// SPDX-License-Identifier: MIT
#pragma once
#include <map>
#include <string>

#include "exl3/codebook.h"
#include "io/model_config.h"
#include "model/synthetic.h"

namespace terrace {

struct PackFormat {
    SyntheticOptions weights;
    int32_t ngram_bits = 5;  // per value of a table row, 1..8; 16: plain rows
};

// Classes named as bind_weights() names them.
std::map<std::string, WeightClass> estimate_classes(const ModelConfig& config,
                                                    const PackFormat& format);

}  // namespace terrace
