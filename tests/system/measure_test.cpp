// logits and eval: numbers against the golden data and against each other.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include <cmath>

#include "base/env.h"
#include "program.h"

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

const std::string kTinyTokens = "tiny-exl3.golden.safetensors:len131.tokens";

class LogitsFile {
  public:
    Logits run(const std::string& model, const std::string& tokens,
               std::vector<std::string> more = {}) {
        const fs::path out = dir_.path() / "logits.safetensors";
        std::vector<std::string> args{"logits", "--model", model,       "--tokens",
                                      tokens,   "--out",   out.string()};
        args.insert(args.end(), more.begin(), more.end());
        terrace_output(args);
        return read_logits(out);
    }
    Logits tiny(std::vector<std::string> more = {}) {
        return run(data_file("tiny-exl3"), data_file(kTinyTokens), std::move(more));
    }
    fs::path dir() const { return dir_.path(); }

  private:
    TempDir dir_;
};

TEST(Logits, ChunksThatAreMultiplesOf64GiveTheSameBits) {
    LogitsFile file;
    const Logits whole = file.tiny();
    EXPECT_EQ(whole.rows, 131);
    EXPECT_EQ(whole.columns, 512);
    EXPECT_EQ(largest_difference(file.tiny({"--chunk", "64"}), whole), 0.0);
    EXPECT_EQ(largest_difference(file.tiny({"--chunk", "128"}), whole), 0.0);
    EXPECT_EQ(largest_difference(file.tiny({"--prefill-chunk", "64"}), whole), 0.0);
    EXPECT_EQ(largest_difference(file.tiny({"--threads", "1"}), whole), 0.0);
}

// Other splits reorder sums of the recurrent state, no more. Activations and planes in f32: with
// int16 or f16 their rounding flips experts of this random model, whose router gaps go down to 3e-5.
TEST(Logits, OtherChunksAndDecodeDifferByRoundingOnly) {
    LogitsFile file;
    for (const char* device : {"cpu", "reference"}) {
        const auto with = [&](std::vector<std::string> more) {
            more.insert(more.end(),
                        {"--device", device, "--kv-dtype", "f32", "--activations", "f32"});
            return file.tiny(more);
        };
        const Logits whole = with({});
        for (const char* chunk : {"1", "37", "100"})
            EXPECT_LT(largest_difference(with({"--chunk", chunk}), whole), 3e-5)
                << device << " " << chunk;
        EXPECT_LT(largest_difference(with({"--decode-from", "64"}), whole), 3e-5) << device;
        EXPECT_EQ(largest_difference(with({"--decode-from", "0"}), with({"--chunk", "1"})), 0.0);
        EXPECT_EQ(largest_difference(with({"--decode-from", "131"}), whole), 0.0);
    }
}

TEST(Logits, TokensMayBeTextJsonOrATensor) {
    LogitsFile file;
    write_file(file.dir() / "ids.txt", "3, 1\n4\t1,5\n");
    write_file(file.dir() / "ids.json", " [3, 1, 4, 1, 5]\n");
    const std::string model = data_file("tiny-bf16");
    const Logits text = file.run(model, (file.dir() / "ids.txt").string());
    EXPECT_EQ(text.rows, 5);
    EXPECT_EQ(largest_difference(file.run(model, (file.dir() / "ids.json").string()), text), 0.0);
}

TEST(Logits, BadTokensAreErrorsThatNameTheirPlace) {
    const TempDir dir;
    const fs::path tokens = dir.path() / "ids";
    const auto with = [&](std::string_view text) {
        write_file(tokens, text);
        return run_terrace({"logits", "--model", data_file("tiny-exl3"), "--tokens",
                            tokens.string(), "--out", (dir.path() / "out").string()});
    };
    expect_complaint(with("1 2 512"), 1, {"token 2", "512", "0..511"});
    expect_complaint(with("1 -2"), 1, {"token 1", "-2"});
    expect_complaint(with("1 two 3"), 1, {"token 1", "\"two\""});
    expect_complaint(with("[1, \"2\"]"), 1, {"[1]", "string"});
    expect_complaint(with("[1, 2"), 1, {"ids"});
    expect_complaint(with("  \n"), 1, {"no token ids"});
    EXPECT_FALSE(fs::exists(dir.path() / "out"));
}

TEST(Logits, BadRequestsAreErrors) {
    const TempDir dir;
    const auto with = [&](std::vector<std::string> more) {
        std::vector<std::string> args{"logits",
                                      "--model",
                                      data_file("tiny-exl3"),
                                      "--tokens",
                                      data_file(kTinyTokens),
                                      "--out",
                                      (dir.path() / "out").string()};
        args.insert(args.end(), more.begin(), more.end());
        return run_terrace(args);
    };
    expect_complaint(with({"--chunk", "1000"}), 1, {"--chunk is 1000", "--prefill-chunk"});
    expect_complaint(with({"--decode-from", "200"}), 1, {"--decode-from is 200", "131 tokens"});
    expect_complaint(with({"--ctx", "64"}), 1, {"--ctx 64"});
    expect_complaint(run_terrace({"logits", "--model", data_file("tiny-exl3"), "--tokens",
                                  data_file(kTinyTokens), "--out",
                                  (dir.path() / "no" / "such" / "folder").string()}),
                     1, {"no/such/folder"});
}

double kl_mean(const std::string& model, const std::string& golden, const std::string& prompt,
               const std::string& logits, std::vector<std::string> more = {}) {
    std::vector<std::string> args{
        "eval",  "--model", model, "--tokens", golden + ":" + prompt, "--kl", golden + ":" + logits,
        "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Json kl = must(terrace_json(args).get("kl"));
    EXPECT_GT(must(kl.get_int("rows")), 0);
    EXPECT_GE(must(kl.get_double("max")), must(kl.get_double("mean")));
    EXPECT_GT(must(kl.get_double("top1_agreement")), 0.9);
    return must(kl.get_double("mean"));
}

TEST(Eval, DivergenceFromTheGoldenLogitsIsRounding) {
    for (const char* model : {"tiny-bf16", "tiny-exl3"}) {
        const std::string golden = data_file(std::string(model) + ".golden.safetensors");
        const auto mean = [&](std::vector<std::string> more) {
            return kl_mean(data_file(model), golden, "len131.tokens", "len131.logits", more);
        };
        EXPECT_LT(mean({"--activations", "f32", "--kv-dtype", "f32"}), 1e-6) << model;
        EXPECT_LT(mean({}), 2e-4) << model;  // a few experts flip, see above
    }
    const std::string golden = data_file("demo/golden.safetensors");
    EXPECT_LT(kl_mean(demo_model(), golden, "p200.tokens", "p200.logits.exl3"), 1e-5);
    // The other checkpoint's logits are further away: the measure can tell.
    EXPECT_GT(kl_mean(demo_model(), golden, "p200.tokens", "p200.logits"), 1e-3);
}

// Default settings, other kinds of rows: decode of everything against one prompt.
TEST(Eval, DecodeStaysCloseToThePrompt) {
    LogitsFile file;
    const std::string tokens = data_file("demo/golden.safetensors:p200.tokens");
    file.run(demo_model(), tokens, {"--decode-from", "0"});
    const Json kl = must(terrace_json({"eval", "--model", demo_model(), "--tokens", tokens, "--kl",
                                       (file.dir() / "logits.safetensors").string(), "--json"})
                             .get("kl"));
    EXPECT_EQ(must(kl.get_int("rows")), 200);
    EXPECT_GT(must(kl.get_double("max_logit_difference")), 0.0);  // they are other rows
    EXPECT_LT(must(kl.get_double("mean")), 1e-4);
}

TEST(Eval, DivergenceFromOneselfIsZero) {
    LogitsFile file;
    write_file(file.dir() / "ids", "3 1 4 1 5 9 2 6");
    const std::string tokens = (file.dir() / "ids").string();
    file.run(data_file("tiny-exl3"), tokens);
    const Json kl =
        must(terrace_json({"eval", "--model", data_file("tiny-exl3"), "--tokens", tokens, "--kl",
                           (file.dir() / "logits.safetensors").string(), "--json"})
                 .get("kl"));
    EXPECT_EQ(must(kl.get_double("max_logit_difference")), 0.0);
    EXPECT_LT(std::abs(must(kl.get_double("mean"))), 1e-6);
    EXPECT_EQ(must(kl.get_double("top1_agreement")), 1.0);
    EXPECT_EQ(must(kl.get_int("rows")), 8);
}

// Windows and documents counted by hand: a document of one token scores nothing.
TEST(Eval, PerplexityCutsDocumentsIntoWindows) {
    const TempDir dir;
    const fs::path text = dir.path() / "text";
    const auto eval = [&](std::string_view content, std::vector<std::string> more) {
        write_file(text, content);
        std::vector<std::string> args{"eval",   "--model",     demo_model(),
                                      "--text", text.string(), "--json"};
        args.insert(args.end(), more.begin(), more.end());
        return must(terrace_json(args).get("text"));
    };
    const std::string verse = "And God said, Let there be light: and there was light.";
    const Json one = eval(verse + "\n", {});
    const int64_t tokens = must(one.get_int("tokens_scored")) + 1;
    EXPECT_GT(tokens, 8);
    EXPECT_EQ(must(one.get_int("bytes")), static_cast<int64_t>(verse.size()));
    EXPECT_NEAR(must(one.get_double("perplexity")), std::exp(must(one.get_double("nll"))), 1e-9);
    EXPECT_NEAR(must(one.get_double("bits_per_byte")),
                must(one.get_double("nll")) * static_cast<double>(tokens - 1) / std::log(2.0) /
                    static_cast<double>(verse.size()),
                1e-9);

    const Json two = eval(verse + "\n<|endoftext|>\n" + verse + "\n", {});
    EXPECT_EQ(must(two.get_int("windows")), 2);
    EXPECT_EQ(must(two.get_int("tokens_scored")), 2 * (tokens - 1));
    EXPECT_NEAR(must(two.get_double("nll")), must(one.get_double("nll")), 1e-12);

    const Json cut = eval(verse, {"--window", "4"});
    EXPECT_EQ(must(cut.get_int("windows")), (tokens + 3) / 4);
    EXPECT_EQ(must(cut.get_int("tokens_scored")), tokens - (tokens + 3) / 4);
    EXPECT_GT(must(cut.get_double("nll")), must(one.get_double("nll")));  // less to go by
}

double held_out_perplexity(const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> args{
        "eval", "--model", model, "--text", data_file("demo/heldout.txt"), "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Json text = must(terrace_json(args).get("text"));
    EXPECT_EQ(must(text.get_int("tokens_scored")), 65867);  // as eval.json counts
    return must(text.get_double("perplexity"));
}

// Figures of tests/data/demo/eval.json, by the same windows.
TEST(Eval, HeldOutPerplexityIsThatOfTheReferenceWithinOnePercent) {
    const double reference = 55.77536095779968;
    const double ours = held_out_perplexity(demo_model(), {});
    EXPECT_NEAR(ours / reference, 1.0, 0.01);
    // What it measures today (rounding differences only): far inside the one percent.
    EXPECT_NEAR(ours / reference, 1.0, 0.0005);
}

// The bf16 weights are not in the repository; TERRACE_TEST_DEMO_BF16 names their folder.
TEST(Eval, HeldOutPerplexityOfBf16WeightsIsThatOfTheReferenceWithinHalfAPercent) {
    const auto folder = read_env("TERRACE_TEST_DEMO_BF16");
    if (!folder) GTEST_SKIP() << "TERRACE_TEST_DEMO_BF16 does not name the bf16 demo weights";
    EXPECT_NEAR(held_out_perplexity(*folder, {"--activations", "f32", "--kv-dtype", "f32"}) /
                    55.6764177736424,
                1.0, 0.005);
}

// Recorded over more prompts: one key 1.00 up to 4096 tokens and 0.96 at the untrained 8192.
TEST(Eval, PassKeysAreRecalledByPromptAndByDecode) {
    for (const bool decode : {false, true}) {
        std::vector<std::string> args{
            "eval",   "--model", demo_model(), "--passkey", data_file("demo/passkey.json"),
            "--json", "--ctx",   "8192"};
        if (decode) args.insert(args.end(), {"--decode-answer", "--limit", "1"});
        const Json cells = must(terrace_json(args).get("passkey"));
        for (const char* name :
             {"512.single", "1024.single", "2048.single", "4096.single", "8192.single"}) {
            const Json cell = must(cells.get(name));
            EXPECT_GE(must(cell.get_int("prompts")), decode ? 1 : 2);
            EXPECT_EQ(must(cell.get_double("exact")), 1.0) << name << " decode " << decode;
        }
        EXPECT_EQ(cells.size(), 10u);
    }
}

TEST(Eval, BadRequestsAreErrors) {
    const TempDir dir;
    const std::string golden = data_file("tiny-exl3.golden.safetensors");
    const auto with = [&](std::vector<std::string> more) {
        std::vector<std::string> args{"eval", "--model", data_file("tiny-exl3")};
        args.insert(args.end(), more.begin(), more.end());
        return run_terrace(args);
    };
    expect_complaint(with({}), 2, {"nothing to measure"});
    expect_complaint(with({"--kl", golden}), 2, {"--kl and --tokens"});
    expect_complaint(with({"--text", "/no/such/file"}), 1, {"/no/such/file"});
    expect_complaint(with({"--text", data_file("demo/heldout.txt")}), 1, {"tokenizer.json"});
    expect_complaint(with({"--kl", golden + ":len131.logits", "--tokens", golden + ":len3.tokens"}),
                     1, {"len131.logits", "[131, 512]", "need F32 [1..3, 512]"});
    expect_complaint(with({"--kl", golden + ":nothing", "--tokens", golden + ":len3.tokens"}), 1,
                     {"nothing"});
    write_file(dir.path() / "keys", R"({"a": [{"tokens": [1,2,3,4,5,6], "answer_at": 3}]})");
    expect_complaint(with({"--passkey", (dir.path() / "keys").string()}), 1,
                     {"a[0]", "answer_at 3", "need 1..1"});
}

}  // namespace
}  // namespace terrace::test
