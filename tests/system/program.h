// Runs the built program as its users do: arguments, standard input and environment in; exit
// status, standard output and standard error out. The environment holds only PATH and what a test
// gives, so that a developer's TERRACE_ variables change nothing. One thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "support/support.h"

namespace terrace::test {

struct RunOptions {
    std::string input = {};
    std::map<std::string, std::string> environment = {};
    // Send SIGINT once standard output holds this many bytes; 0: never.
    size_t interrupt_after = 0;
    std::filesystem::path output = {};  // instead of a file that is read back
};

struct RunResult {
    int status = -1;  // exit status, or 128 + signal
    std::string out, err;
};

RunResult run_terrace(const std::vector<std::string>& args, const RunOptions& options = {});

// Expects success and gives standard output.
std::string terrace_output(const std::vector<std::string>& args, const RunOptions& options = {});
Json terrace_json(const std::vector<std::string>& args);
// Expects this status, nothing on standard output, and one line on standard error that begins with
// "terrace: " and holds every part.
void expect_complaint(const RunResult& result, int status, const std::vector<std::string>& parts);

std::string demo_model();
std::string data_file(std::string_view name);  // below tests/data
std::string read_file(const std::filesystem::path& path);

// A copy of a model folder that a test may break: files are symbolic links to the originals.
class ModelCopy {
  public:
    explicit ModelCopy(const std::string& folder);
    std::string path() const { return dir_.path().string(); }
    std::filesystem::path file(std::string_view name) const { return dir_.path() / name; }
    void replace(std::string_view name, std::string_view bytes);

  private:
    TempDir dir_;
};

// The tensor `logits` of a file, [rows][columns].
struct Logits {
    int64_t rows = 0, columns = 0;
    std::vector<float> values;
};
Logits read_logits(const std::filesystem::path& file);
double largest_difference(const Logits& a, const Logits& b);  // infinite when shapes differ

}  // namespace terrace::test
