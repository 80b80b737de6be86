// The K/V mirror as users meet it: a flag that changes no text, counters at the end, recorded
// selections and their replay, benchmarks with a stated locality.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include "program.h"

namespace terrace::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// Long enough that decoded rows select.
std::vector<std::string> generate(std::vector<std::string> more) {
    std::string prompt;
    for (int i = 0; i < 120; ++i)
        prompt += "And David said unto the people, ";
    std::vector<std::string> args{"generate", "--model",  demo_model(),   "--prompt",
                                  prompt,     "--greedy", "--max-tokens", "12"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

TEST(KvMirrorFlag, ChangesNoTextAndIsCounted) {
    const TempDir dir;
    const std::string plain = terrace_output(generate({}));
    const auto counters = dir.path() / "stats.json";
    const RunResult r =
        run_terrace(generate({"--kv-mirror", "4M", "--stats", "--stats-json", counters.string()}));
    EXPECT_EQ(r.status, 0);
    EXPECT_EQ(r.out, plain);
    EXPECT_THAT(r.err, HasSubstr("K/V mirror of 2.00 KiB blocks"));
    EXPECT_THAT(r.err, ContainsRegex("total +[0-9]+"));
    const Json json = must(parse_json(read_file(counters), "stats"));
    const Json total = must(json.get("total"));
    const auto number = [&](const char* key) { return must(must(total.get(key)).as_int()); };
    EXPECT_GT(number("hits"), 0);
    EXPECT_GT(number("copied"), 0);
    EXPECT_EQ(number("hits") + number("copied") + number("at_home"), number("blocks"));
}

TEST(KvMirrorFlag, CountersThatCannotBeWrittenAreAWarning) {
    const RunResult r = run_terrace(generate({"--stats-json", "/no/such/folder/stats.json"}));
    EXPECT_EQ(r.status, 0);
    EXPECT_THAT(r.err, HasSubstr("/no/such/folder/stats.json"));
}

TEST(KvTrace, IsRecordedAndReplayed) {
    const TempDir dir;
    const std::string file = (dir.path() / "t.kv").string();
    EXPECT_EQ(terrace_output(generate({"--kv-trace", file})), terrace_output(generate({})));
    const std::string table = terrace_output({"sim", "--kv", file, "--slots", "64,1024"});
    EXPECT_THAT(table, HasSubstr("2 layers"));
    EXPECT_THAT(table, HasSubstr("belady"));
    EXPECT_THAT(table, ContainsRegex("1024 +[0-9.]+% "));
    expect_complaint(run_terrace({"sim", "--kv", demo_model() + "/config.json"}), 1,
                     {"is no trace of block selections"});
}

TEST(Bench, StatesTheLocalityThatItMadeUp) {
    const auto bench = [](std::vector<std::string> more) {
        std::vector<std::string> args{"bench", "--synthetic", demo_model() + "/config.json",
                                      "--bpw", "4",           "-p",
                                      "0",     "-n",          "4",
                                      "-r",    "1",           "-d",
                                      "2048",  "--kv-mirror", "8M"};
        args.insert(args.end(), more.begin(), more.end());
        return args;
    };
    const RunResult r = run_terrace(bench({"--fill-depth", "--kv-locality", "0.75", "--stats"}));
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("tg4 @ d2048 (depth filled, 0.75 of blocks kept)"));
    EXPECT_THAT(r.err, HasSubstr("K/V mirror"));
    expect_complaint(run_terrace(bench({"--kv-locality", "0.5"})), 2,
                     {"--kv-locality belongs to --fill-depth"});
    expect_complaint(run_terrace(bench({"--fill-depth", "--kv-locality", "2"})), 2,
                     {"--kv-locality is 2"});
}

}  // namespace
}  // namespace terrace::test
