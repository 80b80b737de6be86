// A read-only JSON document behind plain types, so that no other folder sees a JSON library. Meant
// for configs, tokenizer files and request bodies. A Json is a cheap handle (one shared pointer) to
// one value; the document lives as long as any handle to it. Any thread may read one document.
//
// Every error names the document and the path of the value: "config.json: text_config.hc_count is
// a string, need an integer". parse_json refuses what a careful reader cannot trust: nesting beyond
// 64, duplicate keys in one object, bytes that are not UTF-8, anything after the value.
// Never modifies or writes documents; writers use quote_json.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace terrace {

struct JsonLimits {
    size_t max_bytes = size_t{64} << 20;  // tokenizer.json of a 250k vocabulary: about 20 MB
    int max_depth = 64;
};

class Json {
  public:
    enum class Kind { null, boolean, number, string, array, object };
    struct Member;

    Kind kind() const;
    bool is_null() const { return kind() == Kind::null; }
    bool is_bool() const { return kind() == Kind::boolean; }
    bool is_number() const { return kind() == Kind::number; }
    bool is_string() const { return kind() == Kind::string; }
    bool is_array() const { return kind() == Kind::array; }
    bool is_object() const { return kind() == Kind::object; }

    // "config.json: text_config.layer_types[3]"; just the document's name for the root.
    std::string where() const;
    std::string where(std::string_view key) const;  // of a member, present or not
    // An error about this value: where(), then ` ` and `problem`.
    Error error(Code code, std::string_view problem) const;

    // The value, or an error when it has another kind. as_int takes integers of the int64 range and
    // numbers written as 1e7 or 6.0 whose value is an exact integer below 2^53.
    Result<bool> as_bool() const;
    Result<int64_t> as_int() const;
    Result<double> as_double() const;
    Result<std::string> as_string() const;

    // Elements of an array, or members of an object, in document order.
    size_t size() const;  // 0 for scalars
    Result<std::vector<Json>> elements() const;
    Result<std::vector<Member>> members() const;

    // A member of an object: find gives nothing when this is no object or has no such key; get
    // makes that an error. Linear in the number of members.
    std::optional<Json> find(std::string_view key) const;
    Result<Json> get(std::string_view key) const;

    // A member's value, an error when absent ...
    Result<bool> get_bool(std::string_view key) const;
    Result<int64_t> get_int(std::string_view key) const;
    Result<double> get_double(std::string_view key) const;
    Result<std::string> get_string(std::string_view key) const;
    // ... or `fallback` when absent or null (a value of the wrong kind is still an error).
    Result<bool> bool_or(std::string_view key, bool fallback) const;
    Result<int64_t> int_or(std::string_view key, int64_t fallback) const;
    Result<double> double_or(std::string_view key, double fallback) const;
    Result<std::string> string_or(std::string_view key, std::string_view fallback) const;

    struct Node;
    explicit Json(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

  private:
    std::shared_ptr<const Node> node_;
};

struct Json::Member {
    std::string key;
    Json value;
};

std::string_view to_string(Json::Kind kind);  // "an object", "null", ...

// `where` names the document in errors, usually the file's path.
Result<Json> parse_json(std::string_view text, std::string_view where, JsonLimits limits = {});

// `text` as a JSON string with its quotes. Control characters are escaped; bytes that are not UTF-8
// become U+FFFD, so the result is always valid JSON.
std::string quote_json(std::string_view text);

}  // namespace terrace
