// SPDX-License-Identifier: MIT
#include "io/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "io/json.h"

namespace terrace {
namespace fs = std::filesystem;

namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

// What the index promises: which tensors each shard holds, shards in ascending name order.
using WeightMap = std::map<std::string, std::vector<std::string>>;

Result<WeightMap> read_index(const fs::path& path) {
    // 200,000 tensors need about 30 MB here, as in the headers.
    constexpr size_t kMaxBytes = size_t{256} << 20;
    TERRACE_ASSIGN(const std::string text, read_text_file(path, kMaxBytes));
    TERRACE_ASSIGN(const Json root, parse_json(text, path.string(), {.max_bytes = kMaxBytes}));
    TERRACE_ASSIGN(const Json weight_map, root.get("weight_map"));
    TERRACE_ASSIGN(const std::vector<Json::Member> members, weight_map.members());
    WeightMap shards;
    for (const Json::Member& m : members) {
        TERRACE_ASSIGN(std::string shard, m.value.as_string());
        // Shards lie beside their index; anything else could read files outside the model.
        if (shard.empty() ||
            shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos ||
            shard == "." || shard == "..")
            return m.value.error(
                Code::corrupt_data,
                fmt::format("is {}, need a file name without folders", quote_json(shard)));
        shards[std::move(shard)].push_back(m.key);
    }
    if (shards.empty())
        return weight_map.error(Code::corrupt_data, "is empty, need {tensor: file}");
    return shards;
}

// Names ending in .safetensors, ascending. Broken links count: opening them reports them.
Result<std::set<std::string>> list_safetensors(const fs::path& directory) {
    std::error_code ec;
    std::set<std::string> names;
    for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
        if (it->path().extension() == ".safetensors" &&
            !it->path().filename().string().starts_with('.'))
            names.insert(it->path().filename().string());
    }
    if (ec)
        return Error{ec == std::errc::no_such_file_or_directory ? Code::not_found : Code::io,
                     fmt::format("{}: cannot list the model directory: {}", directory.string(),
                                 ec.message())};
    return names;
}

std::string names_of(std::span<const fs::path> files) {
    constexpr size_t kShown = 6;
    std::vector<std::string> names;
    for (const fs::path& f : files.first(std::min(kShown, files.size())))
        names.push_back(f.filename().string());
    if (files.size() > kShown) names.push_back(fmt::format("and {} more", files.size() - kShown));
    return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const fs::path& directory) {
    Checkpoint out;
    out.directory_ = directory;
    TERRACE_ASSIGN(std::set<std::string> present, list_safetensors(directory));

    WeightMap shards;
    std::error_code ec;
    const fs::path index = directory / kIndexName;
    if (fs::exists(index, ec)) {
        TERRACE_ASSIGN(shards, read_index(index));
    }
    std::vector<std::string> missing;
    for (const auto& [shard, tensors] : shards) {
        if (!present.contains(shard)) missing.push_back(shard);
    }
    if (!missing.empty())
        return Error{
            Code::not_found,
            fmt::format("{}: {} of {} shards named by {} are not there, first {}: incomplete "
                        "download? Fetch the missing files",
                        directory.string(), missing.size(), shards.size(), kIndexName, missing[0])};
    for (const auto& [shard, tensors] : shards) {
        TERRACE_TRY(out.add_file(directory / shard));
        present.erase(shard);
    }
    for (const std::string& sidecar : present)
        TERRACE_TRY(out.add_file(directory / sidecar));
    if (out.files_.empty())
        return Error{
            Code::not_found,
            fmt::format("{}: holds no *.safetensors file; need the model's weights beside its "
                        "config.json",
                        directory.string())};
    TERRACE_TRY(out.finish());

    for (const auto& [shard, tensors] : shards) {
        for (const std::string& name : tensors) {
            const TensorView* t = out.find(name);
            if (!t)
                return Error{
                    Code::corrupt_data,
                    fmt::format("{}: says that {} holds tensor {}, which no file of the "
                                "directory does: index and shards are of different downloads?",
                                index.string(), shard, name)};
            if (t->file->path().filename() != shard)
                return Error{
                    Code::corrupt_data,
                    fmt::format("{}: says that {} holds tensor {}, which is in {}: index and "
                                "shards are of different downloads?",
                                index.string(), shard, name, t->file->path().filename().string())};
        }
    }
    return out;
}

Status Checkpoint::add_file(const fs::path& file) {
    TERRACE_ASSIGN(SafetensorsFile opened, SafetensorsFile::open(file));
    std::vector<TensorView> views = std::move(opened).take_tensors();
    std::move(views.begin(), views.end(), std::back_inserter(tensors_));
    files_.push_back(file);
    return {};
}

Status Checkpoint::finish() {
    // Ties, which are errors below, by file, so that the message is the same on every machine.
    const auto by_name = [](const TensorView& a, const TensorView& b) {
        const int order = a.name.compare(b.name);
        return order != 0 ? order < 0 : a.file->path() < b.file->path();
    };
    if (!std::is_sorted(tensors_.begin(), tensors_.end(), by_name))
        std::sort(tensors_.begin(), tensors_.end(), by_name);
    by_name_.reserve(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
        const TensorView& t = tensors_[i];
        const auto [it, fresh] = by_name_.emplace(t.name, static_cast<uint32_t>(i));
        if (!fresh)
            return Error{
                Code::corrupt_data,
                fmt::format("{}: tensor {} is in both {} and {}; remove the file that does not "
                            "belong to this model",
                            directory_.string(), t.name,
                            tensors_[it->second].file->path().filename().string(),
                            t.file->path().filename().string())};
        total_bytes_ += t.bytes;
    }
    return {};
}

const TensorView* Checkpoint::find(std::string_view name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

Result<TensorView> Checkpoint::require(std::string_view name) const {
    if (const TensorView* t = find(name)) return *t;
    return Error{Code::not_found,
                 fmt::format("{}: no tensor {} among the {} of {} ({})", directory_.string(), name,
                             tensors_.size(), files_.size() == 1 ? "its file" : "its files",
                             names_of(files_))};
}

Result<TensorView> Checkpoint::require(std::string_view name, std::initializer_list<DType> dtypes,
                                       std::span<const int64_t> shape) const {
    TERRACE_ASSIGN(TensorView t, require(name));
    TERRACE_TRY(check_tensor(t, std::span<const DType>(dtypes.begin(), dtypes.size()), shape));
    return t;
}

std::span<const TensorView> Checkpoint::with_prefix(std::string_view prefix) const {
    const auto first = std::partition_point(
        tensors_.begin(), tensors_.end(),
        [&](const TensorView& t) { return std::string_view(t.name) < prefix; });
    const auto last = std::partition_point(
        first, tensors_.end(), [&](const TensorView& t) { return t.name.starts_with(prefix); });
    return {first, last};
}

Status check_tensor(const TensorView& tensor, std::span<const DType> dtypes,
                    std::span<const int64_t> shape) {
    const auto fail = [&](std::string_view need) {
        return Error{Code::corrupt_data,
                     fmt::format("{}: tensor {} is {}, need {}", tensor.file->path().string(),
                                 tensor.name, describe(tensor.dtype, tensor.shape), need)};
    };
    if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end()) {
        std::vector<std::string_view> names;
        for (const DType t : dtypes)
            names.push_back(to_string(t));
        return fail(fmt::format("dtype {}", fmt::join(names, " or ")));
    }
    const auto scalar = [](std::span<const int64_t> s) {
        return s.empty() || (s.size() == 1 && s[0] == 1);
    };
    if (scalar(shape) && scalar(tensor.shape)) return {};
    const bool same =
        std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end(),
                   [](int64_t want, int64_t have) { return want == -1 || want == have; });
    if (!same) return fail(fmt::format("shape [{}] (-1: any)", fmt::join(shape, ", ")));
    return {};
}

}  // namespace terrace
