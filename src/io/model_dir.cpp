// SPDX-License-Identifier: MIT
#include "io/model_dir.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

namespace terrace {
namespace fs = std::filesystem;

namespace {

// Why a folder is no model, with what is there and what to do about it.
Error no_config(const fs::path& directory) {
    constexpr size_t kShown = 8;
    std::error_code ec;
    std::set<std::string> entries;
    std::string inside;  // a subfolder that is a model: a download cache's snapshot, usually
    bool gguf = false;
    for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
        entries.insert(it->path().filename().string());
        gguf |= it->path().extension() == ".gguf";
        std::error_code ignored;
        if (inside.empty() && fs::exists(it->path() / "config.json", ignored))
            inside = it->path().string();
    }
    if (ec)
        return Error{Code::io,
                     fmt::format("{}: cannot list: {}", directory.string(), ec.message())};
    const size_t n = entries.size();
    std::vector<std::string> shown(
        entries.begin(),
        std::next(entries.begin(), static_cast<std::ptrdiff_t>(std::min(n, kShown))));
    if (n > kShown) shown.push_back(fmt::format("and {} more", n - kShown));
    std::string remedy = "give the folder that holds config.json and *.safetensors";
    if (!inside.empty()) remedy = fmt::format("did you mean {}?", inside);
    if (gguf) remedy = "GGUF is not read; " + remedy;
    return Error{Code::not_found,
                 n == 0
                     ? fmt::format("{}: is empty, need config.json; {}", directory.string(), remedy)
                     : fmt::format("{}: has no config.json (it has {}); {}", directory.string(),
                                   fmt::join(shown, ", "), remedy)};
}

}  // namespace

Result<ModelConfig> load_model_config(const fs::path& directory) {
    std::error_code ec;
    const fs::file_status status = fs::status(directory, ec);
    if (!fs::exists(status))
        return Error{Code::not_found,
                     fmt::format("{}: no such folder; give the folder that holds config.json and "
                                 "*.safetensors",
                                 directory.string())};
    if (!fs::is_directory(status))
        return Error{
            Code::invalid_argument,
            fmt::format("{}: is a file; give the folder that holds config.json and *.safetensors",
                        directory.string())};
    const fs::path file = directory / "config.json";
    if (!fs::exists(file, ec)) return no_config(directory);
    TERRACE_ASSIGN(const std::string text, read_text_file(file, size_t{16} << 20));
    return parse_model_config(text, file.string());
}

Result<ModelDir> ModelDir::open(const fs::path& path) {
    TERRACE_ASSIGN(ModelConfig config, load_model_config(path));
    GenerationConfig generation = default_generation(config);
    const fs::path generation_file = path / "generation_config.json";
    std::error_code ec;
    if (fs::exists(generation_file, ec)) {
        TERRACE_ASSIGN(const std::string text, read_text_file(generation_file, size_t{16} << 20));
        TERRACE_ASSIGN(generation, parse_generation_config(text, generation_file.string(), config));
    }
    TERRACE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(path));
    return ModelDir(path, std::move(config), std::move(generation), std::move(checkpoint));
}

bool ModelDir::has_file(std::string_view name) const {
    std::error_code ec;
    return fs::is_regular_file(file(name), ec);
}

Result<std::string> ModelDir::read_text(std::string_view name, size_t max_bytes) const {
    return read_text_file(file(name), max_bytes);
}

}  // namespace terrace
