// What the subcommands share: the flags of every command that loads a model, opening it, reading
// token files, output, Ctrl-C. One thread. Output goes through out(), so that main can tell when
// standard output could not be written.
// SPDX-License-Identifier: MIT
#pragma once
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "flags.h"

namespace terrace {

struct CommonOptions {
    EngineOptions engine;
    std::string model;
    std::string trace, kv_trace, stats_json;
    bool stats = false;
    bool pin = false, quiet = false, verbose = false, print_config = false;
};

enum class ModelFlag : uint8_t { required, optional };
// --model, --device ... --print-config. CommonOptions must outlive the set.
void add_common_flags(FlagSet& flags, CommonOptions& options, ModelFlag model);
// Changes the presets that a command wants otherwise: --max-seqs and --ctx become 0 inside, and
// --help tells `seqs` and `ctx` instead.
void adapt_presets(FlagSet& flags, CommonOptions& options, std::string seqs, std::string ctx);
// Only --quiet, --verbose and --print-config.
void add_output_flags(FlagSet& flags, CommonOptions& options);

// The EngineOptions with everything filled in that flags say in other words; sets the log level.
EngineOptions engine_options(const CommonOptions& options);

// Opens the model and says on standard error what is slower than asked (and, with --verbose, what
// was opened).
Result<std::unique_ptr<Runtime>> open_runtime(const EngineOptions& engine);
void announce(const Runtime& runtime, double seconds);

// Token ids as text (separated by white space or commas), as a JSON array, or as a tensor of a
// safetensors file, named FILE.safetensors:TENSOR. The error names the place of the first bad id.
Result<std::vector<TokenId>> read_token_file(const std::string& path, int32_t vocab);
// FILE:TENSOR -> both; without a colon after ".safetensors", `tensor` is the given default.
struct TensorPath {
    std::filesystem::path file;
    std::string tensor;
};
TensorPath split_tensor_path(const std::string& text, std::string_view default_tensor);

constexpr size_t kMaxTextBytes = size_t{1} << 30;
// All of standard input, up to kMaxTextBytes.
Result<std::string> read_standard_input();
// Editors and echo end a text with a newline that is not part of it.
void drop_final_newline(std::string& text);

void out(std::string_view text);    // to standard output, at once
bool out_failed();                  // some of it could not be written
void complain(const Error& error);  // "terrace: ..." on standard error, one line

// Ctrl-C sets a flag; a second one ends the process.
void watch_interrupts();
bool interrupted();
void forget_interrupt();
constexpr int kInterruptedExit = 130;

class Stopwatch {
  public:
    double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace terrace
