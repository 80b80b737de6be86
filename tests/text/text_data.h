// Tokenizers and files that the tests of src/text share; each is read once per test binary.
// SPDX-License-Identifier: MIT
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "support/support.h"
#include "text/tokenizer.h"

namespace terrace::test {

std::string read_test_file(std::string_view name);  // under tests/data
nlohmann::ordered_json read_test_json(std::string_view name);
const Tokenizer& qwen3_tokenizer();  // from the compressed tokenizer.json
const std::string& qwen3_tokenizer_json();
const Tokenizer& demo_tokenizer();  // models/demo

// A complete byte-level tokenizer.json: the 256 bytes are ids 0..255, then `merges` ("a b") make
// ids from 256 on, then `added` holds the raw JSON of added tokens.
struct ToyTokenizer {
    std::vector<std::string> merges;
    std::string added = "[]";
    std::string normalizer = "null";
    std::string pre_tokenizer =
        R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
    std::string model_extra = {};  // e.g. R"(, "ignore_merges": true)"
    std::string vocab_extra = {};  // e.g. R"(, "ab": 300)"
    std::string json() const;
    Tokenizer make() const;
};

using Ids = std::vector<TokenId>;

}  // namespace terrace::test
