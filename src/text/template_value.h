// The values that chat templates compute with: JSON's, plus what Jinja adds (undefined, tuples and
// the engine's own objects). Cheap to copy: strings, lists and dictionaries are shared and never
// changed while shared. Distinct Values may be used by distinct threads, shared contents included.
// Dictionary keys are strings and keep their order of insertion, as in a JSON document.
// Text is UTF-8; lengths and indexes that templates see count characters.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace terrace {

class Dict;

// Base of what only the engine makes: loop, namespace, macros, functions.
struct TemplateObject {
    virtual ~TemplateObject() = default;
};

class Value {
  public:
    enum class Kind : uint8_t {
        undefined,
        none,
        boolean,
        integer,
        real,
        string,
        list,
        dict,
        object
    };
    enum class Sequence : uint8_t { list, tuple };
    // Deepest nesting of lists and dictionaries; recursion over values is bounded by it.
    static constexpr int kMaxDepth = 100;

    Value() : data_(None{}) {}
    Value(std::nullptr_t) : Value() {}
    template <class T>
        requires std::is_same_v<T, bool>
    Value(T v) : data_(v) {}
    template <class T>
        requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
    Value(T v) : data_(static_cast<int64_t>(v)) {}
    Value(double v) : data_(v) {}
    Value(std::string v) : data_(std::make_shared<const std::string>(std::move(v))) {}
    Value(std::string_view v) : Value(std::string(v)) {}
    Value(const char* v) : Value(std::string(v)) {}
    Value(std::shared_ptr<TemplateObject> v) : data_(std::move(v)) {}

    static Value undefined();
    static Value list(std::vector<Value> items, Sequence kind = Sequence::list);
    static Value dict();  // empty
    static Value dict(Dict entries);
    // Errors: not JSON, or nested deeper than kMaxDepth. Integers beyond 64 bits become real.
    static Result<Value> from_json(std::string_view json, std::string_view where = "JSON");

    Kind kind() const { return static_cast<Kind>(data_.index()); }
    bool is(Kind k) const { return kind() == k; }
    bool is_string() const { return is(Kind::string); }
    bool is_list() const { return is(Kind::list); }
    bool is_dict() const { return is(Kind::dict); }
    bool is_none() const { return is(Kind::none); }
    bool is_undefined() const { return is(Kind::undefined); }
    bool is_number() const { return is(Kind::integer) || is(Kind::real) || is(Kind::boolean); }
    bool is_tuple() const;

    // Each needs its kind; check first.
    bool as_bool() const { return std::get<bool>(data_); }
    int64_t as_integer() const;  // booleans count as 0 and 1
    double as_real() const;      // any number
    const std::string& as_string() const;
    const std::vector<Value>& as_list() const;
    const Dict& as_dict() const;
    const std::shared_ptr<TemplateObject>& as_object() const;

    // Member of a dictionary, or null when this is none or has it not.
    const Value* find(std::string_view key) const;
    // For building contexts: makes this a dictionary if it is none, then sets the member.
    Value& set(std::string key, Value value);

    bool truthy() const;  // as Python: zero, empty, none and undefined are false
    int depth() const;    // 0 for scalars
    // Work to walk the whole value: nodes plus text, shared parts counted as often as they are met.
    // Saturates. What recurses over a value charges this first.
    uint64_t weight() const;
    std::string str() const;   // what {{ value }} prints: Python's str()
    std::string repr() const;  // Python's repr()

  private:
    struct Undefined {};
    struct None {};
    struct ListData {
        std::vector<Value> items;
        Sequence kind;
        int depth;
        uint64_t weight;
    };
    struct DictData;
    std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
                 std::shared_ptr<ListData>, std::shared_ptr<DictData>,
                 std::shared_ptr<TemplateObject>>
        data_;
};

class Dict {
  public:
    using Entry = std::pair<std::string, Value>;

    const Value* find(std::string_view key) const;
    void set(std::string key, Value value);  // replaces in place, or appends
    const std::vector<Entry>& entries() const { return entries_; }
    size_t size() const { return entries_.size(); }

  private:
    std::vector<Entry> entries_;
    std::unordered_map<std::string, size_t> index_;  // kept only above a handful of entries
};

struct Value::DictData {
    Dict entries;
    int depth;
    uint64_t weight;
};

// Python's ==; numbers compare across kinds.
bool equal(const Value& a, const Value& b);

struct JsonStyle {
    bool ensure_ascii = false;
    bool sort_keys = false;
    bool pretty = false;  // one member per line, indented by `indent`
    std::string indent;
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};
// Python's json.dumps. Errors: an undefined value or an object inside.
Result<std::string> to_json(const Value& value, const JsonStyle& style = {});

// Python's repr of a float: shortest digits that read back the same, "1.0", "1e+16", "inf".
std::string python_float(double v);

}  // namespace terrace
