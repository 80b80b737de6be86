// How the program is called: flags, environment, help, and what wrong calls are told.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include "program.h"

namespace terrace::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// A command line that reads a model and does next to nothing.
std::vector<std::string> plan_with(std::vector<std::string> more) {
    std::vector<std::string> args{"plan", "--model", demo_model()};
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

TEST(CommandLine, NothingAtAllNamesTheCommands) {
    expect_complaint(run_terrace({}), 2, {"no command", "generate", "bench", "--help"});
}

TEST(CommandLine, UnknownCommandIsToldTheClosestOne) {
    expect_complaint(run_terrace({"genrate"}), 2,
                     {"unknown command \"genrate\"", "did you mean generate?", "inspect"});
}

TEST(CommandLine, UnknownFlagIsToldTheClosestOneAndTheLegalOnes) {
    expect_complaint(
        run_terrace({"generate", "--max-token", "5"}), 2,
        {"generate: unknown flag --max-token", "did you mean --max-tokens?", "--top-p"});
    expect_complaint(run_terrace({"inspect", "--frobnicate"}), 2,
                     {"unknown flag --frobnicate", "legal: --model"});
    expect_complaint(run_terrace({"plan", "--ctxx=5"}), 2, {"unknown flag --ctxx;", "--ctx?"});
}

TEST(CommandLine, FlagsBelongBehindTheCommand) {
    expect_complaint(run_terrace({"--ctx", "5", "generate"}), 2, {"--ctx", "command"});
}

TEST(CommandLine, BareArgumentIsTurnedIntoAdvice) {
    expect_complaint(run_terrace({"inspect", demo_model()}), 2,
                     {"unexpected argument", "--model " + demo_model()});
}

TEST(CommandLine, MissingModelNamesFlagAndVariable) {
    for (const char* command : {"generate", "chat", "inspect", "logits", "eval"})
        expect_complaint(run_terrace({command}), 2, {command, " is missing"});
    expect_complaint(run_terrace({"inspect"}), 2, {"--model is missing", "TERRACE_MODEL"});
    expect_complaint(run_terrace({"plan"}), 2, {"--model DIR or --config FILE"});
    expect_complaint(run_terrace({"bench"}), 2, {"--model DIR or --synthetic"});
}

TEST(CommandLine, FlagWithoutItsValueIsAnError) {
    expect_complaint(run_terrace({"generate", "--model", demo_model(), "--ctx"}), 2, {"ctx"});
}

TEST(CommandLine, ValueThatCannotBeReadIsAnErrorThatNamesTheFlag) {
    const std::vector<std::pair<std::string, std::string>> bad = {
        {"--ctx", "12x"},          {"--ctx", ""},           {"--threads", "-1"},
        {"--isa", "sse2"},         {"--kv-dtype", "f8"},    {"--ngram", "cloud"},
        {"--host-limit", "1 GB"},  {"--ctx", "1e3"},        {"--max-seqs", "99999999999999999999"},
        {"--activations", "int4"}, {"--kv-mirror", "some"},
    };
    for (const auto& [flag, value] : bad)
        expect_complaint(run_terrace(plan_with({flag, value})), 2,
                         {"plan: " + flag + " is \"" + value + "\": need "});
}

TEST(CommandLine, FlagGivenTwiceIsAnError) {
    expect_complaint(run_terrace(plan_with({"--ctx", "512", "--ctx", "1024"})), 2,
                     {"--ctx is given 2 times"});
}

TEST(CommandLine, FlagsThatExcludeEachOtherAreAnError) {
    expect_complaint(
        run_terrace({"generate", "--model", demo_model(), "--prompt", "a", "--prompt-file", "b"}),
        2, {"--prompt and --prompt-file exclude each other"});
    expect_complaint(run_terrace(plan_with({"--quiet", "--verbose"})), 2,
                     {"--quiet and --verbose exclude"});
    expect_complaint(
        run_terrace({"generate", "--model", demo_model(), "--greedy", "--temperature", "0.5"}), 2,
        {"--greedy and --temperature exclude"});
}

TEST(CommandLine, PrintConfigTellsEveryValueAndItsSource) {
    const RunResult r = run_terrace(
        {"generate", "--ctx", "4096", "--print-config", "--stop", "a", "--stop", "[b,c]"},
        {.environment = {{"TERRACE_MAX_TOKENS", "7"}, {"TERRACE_CTX", "99"}}});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.out, ContainsRegex("--ctx +4096 +flag\n"));
    EXPECT_THAT(r.out, ContainsRegex("--max-tokens +7 +TERRACE_MAX_TOKENS\n"));
    EXPECT_THAT(r.out, ContainsRegex("--threads +0 +default\n"));
    EXPECT_THAT(r.out, ContainsRegex("--kv-dtype +f16 +default\n"));
    EXPECT_THAT(r.out, ContainsRegex("--stop +a . .b,c. +flag\n"));
}

TEST(CommandLine, VariableActsLikeItsFlagAndTheFlagWins) {
    const auto ctx = [](const RunResult& r) {
        EXPECT_EQ(r.status, 0) << r.err;
        return must(must(parse_json(r.out, "plan")).get_int("ctx"));
    };
    EXPECT_EQ(ctx(run_terrace(plan_with({"--json"}), {.environment = {{"TERRACE_CTX", "777"}}})),
              777);
    EXPECT_EQ(ctx(run_terrace(plan_with({"--json", "--ctx", "555"}),
                              {.environment = {{"TERRACE_CTX", "777"}}})),
              555);
    EXPECT_EQ(ctx(run_terrace({"plan"}, {.environment = {{"TERRACE_CTX", "333"},
                                                         {"TERRACE_JSON", "on"},
                                                         {"TERRACE_MODEL", demo_model()}}})),
              333);
}

TEST(CommandLine, BadVariableIsAnErrorThatNamesIt) {
    for (const auto& [name, value] : std::map<std::string, std::string>{
             {"TERRACE_CTX", "many"}, {"TERRACE_JSON", "maybe"}, {"TERRACE_HOST_LIMIT", "64Q"}})
        expect_complaint(run_terrace(plan_with({}), {.environment = {{name, value}}}), 2,
                         {name, "\"" + value + "\"", "need"});
}

TEST(CommandLine, FlagSilencesTheVariableOfOneItExcludes) {
    const RunResult r = run_terrace({"generate", "--prompt", "a", "--print-config"},
                                    {.environment = {{"TERRACE_PROMPT_FILE", "/nowhere"}}});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.out, ContainsRegex("--prompt-file +- +default\n"));
}

TEST(CommandLine, SizesHaveSuffixes) {
    for (const auto& [text, bytes] : std::map<std::string, int64_t>{
             {"1G", 1 << 30}, {"1.5G", 3 << 29}, {"512MiB", 1 << 29}, {"1073741824", 1 << 30}})
        EXPECT_EQ(must(terrace_json(plan_with({"--json", "--host-limit", text})).get_int("limit")),
                  bytes)
            << text;
}

TEST(CommandLine, EngineRangesAreErrorsThatNameTheFlag) {
    expect_complaint(run_terrace(plan_with({"--prefill-chunk", "100"})), 1,
                     {"--prefill-chunk is 100", "multiple of 64"});
    expect_complaint(run_terrace(plan_with({"--ctx", "99999999"})), 1, {"--ctx is 99999999"});
    expect_complaint(run_terrace(plan_with({"--ctx", "1024", "--pool-tokens", "100"})), 1,
                     {"--pool-tokens is 100", "--ctx"});
    expect_complaint(run_terrace(plan_with({"--device", "cuda:99"})), 1,
                     {"--device cuda:99", "cpu"});
    expect_complaint(run_terrace(plan_with({"--device", "cuda:x"})), 1, {"--device cuda:x", "cpu"});
    expect_complaint(run_terrace(plan_with({"--device", "emulated:x"})), 1,
                     {"--device emulated:x", "emulated:7"});
}

TEST(CommandLine, PlanCountsTheMemoryOfADeviceApart) {
    const std::vector<std::string> words{"--device", "emulated:1", "--vram-limit", "64M"};
    const std::string text = terrace_output(plan_with(words));
    EXPECT_THAT(text, HasSubstr("64.00 MiB of GPU memory and"));
    EXPECT_THAT(text, HasSubstr("pinned staging"));
    std::vector<std::string> json = words;
    json.push_back("--json");
    const Json plan = terrace_json(plan_with(json));
    EXPECT_EQ(must(plan.get_int("device_limit")), 64 << 20);
    EXPECT_LT(must(plan.get_int("device_total")), must(plan.get_int("total")));
    // Too little for anything: the error names the flag.
    EXPECT_THAT(terrace_output(plan_with({"--device", "emulated:1", "--vram-limit", "1M"})),
                testing::AllOf(HasSubstr("DOES NOT FIT"), HasSubstr("--vram-limit")));
}

TEST(CommandLine, AutomaticDeviceSaysThatThereIsNoGpu) {
    const std::string version = terrace_output({"version"});
    if (version.find("built without cuda") != std::string::npos)
        GTEST_SKIP() << "built without CUDA";
    const RunResult r =
        run_terrace({"generate", "--model", demo_model(), "--prompt", "a", "--max-tokens", "1"},
                    {.environment = {{"TERRACE_DEVICE", "auto"}, {"CUDA_VISIBLE_DEVICES", ""}}});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.err, HasSubstr("computing on the CPU"));
}

TEST(CommandLine, EmulatedDeviceGeneratesWhatTheHostDoes) {
    // Greedy and top-k bring a few candidates to the host, the other whole rows.
    for (const std::vector<std::string>& sampling :
         {std::vector<std::string>{"--greedy"},
          {"--top-k", "20", "--temperature", "1.5"},
          {"--top-k", "0", "--repetition-penalty", "1.2"}}) {
        const auto text = [&](const char* device) {
            std::vector<std::string> words{
                "generate",     "--model", demo_model(), "--prompt", "In the beginning",
                "--max-tokens", "16",      "--seed",     "5",        "--device",
                device};
            words.insert(words.end(), sampling.begin(), sampling.end());
            return terrace_output(words);
        };
        const std::string host = text("cpu");
        for (const char* device : {"emulated:1", "emulated:2"})
            EXPECT_EQ(text(device), host) << device << " " << sampling[0];
    }
}

TEST(CommandLine, HelpNamesEveryFlagAndAnExample) {
    for (const char* command : {"generate", "chat", "logits", "eval", "inspect", "plan", "bench"}) {
        const std::string help = terrace_output({command, "--help"});
        EXPECT_THAT(help, HasSubstr("--model DIR"));
        EXPECT_THAT(help, HasSubstr(std::string("terrace ") + command + " --"));
    }
    const std::string top = terrace_output({"--help"});
    EXPECT_THAT(top, HasSubstr("generate"));
    EXPECT_THAT(top, HasSubstr("TERRACE_SOME_NAME"));
    EXPECT_EQ(terrace_output({"help", "plan"}), terrace_output({"plan", "--help"}));
}

TEST(CommandLine, OutputThatCannotBeWrittenIsAnError) {
    for (const std::vector<std::string>& args :
         {plan_with({}), {"version"}, {"--help"}, {"inspect", "--model", demo_model()}})
        expect_complaint(run_terrace(args, {.output = "/dev/full"}), 1, {"standard output"});
}

TEST(CommandLine, VersionIsOneLine) {
    const std::string version = terrace_output({"--version"});
    EXPECT_THAT(version, testing::StartsWith("terrace 0."));
    EXPECT_EQ(std::count(version.begin(), version.end(), '\n'), 1);
    EXPECT_EQ(terrace_output({"version"}), version);
}

}  // namespace
}  // namespace terrace::test
