// generate and chat on the demo model.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include "program.h"

namespace terrace::test {
namespace {

using testing::HasSubstr;

std::vector<std::string> generate(std::vector<std::string> more) {
    std::vector<std::string> args{"generate", "--model", demo_model(), "--ctx", "1024"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

TEST(Generate, SeedMakesItRepeatable) {
    const auto text = [](const char* seed) {
        return terrace_output(
            generate({"--prompt", "In the beginning", "--max-tokens", "16", "--seed", seed}));
    };
    const std::string first = text("7");
    EXPECT_GT(first.size(), 10u);
    EXPECT_EQ(text("7"), first);
    EXPECT_NE(text("8"), first);
}

TEST(Generate, ThreadsAndCompanionsChangeNothing) {
    const std::vector<std::string> base = {"--prompt", "And David said unto", "--max-tokens", "12"};
    const auto text = [&](std::vector<std::string> more) {
        more.insert(more.begin(), base.begin(), base.end());
        return terrace_output(generate(more));
    };
    const std::string seed7 = text({"--seed", "7", "--threads", "1"});
    const std::string seed8 = text({"--seed", "8", "--threads", "1"});
    EXPECT_EQ(text({"--seed", "7", "--threads", "2"}), seed7);
    EXPECT_EQ(text({"--seed", "7", "--threads", "2", "--n", "2"}),
              "=== 1 of 2, seed 7\n" + seed7 + "=== 2 of 2, seed 8\n" + seed8);
    // More sequences than run at once: the second waits for the first.
    EXPECT_EQ(text({"--seed", "7", "--n", "2", "--max-seqs", "1"}),
              "=== 1 of 2, seed 7\n" + seed7 + "=== 2 of 2, seed 8\n" + seed8);
}

TEST(Generate, GreedyIgnoresTheSeed) {
    const std::vector<std::string> base = {"--prompt", "HOPE, n.", "--max-tokens", "8"};
    const auto text = [&](std::vector<std::string> more) {
        more.insert(more.begin(), base.begin(), base.end());
        return terrace_output(generate(more));
    };
    const std::string greedy = text({"--greedy", "--seed", "1"});
    EXPECT_EQ(text({"--greedy", "--seed", "2"}), greedy);
    EXPECT_EQ(text({"--temperature", "0"}), greedy);
    EXPECT_EQ(text({"--temperature", "1.5", "--top-k", "1"}), greedy);
}

TEST(Generate, PromptComesFromFlagFileOrStandardInput) {
    const TempDir dir;
    write_file(dir.path() / "p", "The LORD said\n");
    const std::vector<std::string> tail = {"--greedy", "--max-tokens", "8"};
    const auto with = [&](std::vector<std::string> more, RunOptions run = {}) {
        more.insert(more.end(), tail.begin(), tail.end());
        return terrace_output(generate(more), run);
    };
    const std::string text = with({"--prompt", "The LORD said"});
    EXPECT_EQ(with({"--prompt-file", (dir.path() / "p").string()}), text);
    EXPECT_EQ(with({}, {.input = "The LORD said\n"}), text);
    EXPECT_EQ(with({"--prompt=The LORD said"}), text);
}

TEST(Generate, StopStringEndsTheTextBeforeIt) {
    const std::vector<std::string> base = {"--prompt", "In the beginning", "--greedy",
                                           "--max-tokens", "24"};
    const std::string whole = terrace_output(generate(base));
    ASSERT_GT(whole.size(), 30u);
    const std::string stop = whole.substr(12, 6);
    std::vector<std::string> args = base;
    args.insert(args.end(), {"--stop", "never to be found", "--stop", stop});
    EXPECT_EQ(terrace_output(generate(args)), whole.substr(0, whole.find(stop)) + "\n");
}

TEST(Generate, LogitBiasBansAToken) {
    const std::vector<std::string> base = {"--prompt", "In the beginning", "--greedy",
                                           "--max-tokens", "4"};
    std::vector<std::string> args = base;
    args.insert(args.end(), {"--logit-bias", "1234:1e9"});
    const std::string forced = terrace_output(generate(args));
    EXPECT_NE(forced, terrace_output(generate(base)));
    args.back() = "4095:1e9";  // an end token
    EXPECT_EQ(terrace_output(generate(args)), "\n");
    args.back() = "4096:1";
    expect_complaint(run_terrace(generate(args)), 1, {"token 4096", "vocabulary"});
    args.back() = "12";
    expect_complaint(run_terrace(generate(args)), 2, {"--logit-bias", "ID:VALUE"});
}

TEST(Generate, MemoryAndStatsGoToStandardError) {
    const RunResult r = run_terrace(
        generate({"--prompt", "Emma", "--max-tokens", "4", "--seed", "3", "--memory", "--stats"}));
    EXPECT_EQ(r.status, 0);
    for (const char* part : {"planned:", "used:", "total", "t/s", "seed 3: ended by"})
        EXPECT_THAT(r.err, HasSubstr(part));
    EXPECT_EQ(r.out.find("t/s"), std::string::npos);
    // What was planned is what was used.
    const size_t planned = r.err.find("planned:\n") + 9, used = r.err.find("used:\n");
    const size_t length = used - planned;
    EXPECT_EQ(r.err.substr(planned, length), r.err.substr(used + 6, length));
}

TEST(Generate, EmptyPromptIsAnError) {
    expect_complaint(run_terrace(generate({"--prompt", ""})), 1, {"prompt has no tokens"});
    expect_complaint(run_terrace(generate({"--prompt="})), 1, {"prompt has no tokens"});
    expect_complaint(run_terrace(generate({})), 1, {"prompt has no tokens"});
}

TEST(Generate, PromptThatIsNotUtf8IsAnErrorThatNamesTheByte) {
    expect_complaint(run_terrace(generate({"--prompt", "abc\xff"})), 1, {"prompt", "UTF-8", "3"});
    expect_complaint(run_terrace(generate({}), {.input = std::string("\xc3(", 2)}), 1,
                     {"UTF-8", "0"});
}

TEST(Generate, PromptBeyondTheContextIsAnError) {
    std::string text;
    for (int i = 0; i < 1100; ++i)
        text += "word ";
    expect_complaint(run_terrace(generate({}), {.input = text}), 1, {"--ctx is 1024", "tokens"});
}

TEST(Generate, ParameterOutOfRangeIsAnError) {
    for (const auto& [flag, value] :
         std::map<std::string, std::string>{{"--top-p", "1.5"},
                                            {"--min-p", "1"},
                                            {"--temperature", "-1"},
                                            {"--repetition-penalty", "0"}})
        expect_complaint(run_terrace(generate({"--prompt", "a", flag, value})), 1, {"need"});
}

TEST(Generate, FullContextEndsTheTextWithAWarning) {
    const RunResult r = run_terrace({"generate", "--model", demo_model(), "--ctx", "16", "--prompt",
                                     "In the beginning", "--ignore-eos", "--seed", "1"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.err, HasSubstr("context is full"));
}

TEST(Generate, InterruptEndsItCleanly) {
    const RunResult r = run_terrace({"generate", "--model", demo_model(), "--prompt", "In the",
                                     "--ignore-eos", "--max-tokens", "8000", "--stats"},
                                    {.interrupt_after = 20});
    EXPECT_EQ(r.status, 130);
    EXPECT_GE(r.out.size(), 20u);
    EXPECT_EQ(r.out.back(), '\n');
    EXPECT_THAT(r.err, HasSubstr("ended by cancelled"));
}

TEST(Generate, ModelWithoutTokenizerIsAnErrorThatNamesTheWayOut) {
    expect_complaint(run_terrace({"generate", "--model", data_file("tiny-exl3"), "--prompt", "a"}),
                     1, {"no tokenizer.json", "terrace logits"});
}

std::string chat(const std::string& input, std::vector<std::string> more = {}) {
    std::vector<std::string> args{"chat", "--model",  demo_model(),   "--ctx",
                                  "1024", "--greedy", "--max-tokens", "12"};
    args.insert(args.end(), more.begin(), more.end());
    return terrace_output(args, {.input = input});
}

TEST(Chat, AnswersEveryLineAndRemembersUntilReset) {
    const std::string one = chat("Define: HOPE\n");
    EXPECT_GT(one.size(), 3u);
    EXPECT_EQ(one.back(), '\n');
    const std::string two = chat("Define: HOPE\nContinue: And David said unto\n");
    EXPECT_TRUE(two.starts_with(one));
    const std::string second = chat("Continue: And David said unto\n");
    EXPECT_EQ(chat("Define: HOPE\n/reset\nContinue: And David said unto\n"), one + second);
    EXPECT_EQ(chat("Define: HOPE\n/exit\nContinue: And David said unto\n"), one);
    EXPECT_EQ(chat("\n\n/exit\n"), "");
}

TEST(Chat, IsTheTemplateAroundGenerate) {
    const std::string by_hand = terrace_output(
        generate({"--greedy", "--max-tokens", "12", "--prompt",
                  "<|im_start|>user\nDefine: HOPE<|im_end|>\n<|im_start|>assistant\n"}));
    const std::string answer = chat("Define: HOPE\n");
    EXPECT_EQ(answer, by_hand);
    const std::string with_system = terrace_output(
        generate({"--greedy", "--max-tokens", "12", "--prompt",
                  "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nDefine: "
                  "HOPE<|im_end|>\n<|im_start|>assistant\n"}));
    EXPECT_EQ(chat("Define: HOPE\n", {"--system", "Be brief."}), with_system);
}

TEST(Chat, UnknownCommandAndBrokenTextAreToldAndSurvived) {
    const RunResult r = run_terrace(
        {"chat", "--model", demo_model(), "--ctx", "1024", "--greedy", "--max-tokens", "4"},
        {.input = "/rset\n\xff\nDefine: HOPE\n"});
    EXPECT_EQ(r.status, 1);
    EXPECT_THAT(r.err, HasSubstr("unknown command \"/rset\" (legal: /exit /reset)"));
    EXPECT_THAT(r.err, HasSubstr("UTF-8"));
    EXPECT_GT(r.out.size(), 1u);
}

}  // namespace
}  // namespace terrace::test
