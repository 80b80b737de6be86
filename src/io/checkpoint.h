// The tensors of a model directory, over all its safetensors files, found by name.
//
// Read are the shards named by model.safetensors.index.json, when there is one, and then all other
// *.safetensors files that are not hidden: packs ship tensors in sidecars that their index omits
// (model spec 2.2). A name stored twice is an error that names both files, whatever the contents:
// which one was meant cannot be known. Everything is mapped, nothing is copied; opening reads
// headers only. Immutable after open; any thread may look up.
// SPDX-License-Identifier: MIT
#pragma once
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"

namespace terrace {

class Checkpoint {
  public:
    static Result<Checkpoint> open(const std::filesystem::path& directory);

    Checkpoint(Checkpoint&&) = default;
    Checkpoint& operator=(Checkpoint&&) = default;

    // Hash lookup; null when absent. The pointer lives as long as this object.
    const TensorView* find(std::string_view name) const;
    bool contains(std::string_view name) const { return find(name) != nullptr; }

    // The tensor, or not_found with the directory and the files that were searched.
    Result<TensorView> require(std::string_view name) const;
    // Also with one of `dtypes` and this shape, or corrupt_data. A dimension of -1 matches any;
    // {} and {1} match each other: writers store scalars either way (EXL3 format 1.1).
    Result<TensorView> require(std::string_view name, std::initializer_list<DType> dtypes,
                               std::span<const int64_t> shape) const;
    Result<TensorView> require(std::string_view name, std::initializer_list<DType> dtypes,
                               std::initializer_list<int64_t> shape) const {
        return require(name, dtypes, std::span<const int64_t>(shape.begin(), shape.size()));
    }

    // All tensors in ascending name order, or those whose names start with `prefix`.
    std::span<const TensorView> all() const { return tensors_; }
    std::span<const TensorView> with_prefix(std::string_view prefix) const;

    const std::filesystem::path& directory() const { return directory_; }
    std::span<const std::filesystem::path> files() const { return files_; }  // in reading order
    uint64_t total_bytes() const { return total_bytes_; }                    // of all tensors

  private:
    Checkpoint() = default;
    Status add_file(const std::filesystem::path& file);
    Status finish();

    std::filesystem::path directory_;
    std::vector<std::filesystem::path> files_;
    std::vector<TensorView> tensors_;
    std::unordered_map<std::string_view, uint32_t> by_name_;  // keys point into tensors_
    uint64_t total_bytes_ = 0;
};

// corrupt_data, naming file and tensor, unless the tensor has one of `dtypes` and this shape (as in
// Checkpoint::require).
Status check_tensor(const TensorView& tensor, std::span<const DType> dtypes,
                    std::span<const int64_t> shape);

}  // namespace terrace
