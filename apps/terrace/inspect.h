// Tables of weights by class, printed alike by inspect and plan.
// SPDX-License-Identifier: MIT
#pragma once
#include <map>
#include <string>

#include "io/model_config.h"
#include "json_out.h"
#include "model/weights.h"

namespace terrace {

std::string class_table(const std::map<std::string, WeightClass>& classes);
void class_json(JsonOut& json, std::string_view key,
                const std::map<std::string, WeightClass>& classes);
std::string config_lines(const ModelConfig& config);
void config_json(JsonOut& json, const ModelConfig& config);

}  // namespace terrace
