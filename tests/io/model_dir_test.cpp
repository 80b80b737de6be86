// Model folders: the repository's own open, and what is no model says what is there.
// SPDX-License-Identifier: MIT
#include "io/model_dir.h"

#include <gmock/gmock.h>

#include "io_support.h"

namespace terrace::test {
namespace {

using ::testing::ElementsAre;
namespace fs = std::filesystem;

TEST(ModelDir, TinyBf16Opens) {
    const ModelDir dir = must(ModelDir::open(data_path("tiny-bf16")));
    EXPECT_EQ(dir.config().hidden, 128);
    EXPECT_THAT(dir.generation().eos, ElementsAre(2));
    EXPECT_OK(dir.checkpoint().require("model.embed_tokens.weight", {DType::bf16}, {512, 128}));
    EXPECT_FALSE(dir.has_file("tokenizer.json"));
}

TEST(ModelDir, TinyExl3Opens) {
    const ModelDir dir = must(ModelDir::open(data_path("tiny-exl3")));
    const std::string linear = dir.config().tensor_prefix + "layers.0.mlp.experts.0.gate_proj";
    EXPECT_OK(dir.checkpoint().require(linear + ".trellis", {DType::i16}, {8, 8, 48}));
    EXPECT_OK(dir.checkpoint().require(linear + ".mul1", {DType::i32}, {1}));
    EXPECT_OK(dir.checkpoint().require(linear + ".mul1", {DType::i32}, {}));
    EXPECT_TRUE(dir.has_file("quantization_config.json"));
}

TEST(ModelDir, DemoModelOpensWithItsGenerationConfig) {
    const ModelDir dir = must(ModelDir::open(fs::path(TERRACE_SOURCE_DIR) / "models/demo"));
    EXPECT_THAT(dir.generation().eos, ElementsAre(4095, 4093));
    EXPECT_TRUE(dir.generation().do_sample);
    EXPECT_EQ(dir.generation().temperature, 0.8);
    EXPECT_EQ(dir.generation().top_p, 0.95);
    EXPECT_FALSE(dir.generation().top_k.has_value());
    EXPECT_EQ(dir.config().eos, 4093);
    EXPECT_EQ(dir.config().block_top_k(), 64);
    EXPECT_THAT(must(dir.read_text("tokenizer.json")), ::testing::StartsWith("{"));
    EXPECT_EQ(dir.file("tokenizer.json"), dir.path() / "tokenizer.json");
}

TEST(ModelDir, MissingFolderAndFileInPlaceOfAFolderAreNamed) {
    const TempDir tmp;
    EXPECT_ERROR(ModelDir::open(tmp.path() / "nope"), Code::not_found,
                 "nope: no such folder; give the folder");
    EXPECT_ERROR(ModelDir::open(data_path("tiny-bf16/config.json")), Code::invalid_argument,
                 "config.json: is a file; give the folder");
}

TEST(ModelDir, FolderWithoutConfigListsWhatIsThere) {
    const TempDir tmp;
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::not_found, "is empty, need config.json");
    write_file(tmp.path() / "b.txt", "x");
    write_file(tmp.path() / "a.txt", "x");
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::not_found,
                 "has no config.json (it has a.txt, b.txt); give");
    for (int i = 0; i < 20; ++i)
        write_file(tmp.path() / ("c" + std::to_string(i)), "x");
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::not_found, "and 14 more");
}

TEST(ModelDir, FolderThatHoldsAModelOneLevelDownSuggestsIt) {
    const TempDir tmp;
    fs::create_directory(tmp.path() / "exl3");
    write_file(tmp.path() / "exl3/config.json", "{}");
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::not_found,
                 "did you mean " + (tmp.path() / "exl3").string() + "?");
}

TEST(ModelDir, GgufFolderSaysThatGgufIsNotRead) {
    const TempDir tmp;
    write_file(tmp.path() / "model.gguf", "GGUF");
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::not_found, "GGUF is not read");
}

TEST(ModelDir, ErrorsOfTheFilesInsideNameThem) {
    const TempDir tmp;
    fs::copy_file(data_path("tiny-bf16/config.json"), tmp.path() / "config.json");
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::not_found, "holds no *.safetensors file");
    EXPECT_OK(load_model_config(tmp.path()));
    write_small(tmp.path() / "model.safetensors", {"a"});
    EXPECT_OK(ModelDir::open(tmp.path()));
    write_file(tmp.path() / "generation_config.json", R"({"eos_token_id":512})");
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::invalid_argument,
                 "generation_config.json: eos_token_id is 512, need 0..511");
    write_file(tmp.path() / "config.json", "{");
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::corrupt_data, "config.json: not valid JSON");
}

TEST(ModelDir, ConfigThatIsADirectoryIsRefused) {
    const TempDir tmp;
    fs::create_directory(tmp.path() / "config.json");
    EXPECT_ERROR(ModelDir::open(tmp.path()), Code::invalid_argument, "is a directory, need a file");
}

}  // namespace
}  // namespace terrace::test
