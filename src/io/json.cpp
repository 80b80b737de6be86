// SPDX-License-Identifier: MIT
#include "io/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace terrace {
namespace dom = simdjson::dom;

namespace {

struct Document {
    dom::parser parser;  // owns the tape and the strings that elements point into
    std::string name;
};

}  // namespace

// One value and the way to it. Keys point into the document.
struct Json::Node {
    std::shared_ptr<const Document> document;
    std::shared_ptr<const Node> parent;  // null for the root
    std::string_view key;                // when the parent is an object
    size_t index = 0;                    // when the parent is an array
    dom::element element;

    std::string path() const {
        if (!parent) return {};
        std::string p = parent->path();
        if (parent->element.is_array()) return p + fmt::format("[{}]", index);
        return p.empty() ? std::string(key) : fmt::format("{}.{}", p, key);
    }
};

namespace {

// Position and reason of a syntax error. simdjson, which reads the good documents, only says that
// there is one; the second parser reads the bad document again to say where.
class FirstError : public nlohmann::json_sax<nlohmann::json> {
  public:
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(std::size_t) override { return true; }
    bool key(string_t&) override { return true; }
    bool end_object() override { return true; }
    bool start_array(std::size_t) override { return true; }
    bool end_array() override { return true; }
    bool parse_error(std::size_t n_read, const std::string&,
                     const nlohmann::detail::exception& e) override {
        bytes_read = n_read;
        // "[json.exception.parse_error.101] parse error at line 1, column 5: reason". The reason is
        // kept; the column is counted here, because theirs is 0 when a number ends a line.
        reason = e.what();
        if (const size_t end = reason.find(": "); end != std::string::npos)
            reason.erase(0, end + 2);
        return false;
    }
    std::size_t bytes_read = 0;
    std::string reason;
};

std::string syntax_error(std::string_view text, simdjson::error_code code) {
    FirstError sax;
    try {
        nlohmann::json::sax_parse(text.begin(), text.end(), &sax);
    } catch (const std::exception&) {
        sax.reason.clear();
    }
    if (sax.reason.empty()) return simdjson::error_message(code);
    const std::string_view read = text.substr(0, sax.bytes_read);
    const auto line = 1 + std::count(read.begin(), read.end(), '\n');
    const size_t last = read.rfind('\n');
    const size_t column = last == std::string_view::npos ? read.size() : read.size() - last - 1;
    // The reason may quote the document's own bytes: keep it short and printable.
    std::string reason = fmt::format("line {}, column {}: {}", line, column, sax.reason);
    if (reason.size() > 200) reason.resize(200);
    for (char& c : reason) {
        if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    }
    return reason;
}

// The first key that an object of the tree has twice. Recursion is bounded by the parser's depth.
std::optional<std::string> duplicate_key(dom::element e) {
    if (e.is_array()) {
        for (dom::element child : dom::array(e)) {
            if (auto found = duplicate_key(child)) return found;
        }
    } else if (e.is_object()) {
        const dom::object object(e);
        std::unordered_set<std::string_view> seen;
        for (const auto& field : object) {
            if (!seen.insert(field.key).second) return std::string(field.key);
            if (auto found = duplicate_key(field.value)) return found;
        }
    }
    return std::nullopt;
}

}  // namespace

std::string_view to_string(Json::Kind kind) {
    switch (kind) {
        case Json::Kind::null:
            return "null";
        case Json::Kind::boolean:
            return "a boolean";
        case Json::Kind::number:
            return "a number";
        case Json::Kind::string:
            return "a string";
        case Json::Kind::array:
            return "an array";
        case Json::Kind::object:
            return "an object";
    }
    return "?";
}

Json::Kind Json::kind() const {
    switch (node_->element.type()) {
        case dom::element_type::ARRAY:
            return Kind::array;
        case dom::element_type::OBJECT:
            return Kind::object;
        case dom::element_type::INT64:
        case dom::element_type::UINT64:
        case dom::element_type::DOUBLE:
            return Kind::number;
        case dom::element_type::STRING:
            return Kind::string;
        case dom::element_type::BOOL:
            return Kind::boolean;
        case dom::element_type::NULL_VALUE:
            return Kind::null;
    }
    return Kind::null;
}

std::string Json::where() const {
    const std::string path = node_->path();
    return path.empty() ? node_->document->name
                        : fmt::format("{}: {}", node_->document->name, path);
}

std::string Json::where(std::string_view key) const {
    return fmt::format("{}{}{}", where(), node_->parent ? "." : ": ", key);
}

Error Json::error(Code code, std::string_view problem) const {
    return Error{code, fmt::format("{} {}", where(), problem)};
}

namespace {

Error wrong_kind(const Json& value, std::string_view need) {
    return value.error(Code::invalid_argument,
                       fmt::format("is {}, need {}", to_string(value.kind()), need));
}

}  // namespace

Result<bool> Json::as_bool() const {
    bool v = false;
    if (node_->element.get(v)) return wrong_kind(*this, "true or false");
    return v;
}

Result<int64_t> Json::as_int() const {
    int64_t v = 0;
    if (!node_->element.get(v)) return v;
    if (!is_number()) return wrong_kind(*this, "an integer");
    double d = 0;
    if (!node_->element.get(d) && d == std::floor(d) && std::abs(d) <= 0x1p53)
        return static_cast<int64_t>(d);
    return error(Code::invalid_argument, fmt::format("is {}, need an integer of 64 bits", d));
}

Result<double> Json::as_double() const {
    double v = 0;
    if (node_->element.get(v)) return wrong_kind(*this, "a number");
    return v;
}

Result<std::string> Json::as_string() const {
    std::string_view v;
    if (node_->element.get(v)) return wrong_kind(*this, "a string");
    return std::string(v);
}

size_t Json::size() const {
    // Counted by iteration: the tape's own count saturates at 2^24 - 1.
    if (is_array()) {
        size_t n = 0;
        for ([[maybe_unused]] dom::element e : dom::array(node_->element))
            ++n;
        return n;
    }
    if (is_object()) {
        size_t n = 0;
        for ([[maybe_unused]] const auto& f : dom::object(node_->element))
            ++n;
        return n;
    }
    return 0;
}

Result<std::vector<Json>> Json::elements() const {
    if (!is_array()) return wrong_kind(*this, "an array");
    std::vector<Json> out;
    for (dom::element e : dom::array(node_->element)) {
        auto child = std::make_shared<Node>(Node{node_->document, node_, {}, out.size(), e});
        out.emplace_back(std::move(child));
    }
    return out;
}

Result<std::vector<Json::Member>> Json::members() const {
    if (!is_object()) return wrong_kind(*this, "an object");
    std::vector<Member> out;
    for (const auto& field : dom::object(node_->element)) {
        auto child =
            std::make_shared<Node>(Node{node_->document, node_, field.key, 0, field.value});
        out.push_back(Member{std::string(field.key), Json(std::move(child))});
    }
    return out;
}

std::optional<Json> Json::find(std::string_view key) const {
    if (!is_object()) return std::nullopt;
    for (const auto& field : dom::object(node_->element)) {
        if (field.key == key)
            return Json(
                std::make_shared<Node>(Node{node_->document, node_, field.key, 0, field.value}));
    }
    return std::nullopt;
}

Result<Json> Json::get(std::string_view key) const {
    if (!is_object()) return wrong_kind(*this, fmt::format("an object with \"{}\"", key));
    if (auto found = find(key)) return *std::move(found);
    return Error{Code::invalid_argument, fmt::format("{} is missing", where(key))};
}

Result<bool> Json::get_bool(std::string_view key) const {
    TERRACE_ASSIGN(const Json v, get(key));
    return v.as_bool();
}

Result<int64_t> Json::get_int(std::string_view key) const {
    TERRACE_ASSIGN(const Json v, get(key));
    return v.as_int();
}

Result<double> Json::get_double(std::string_view key) const {
    TERRACE_ASSIGN(const Json v, get(key));
    return v.as_double();
}

Result<std::string> Json::get_string(std::string_view key) const {
    TERRACE_ASSIGN(const Json v, get(key));
    return v.as_string();
}

Result<bool> Json::bool_or(std::string_view key, bool fallback) const {
    const auto v = find(key);
    if (!v || v->is_null()) return fallback;
    return v->as_bool();
}

Result<int64_t> Json::int_or(std::string_view key, int64_t fallback) const {
    const auto v = find(key);
    if (!v || v->is_null()) return fallback;
    return v->as_int();
}

Result<double> Json::double_or(std::string_view key, double fallback) const {
    const auto v = find(key);
    if (!v || v->is_null()) return fallback;
    return v->as_double();
}

Result<std::string> Json::string_or(std::string_view key, std::string_view fallback) const {
    const auto v = find(key);
    if (!v || v->is_null()) return std::string(fallback);
    return v->as_string();
}

Result<Json> parse_json(std::string_view text, std::string_view where, JsonLimits limits) try {
    if (text.size() > limits.max_bytes)
        return Error{Code::invalid_argument,
                     fmt::format("{}: JSON of {} bytes, at most {} are read", where, text.size(),
                                 limits.max_bytes)};
    // A byte order mark is legal at the start of a file, not of a JSON text.
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    auto document = std::make_shared<Document>();
    document->name = std::string(where);
    // simdjson refuses capacities below its padding, hence the floor of 64 bytes.
    if (const auto e = document->parser.allocate(std::max<size_t>(text.size(), 64),
                                                 static_cast<size_t>(limits.max_depth)))
        return Error{Code::out_of_memory, fmt::format("{}: {}", where, simdjson::error_message(e))};
    const simdjson::padded_string padded(text);
    auto parsed = document->parser.parse(padded);
    if (parsed.error() == simdjson::DEPTH_ERROR)
        return Error{Code::corrupt_data,
                     fmt::format("{}: JSON nested deeper than {} levels", where, limits.max_depth)};
    if (parsed.error())
        return Error{Code::corrupt_data, fmt::format("{}: not valid JSON: {}", where,
                                                     syntax_error(text, parsed.error()))};
    const dom::element root = parsed.value_unsafe();
    if (const auto key = duplicate_key(root))
        return Error{Code::corrupt_data,
                     fmt::format("{}: key {} appears twice in one object; remove one of them",
                                 where, quote_json(*key))};
    return Json(std::make_shared<Json::Node>(Json::Node{document, nullptr, {}, 0, root}));
} catch (const std::bad_alloc&) {
    return Error{Code::out_of_memory,
                 fmt::format("{}: no memory to parse JSON of {} bytes", where, text.size())};
}

namespace {

// Length in bytes of the UTF-8 sequence at the start of `s`, 0 when it is none (RFC 3629: no
// surrogates, no overlong forms, at most U+10FFFF).
size_t utf8_length(std::string_view s) {
    const auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
    const unsigned char c = at(0);
    const size_t n = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (n == 0 || s.size() < n) return 0;
    for (size_t i = 1; i < n; ++i) {
        if ((at(i) & 0xC0) != 0x80) return 0;
    }
    if ((c == 0xE0 && at(1) < 0xA0) || (c == 0xED && at(1) > 0x9F) || (c == 0xF0 && at(1) < 0x90) ||
        (c == 0xF4 && at(1) > 0x8F))
        return 0;
    return n;
}

}  // namespace

std::string quote_json(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 2);
    out += '"';
    while (!text.empty()) {
        const size_t n = utf8_length(text);
        const char c = text.front();
        if (n == 0) {
            out += "\xEF\xBF\xBD";
        } else if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (c == '\n') {
            out += "\\n";
        } else if (c == '\r') {
            out += "\\r";
        } else if (c == '\t') {
            out += "\\t";
        } else if (static_cast<unsigned char>(c) < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
            out += text.substr(0, n);
        }
        text.remove_prefix(std::max<size_t>(n, 1));
    }
    out += '"';
    return out;
}

}  // namespace terrace
