// See text_data.h.
// SPDX-License-Identifier: MIT
#include "text_data.h"

#include <zstd.h>

#include <fstream>
#include <sstream>

#include "text/bpe.h"

namespace terrace::test {

std::string read_test_file(std::string_view name) {
    const std::string path = std::string(TERRACE_TEST_DATA "/") + std::string(name);
    std::ifstream file(path, std::ios::binary);
    std::stringstream out;
    out << file.rdbuf();
    if (!file) check_failed("test data file", __FILE__, __LINE__, path);
    return std::move(out).str();
}

nlohmann::ordered_json read_test_json(std::string_view name) {
    return nlohmann::ordered_json::parse(read_test_file(name));
}

const std::string& qwen3_tokenizer_json() {
    static const std::string json = [] {
        const std::string packed = read_test_file("text/qwen3-tokenizer.json.zst");
        std::string out(16u << 20, '\0');
        const size_t n = ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size());
        if (ZSTD_isError(n)) check_failed("zstd", __FILE__, __LINE__, ZSTD_getErrorName(n));
        out.resize(n);
        return out;
    }();
    return json;
}

const Tokenizer& qwen3_tokenizer() {
    static const Tokenizer t = must(Tokenizer::from_json(qwen3_tokenizer_json(), "qwen3"));
    return t;
}

const Tokenizer& demo_tokenizer() {
    static const Tokenizer t = must(Tokenizer::load(TERRACE_SOURCE_DIR "/models/demo"));
    return t;
}

std::string ToyTokenizer::json() const {
    nlohmann::ordered_json vocab = nlohmann::ordered_json::object();
    for (int b = 0; b < 256; ++b)
        vocab[byte_alphabet_spelling(static_cast<uint8_t>(b))] = b;
    int next = 256;
    for (std::string merge : merges) {
        merge.erase(merge.find(' '), 1);
        if (!vocab.contains(merge)) vocab[merge] = next++;
    }
    std::string spelled = vocab.dump();
    spelled.insert(spelled.size() - 1, vocab_extra);
    return R"({"version": "1.0", "added_tokens": )" + added + R"(, "normalizer": )" + normalizer +
           R"(, "pre_tokenizer": )" + pre_tokenizer +
           R"(, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": )" + spelled +
           R"(, "merges": )" + nlohmann::ordered_json(merges).dump() + model_extra + "}}";
}

Tokenizer ToyTokenizer::make() const {
    return must(Tokenizer::from_json(json(), "toy"));
}

}  // namespace terrace::test
