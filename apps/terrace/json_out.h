// Writes a JSON document piece by piece: numbers that JSON has no form for become null. The caller
// keeps begin and end in pairs. One thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

class JsonOut {
  public:
    JsonOut& begin_object(std::string_view key = {});
    JsonOut& end_object();
    JsonOut& begin_array(std::string_view key = {});
    JsonOut& end_array();
    // With a key inside objects, with an empty one inside arrays.
    JsonOut& text(std::string_view key, std::string_view value);
    JsonOut& real(std::string_view key, double value);
    JsonOut& flag(std::string_view key, bool value);
    JsonOut& integer(std::string_view key, std::integral auto value) {
        return raw(key, std::to_string(value));
    }
    std::string take() { return std::move(out_) + "\n"; }

  private:
    JsonOut& raw(std::string_view key, std::string_view value);
    void place(std::string_view key);

    std::string out_;
    int depth_ = 0;
    bool first_ = true;
};

}  // namespace terrace
