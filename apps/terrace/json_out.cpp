// SPDX-License-Identifier: MIT
#include "json_out.h"

#include <fmt/format.h>

#include <cmath>

#include "io/json.h"

namespace terrace {

void JsonOut::place(std::string_view key) {
    if (!first_) out_ += ',';
    if (depth_ > 0) {
        out_ += '\n';
        out_.append(static_cast<size_t>(2 * depth_), ' ');
    }
    if (!key.empty()) out_ += quote_json(key) + ": ";
    first_ = false;
}

JsonOut& JsonOut::raw(std::string_view key, std::string_view value) {
    place(key);
    out_ += value;
    return *this;
}

JsonOut& JsonOut::begin_object(std::string_view key) {
    raw(key, "{");
    ++depth_;
    first_ = true;
    return *this;
}

JsonOut& JsonOut::begin_array(std::string_view key) {
    raw(key, "[");
    ++depth_;
    first_ = true;
    return *this;
}

JsonOut& JsonOut::end_object() {
    --depth_;
    out_ += '\n' + std::string(static_cast<size_t>(2 * depth_), ' ') + '}';
    first_ = false;
    return *this;
}

JsonOut& JsonOut::end_array() {
    --depth_;
    out_ += '\n' + std::string(static_cast<size_t>(2 * depth_), ' ') + ']';
    first_ = false;
    return *this;
}

JsonOut& JsonOut::text(std::string_view key, std::string_view value) {
    return raw(key, quote_json(value));
}

JsonOut& JsonOut::real(std::string_view key, double value) {
    return raw(key, std::isfinite(value) ? fmt::format("{}", value) : "null");
}

JsonOut& JsonOut::flag(std::string_view key, bool value) {
    return raw(key, value ? "true" : "false");
}

}  // namespace terrace
