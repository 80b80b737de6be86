// SPDX-License-Identifier: MIT
#include "program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "io/safetensors.h"

namespace terrace::test {
namespace fs = std::filesystem;

namespace {

void redirect(int fd, const fs::path& file, int flags) {
    const int opened = open(file.c_str(), flags, 0600);
    if (opened < 0 || dup2(opened, fd) < 0) _exit(126);
}

}  // namespace

RunResult run_terrace(const std::vector<std::string>& args, const RunOptions& options) {
    const TempDir dir;
    const fs::path in = dir.path() / "in", out = dir.path() / "out", err = dir.path() / "err";
    write_file(in, options.input);
    std::vector<std::string> words{TERRACE_PROGRAM};
    words.insert(words.end(), args.begin(), args.end());
    // The CPU unless a test asks otherwise: results must not depend on the machine's GPU.
    std::vector<std::string> variables{"PATH=/usr/bin:/bin"};
    if (!options.environment.contains("TERRACE_DEVICE")) variables.push_back("TERRACE_DEVICE=cpu");
    for (const auto& [name, value] : options.environment)
        variables.push_back(name + "=" + value);
    std::vector<char*> argv, envp;
    for (std::string& word : words)
        argv.push_back(word.data());
    for (std::string& variable : variables)
        envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);

    const pid_t child = fork();
    TERRACE_CHECK(child >= 0);
    if (child == 0) {
        redirect(0, in, O_RDONLY);
        redirect(1, options.output.empty() ? out : options.output, O_WRONLY | O_CREAT);
        redirect(2, err, O_WRONLY | O_CREAT);
        execve(argv[0], argv.data(), envp.data());
        _exit(127);
    }
    bool sent = options.interrupt_after == 0;
    int state = 0;
    while (waitpid(child, &state, sent ? 0 : WNOHANG) == 0) {
        std::error_code ignored;
        if (const auto size = fs::file_size(out, ignored);
            !ignored && size >= options.interrupt_after) {
            kill(child, SIGINT);
            sent = true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    RunResult r;
    r.status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    r.out = read_file(out);
    r.err = read_file(err);
    return r;
}

std::string terrace_output(const std::vector<std::string>& args, const RunOptions& options) {
    const RunResult r = run_terrace(args, options);
    EXPECT_EQ(r.status, 0) << r.err;
    return r.out;
}

Json terrace_json(const std::vector<std::string>& args) {
    return must(parse_json(terrace_output(args), "output"));
}

void expect_complaint(const RunResult& r, int status, const std::vector<std::string>& parts) {
    EXPECT_EQ(r.status, status) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_THAT(r.err, testing::StartsWith("terrace: "));
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    for (const std::string& part : parts)
        EXPECT_THAT(r.err, testing::HasSubstr(part));
}

std::string demo_model() {
    return TERRACE_SOURCE_DIR "/models/demo";
}

std::string data_file(std::string_view name) {
    return std::string(TERRACE_TEST_DATA "/").append(name);
}

std::string read_file(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

ModelCopy::ModelCopy(const std::string& folder) {
    for (const auto& entry : fs::directory_iterator(folder))
        fs::create_symlink(entry.path(), dir_.path() / entry.path().filename());
}

void ModelCopy::replace(std::string_view name, std::string_view bytes) {
    fs::remove(file(name));
    write_file(file(name), bytes);
}

Logits read_logits(const fs::path& path) {
    const SafetensorsFile file = must(SafetensorsFile::open(path));
    const TensorView t = must(file.require("logits"));
    TERRACE_CHECK(t.dtype == DType::f32 && t.shape.size() == 2);
    Logits l{t.shape[0], t.shape[1], std::vector<float>(t.bytes / 4)};
    std::memcpy(l.values.data(), t.data, t.bytes);
    return l;
}

double largest_difference(const Logits& a, const Logits& b) {
    if (a.rows != b.rows || a.columns != b.columns) return INFINITY;
    double largest = 0;
    for (size_t i = 0; i < a.values.size(); ++i) {
        const double d =
            std::abs(static_cast<double>(a.values[i]) - static_cast<double>(b.values[i]));
        if (!(d <= largest)) largest = d;  // a NaN stays
    }
    return largest;
}

}  // namespace terrace::test
