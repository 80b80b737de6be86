// A model folder, opened: its config, how it wants to be sampled, and its mapped tensors. The
// tokenizer files stay text; src/text reads them. Opening reads JSON and headers, never weights.
// Immutable and move-only afterwards; any thread. Never looks outside the folder and never writes.
// SPDX-License-Identifier: MIT
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/model_config.h"

namespace terrace {

class ModelDir {
  public:
    // not_found when the folder or its config.json is missing, saying what is there instead; else
    // whatever is wrong with the config or the weights.
    static Result<ModelDir> open(const std::filesystem::path& path);

    const ModelConfig& config() const { return config_; }
    const GenerationConfig& generation() const { return generation_; }
    const Checkpoint& checkpoint() const { return checkpoint_; }
    const std::filesystem::path& path() const { return path_; }

    // A file of the folder, for tokenizer.json, tokenizer_config.json, chat_template.jinja ...
    std::filesystem::path file(std::string_view name) const { return path_ / name; }
    bool has_file(std::string_view name) const;
    Result<std::string> read_text(std::string_view name, size_t max_bytes = size_t{64} << 20) const;

  private:
    ModelDir(std::filesystem::path path, ModelConfig config, GenerationConfig generation,
             Checkpoint checkpoint)
        : path_(std::move(path)),
          config_(std::move(config)),
          generation_(std::move(generation)),
          checkpoint_(std::move(checkpoint)) {}

    std::filesystem::path path_;
    ModelConfig config_;
    GenerationConfig generation_;
    Checkpoint checkpoint_;
};

// The config alone, for plans and listings that need no weights. Same errors as ModelDir::open.
Result<ModelConfig> load_model_config(const std::filesystem::path& directory);

}  // namespace terrace
