// inspect, plan and bench; and model folders that are missing, cut short or contradict themselves.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include <cstring>

#include "io/safetensors.h"
#include "program.h"
#include "terrace/estimate.h"

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kRealConfig = TERRACE_SOURCE_DIR "/docs/qwen3.8-flash-next.config.json";

// Every command that opens a model must refuse it with the same words.
void expect_refused(const std::string& model, const std::vector<std::string>& parts) {
    const std::string tokens = data_file("tiny-exl3.golden.safetensors:len3.tokens");
    expect_complaint(run_terrace({"inspect", "--model", model}), 1, parts);
    expect_complaint(run_terrace({"plan", "--model", model}), 1, parts);
    expect_complaint(
        run_terrace({"logits", "--model", model, "--tokens", tokens, "--out", "/dev/null"}), 1,
        parts);
    expect_complaint(run_terrace({"bench", "--model", model}), 1, parts);
    expect_complaint(run_terrace({"chat", "--model", model}), 1, parts);
    expect_complaint(run_terrace({"generate", "--model", model, "--prompt", "a"}), 1, parts);
}

// The checkpoint of a folder, written again after `edit` had its way with the list.
template <class Edit>
void rewrite(ModelCopy& copy, Edit edit) {
    const std::string source = fs::canonical(copy.file("model.safetensors")).string();
    const SafetensorsFile file = must(SafetensorsFile::open(source));
    std::vector<TensorSource> tensors;
    for (const TensorView& t : file.tensors())
        tensors.push_back({t.name, t.dtype, t.shape, t.span()});
    edit(tensors);
    fs::remove(copy.file("model.safetensors"));
    EXPECT_OK(write_safetensors(copy.file("model.safetensors"), tensors));
}

auto named(const char* name) {
    return [name](const TensorSource& t) { return t.name.find(name) != std::string::npos; };
}

TEST(ModelFolder, ThatDoesNotExistIsRefused) {
    expect_refused("/no/such/folder", {"/no/such/folder", "no such folder"});
    expect_refused(demo_model() + "/config.json", {"is a file"});
    const TempDir empty;
    expect_refused(empty.path().string(), {"is empty, need config.json"});
}

TEST(ModelFolder, FileCutShortIsRefused) {
    const std::string whole = read_file(data_file("tiny-exl3/model.safetensors"));
    for (const size_t keep :
         {whole.size() - 1, whole.size() / 2, size_t{100}, size_t{7}, size_t{0}}) {
        ModelCopy copy(data_file("tiny-exl3"));
        copy.replace("model.safetensors", std::string_view(whole).substr(0, keep));
        expect_complaint(run_terrace({"inspect", "--model", copy.path()}), 1,
                         {"model.safetensors"});
    }
    ModelCopy copy(data_file("tiny-exl3"));
    copy.replace("model.safetensors", std::string_view(whole).substr(0, whole.size() / 2));
    expect_refused(copy.path(), {"model.safetensors", "truncated"});
}

TEST(ModelFolder, AbsurdHeaderIsRefused) {
    const std::string whole = read_file(data_file("tiny-exl3/model.safetensors"));
    for (const uint64_t length :
         {~uint64_t{0}, uint64_t{1} << 62, uint64_t{1} << 31, uint64_t{3}}) {
        std::string bytes = whole;
        std::memcpy(bytes.data(), &length, 8);
        ModelCopy copy(data_file("tiny-exl3"));
        copy.replace("model.safetensors", bytes);
        expect_complaint(run_terrace({"inspect", "--model", copy.path()}), 1,
                         {"model.safetensors"});
    }
}

TEST(ModelFolder, MissingTensorIsRefusedByName) {
    ModelCopy copy(data_file("tiny-exl3"));
    rewrite(copy, [](auto& tensors) { std::erase_if(tensors, named("layers.1.mlp.gate.weight")); });
    expect_refused(copy.path(), {"layers.1.mlp.gate"});
}

TEST(ModelFolder, WrongTypeIsRefusedByName) {
    ModelCopy copy(data_file("tiny-exl3"));
    rewrite(copy, [](auto& tensors) {
        auto t = std::find_if(tensors.begin(), tensors.end(), named("layers.0.linear_attn.A_log"));
        ASSERT_NE(t, tensors.end());
        t->dtype = dtype_bytes(t->dtype) == 4 ? DType::i32 : DType::i16;
    });
    expect_refused(copy.path(), {"linear_attn.A_log", "I"});
}

TEST(ModelFolder, UnknownTensorIsListedNotRefused) {
    ModelCopy copy(data_file("tiny-exl3"));
    const float one = 1;
    rewrite(copy, [&](auto& tensors) {
        tensors.push_back(
            {"some.strange.tensor", DType::f32, {1}, std::as_bytes(std::span(&one, 1))});
    });
    EXPECT_THAT(terrace_output({"inspect", "--model", copy.path()}),
                HasSubstr("some.strange.tensor"));
}

TEST(ModelFolder, DraftHeadAndVisionTensorsAreRecognisedAndSkipped) {
    ModelCopy copy(data_file("tiny-exl3"));
    const float one = 1;
    rewrite(copy, [&](auto& tensors) {
        for (const char* name : {"mtp.pre_fc_norm_embedding.weight", "model.visual.patch.weight"})
            tensors.push_back({name, DType::f32, {1}, std::as_bytes(std::span(&one, 1))});
    });
    EXPECT_THAT(terrace_output({"inspect", "--model", copy.path()}),
                testing::AllOf(HasSubstr("draft head"), HasSubstr("vision"),
                               Not(HasSubstr("model.visual.patch"))));
}

TEST(ModelFolder, ConfigThatIsNotForUsIsRefused) {
    const std::string config = read_file(data_file("tiny-exl3/config.json"));
    const auto with = [&](std::string_view from, std::string_view to) {
        std::string text = config;
        for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
            text.replace(at, from.size(), to);
        EXPECT_NE(text, config);
        ModelCopy copy(data_file("tiny-exl3"));
        copy.replace("config.json", text);
        return run_terrace({"inspect", "--model", copy.path()});
    };
    expect_complaint(with("qwen4_exp", "llama"), 1, {"config.json", "llama"});
    expect_complaint(with("\"hidden_size\": 128", "\"hidden_size\": 0"), 1, {"hidden_size is 0"});
    expect_complaint(with("\"hidden_size\": 128", "\"hidden_size\": 256"), 1, {"256"});
    expect_complaint(with("\"num_experts\": 8", "\"num_experts\": 9"), 1, {"[9, 128]"});
    expect_complaint(with("{", "["), 1, {"config.json"});
}

TEST(Memory, ContextBeyondItIsRefusedWithNeedAndHave) {
    const std::vector<std::string> big = {"--ctx", "16000000", "--max-seqs", "64"};
    std::vector<std::string> args{"generate", "--model", demo_model(), "--prompt", "a"};
    args.insert(args.end(), big.begin(), big.end());
    expect_complaint(run_terrace(args), 1, {"needs", "available", "lower --ctx"});
    expect_complaint(
        run_terrace({"generate", "--model", demo_model(), "--prompt", "a", "--host-limit", "8M"}),
        1, {"8.00 MiB", "--host-limit"});
}

TEST(Inspect, TellsClassesAndShapes) {
    const Json demo = terrace_json({"inspect", "--model", demo_model(), "--json"});
    const Json config = must(demo.get("config"));
    EXPECT_EQ(must(config.get_int("layers")), 8);
    EXPECT_EQ(must(config.get_int("qsa_layers")), 2);
    const Json experts = must(must(demo.get("classes")).get("routed experts"));
    EXPECT_EQ(must(experts.get_int("tensors")), 8 * 16 * 3);
    EXPECT_EQ(must(experts.get_int("weights")), 8 * 16 * 3 * 256 * 128);
    EXPECT_NEAR(must(experts.get_double("bits")), 4.0, 0.25);
    EXPECT_EQ(must(demo.get("unknown")).size(), 0u);
    EXPECT_THAT(terrace_output({"inspect", "--model", data_file("tiny-bf16")}), HasSubstr("16.00"));
}

TEST(Plan, OfTheRealModelAgreesWithItsSpecification) {
    const Json plan =
        terrace_json({"plan", "--config", kRealConfig, "--bpw", "3", "--attention-bits", "5",
                      "--ngram-bits", "5", "--ctx", "262144", "--max-seqs", "1", "--json"});
    EXPECT_EQ(must(plan.get_int("bytes_per_token")), 28416);  // 27.75 KiB
    EXPECT_EQ(must(plan.get_int("bytes_per_sequence")), 36 * (3145728 + 122880) + 4 * 9 * 10240);
    const Json classes = must(plan.get("classes"));
    EXPECT_EQ(must(must(classes.get("routed experts")).get_int("weights")), 120'795'955'200);
    EXPECT_EQ(must(must(classes.get("n-gram table")).get_int("weights")), 51'200'245'760);
    EXPECT_EQ(must(must(classes.get("n-gram table")).get_int("bytes")), int64_t{320'001'536} * 102);
    EXPECT_EQ(must(must(classes.get("hyper-connections")).get_int("weights")), 640'624'640);
    EXPECT_EQ(must(must(classes.get("routers")).get_int("weights")), 62'914'560);
    EXPECT_EQ(must(plan.get_bool("fits")),
              must(plan.get_int("total")) <= must(plan.get_int("limit")));
}

TEST(Plan, ThatDoesNotFitSaysSo) {
    const std::string text =
        terrace_output({"plan", "--config", kRealConfig, "--bpw", "4", "--host-limit", "1G"});
    EXPECT_THAT(text, HasSubstr("DOES NOT FIT"));
    EXPECT_THAT(text, HasSubstr("experts"));
    EXPECT_THAT(terrace_output({"plan", "--model", demo_model()}), HasSubstr("fits into"));
}

TEST(Plan, EstimateIsTheSizeOfSyntheticWeights) {
    for (const std::string& file : {kRealConfig, demo_model() + "/config.json"}) {
        const ModelConfig config = must(parse_model_config(read_file(file), file));
        PackFormat format;
        format.weights.bpw = 3;
        uint64_t bytes = 0, tensors = 0;
        for (const auto& [name, k] : estimate_classes(config, format)) {
            if (name == "n-gram table") continue;
            bytes += static_cast<uint64_t>(k.bytes);
            tensors += static_cast<uint64_t>(k.tensors);
        }
        // Synthetic tensors are padded to 64 bytes, three parts each.
        const uint64_t synthetic = synthetic_bytes(config, format.weights);
        EXPECT_GE(synthetic, bytes);
        EXPECT_LE(synthetic, bytes + 3 * 64 * tensors);
    }
}

TEST(Bench, PrintsARowPerTestInEveryForm) {
    const std::vector<std::string> args = {"bench", "--model", demo_model(), "-p",    "64",
                                           "-n",    "4",       "-d",         "0,128", "-r",
                                           "2",     "--batch", "2"};
    const std::string md = terrace_output(args);
    for (const char* part :
         {"| demo ", "| pp64 ", "| tg4 x2 ", "pp64 @ d128", "tg4 x2 @ d128", " ± "})
        EXPECT_THAT(md, HasSubstr(part));
    std::vector<std::string> json_args = args;
    json_args.insert(json_args.end(), {"--output", "json"});
    const Json json = terrace_json(json_args);
    const auto rows = must(must(json.get("rows")).elements());
    ASSERT_EQ(rows.size(), 4u);
    for (const Json& row : rows) {
        EXPECT_GT(must(row.get_double("mean")), 0.0);
        EXPECT_EQ(must(row.get("seconds")).size(), 2u);
        EXPECT_FALSE(must(row.get_bool("depth_filled")));
    }
    EXPECT_EQ(must(rows[1].get_int("tokens")), 8);
    std::vector<std::string> csv_args = args;
    csv_args.insert(csv_args.end(), {"--output", "csv"});
    const std::string csv = terrace_output(csv_args);
    EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 5);
}

TEST(Bench, SyntheticModelSaysWhatIsNotReal) {
    const std::string text = terrace_output({"bench",
                                             "--synthetic",
                                             demo_model() + "/config.json",
                                             "--layers",
                                             "4",
                                             "--experts",
                                             "8",
                                             "--ngram-rows",
                                             "100",
                                             "--bpw",
                                             "3",
                                             "-p",
                                             "0",
                                             "-n",
                                             "2",
                                             "-d",
                                             "1000",
                                             "-r",
                                             "1",
                                             "--fill-depth"});
    for (const char* part :
         {"synthetic config 3bpw", "tg2 @ d1000 (depth filled)", "random weights", "4 of 8 layers",
          "8 of 16 experts", "n-gram table shrunk", "depth filled"})
        EXPECT_THAT(text, HasSubstr(part));
}

TEST(Bench, BadRequestsAreErrors) {
    const std::string config = demo_model() + "/config.json";
    expect_complaint(run_terrace({"bench", "--model", demo_model(), "--fill-depth"}), 2,
                     {"--fill-depth belongs to --synthetic"});
    expect_complaint(run_terrace({"bench", "--model", demo_model(), "-p", "0", "-n", "0"}), 1,
                     {"nothing to measure"});
    expect_complaint(run_terrace({"bench", "--synthetic", config, "--layers", "99"}), 1,
                     {"--layers is 99"});
    expect_complaint(run_terrace({"bench", "--synthetic", config, "--experts", "2"}), 1,
                     {"--experts is 2", "4..16"});
    expect_complaint(run_terrace({"bench", "--synthetic", kRealConfig, "--host-limit", "1G"}), 1,
                     {"synthetic weights", "need"});
    expect_complaint(run_terrace({"bench", "--model", demo_model(), "-p", "1,x"}), 2,
                     {"--n-prompt is \"x\""});
}

}  // namespace
}  // namespace terrace::test
