// SPDX-License-Identifier: MIT
#include "flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

namespace terrace {
namespace {

Error invalid(std::string message) {
    return Error{Code::invalid_argument, std::move(message)};
}

Error need(std::string_view text, std::string_view what) {
    return invalid(fmt::format("is \"{}\": need {}", text, what));
}

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
        }
    }
    return row.back();
}

}  // namespace

std::string Flag::environment() const {
    std::string out = "TERRACE_";
    for (const char c : name)
        out += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    return out;
}

Result<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high) {
    int64_t value = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (ec != std::errc() || end != text.data() + text.size() || value < low || value > high)
        return need(text, fmt::format("an integer {}..{}", low, high));
    return value;
}

Result<double> parse_real(std::string_view text) {
    double value = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (ec != std::errc() || end != text.data() + text.size() || std::isnan(value))
        return need(text, "a number");
    return value;
}

Result<uint64_t> parse_size(std::string_view text) {
    constexpr std::string_view kNeed = "bytes, with K, M, G or T for powers of 1024, such as 24G";
    double value = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
    for (const std::string_view tail : {"iB", "B"})
        if (unit.ends_with(tail) && (tail == "B" || unit.size() == 3)) {
            unit.remove_suffix(tail.size());
            break;
        }
    constexpr std::string_view kUnits = "KMGT";
    double factor = 1;
    if (unit.size() == 1) {
        const char upper =
            static_cast<char>(unit[0] >= 'a' && unit[0] <= 'z' ? unit[0] - 'a' + 'A' : unit[0]);
        const size_t power = kUnits.find(upper);
        if (power == std::string_view::npos) return need(text, kNeed);
        factor = std::pow(1024.0, static_cast<double>(power + 1));
    }
    if (ec != std::errc() || unit.size() > 1 || !(value >= 0) || !(value * factor < 0x1p63))
        return need(text, kNeed);
    return static_cast<uint64_t>(value * factor);
}

std::optional<std::string> closest(std::string_view word, const std::vector<std::string>& legal) {
    std::optional<std::string> best;
    size_t distance = std::max<size_t>(2, word.size() / 3) + 1;
    for (const std::string& candidate : legal) {
        const bool begins = word.size() >= 3 && candidate.starts_with(word);
        const size_t d = begins ? 1 : edit_distance(word, candidate);
        if (d < distance) {
            distance = d;
            best = candidate;
        }
    }
    return best;
}

Flag& FlagSet::add(Flag flag) {
    TERRACE_CHECK(find(flag.name) == nullptr);
    flag.group = heading_;
    return flags_.emplace_back(std::move(flag));
}

Flag& FlagSet::integer(std::string name, int32_t& to, int64_t low, int64_t high, std::string help) {
    Flag f{std::move(name), std::move(help), "N"};
    f.preset = std::to_string(to);
    f.set = [&to, low, high](const std::string& text) -> Status {
        TERRACE_ASSIGN(const int64_t v, parse_integer(text, low, high));
        to = static_cast<int32_t>(v);
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::number64(std::string name, std::optional<uint64_t>& to, std::string help) {
    Flag f{std::move(name), std::move(help), "N"};
    f.set = [&to](const std::string& text) -> Status {
        uint64_t v = 0;
        const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
        if (ec != std::errc() || end != text.data() + text.size())
            return need(text, "an integer 0..2^64-1");
        to = v;
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::real(std::string name, std::optional<float>& to, std::string preset,
                    std::string help) {
    Flag f{std::move(name), std::move(help), "X"};
    f.preset = std::move(preset);
    f.set = [&to](const std::string& text) -> Status {
        TERRACE_ASSIGN(const double v, parse_real(text));
        to = static_cast<float>(v);
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::real(std::string name, double& to, double low, double high, std::string help) {
    Flag f{std::move(name), std::move(help), "X"};
    f.preset = fmt::format("{}", to);
    f.set = [&to, low, high](const std::string& text) -> Status {
        TERRACE_ASSIGN(const double v, parse_real(text));
        if (!(v >= low && v <= high)) return need(text, fmt::format("{}..{}", low, high));
        to = v;
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::size(std::string name, uint64_t& to, std::string help) {
    Flag f{std::move(name), std::move(help), "SIZE"};
    f.preset = std::to_string(to);
    f.set = [&to](const std::string& text) -> Status {
        TERRACE_ASSIGN(to, parse_size(text));
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::size_or(std::string name, uint64_t& to,
                       std::vector<std::pair<std::string, uint64_t>> words, std::string help) {
    Flag f{std::move(name), std::move(help), "SIZE"};
    f.preset = std::to_string(to);
    std::string legal;
    for (const auto& [word, value] : words) {
        f.value_name += "|" + word;
        legal += word + ", ";
        if (value == to) f.preset = word;
    }
    f.set = [&to, words = std::move(words), legal](const std::string& text) -> Status {
        for (const auto& [word, value] : words)
            if (text == word) {
                to = value;
                return {};
            }
        const auto bytes = parse_size(text);
        if (!bytes) return need(text, legal + "or bytes, with K, M, G or T, such as 512M");
        to = *bytes;
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::text(std::string name, std::string value_name, std::string& to, std::string help) {
    Flag f{std::move(name), std::move(help), std::move(value_name)};
    f.preset = to;
    f.set = [&to](const std::string& text) -> Status {
        to = text;
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::text(std::string name, std::string value_name, std::optional<std::string>& to,
                    std::string help) {
    Flag f{std::move(name), std::move(help), std::move(value_name)};
    f.set = [&to](const std::string& text) -> Status {
        to = text;
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::texts(std::string name, std::string value_name, std::vector<std::string>& to,
                     std::string help) {
    Flag f{std::move(name), std::move(help), std::move(value_name), FlagKind::repeated};
    f.set = [&to](const std::string& text) -> Status {
        to.push_back(text);
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::integers(std::string name, std::vector<int32_t>& to, int64_t low, int64_t high,
                        std::string help) {
    Flag f{std::move(name), std::move(help), "N,.."};
    f.preset = fmt::format("{}", fmt::join(to, ","));
    f.set = [&to, low, high](const std::string& text) -> Status {
        std::vector<int32_t> values;
        for (size_t at = 0; at <= text.size();) {
            const size_t comma = std::min(text.find(',', at), text.size());
            TERRACE_ASSIGN(const int64_t v,
                           parse_integer(std::string_view(text).substr(at, comma - at), low, high));
            values.push_back(static_cast<int32_t>(v));
            at = comma + 1;
        }
        to = std::move(values);
        return {};
    };
    return add(std::move(f));
}

Flag& FlagSet::toggle(std::string name, bool& to, std::string help) {
    Flag f{std::move(name), std::move(help), "", FlagKind::toggle};
    f.preset = to ? "on" : "off";
    f.set = [&to](const std::string& text) -> Status {
        for (const char* on : {"on", "true", "yes", "1"})
            if (text == on) return to = true, Status();
        for (const char* off : {"off", "false", "no", "0"})
            if (text == off) return to = false, Status();
        return need(text, "on or off");
    };
    return add(std::move(f));
}

Flag& FlagSet::add_choice(std::string name, std::string preset, std::vector<std::string> legal,
                          std::function<void(size_t)> pick, std::string help) {
    Flag f{std::move(name), std::move(help), fmt::format("{}", fmt::join(legal, "|"))};
    f.preset = std::move(preset);
    f.set = [legal = std::move(legal), pick = std::move(pick)](const std::string& text) -> Status {
        const auto at = std::find(legal.begin(), legal.end(), text);
        if (at == legal.end()) return need(text, fmt::format("one of {}", fmt::join(legal, ", ")));
        pick(static_cast<size_t>(at - legal.begin()));
        return {};
    };
    return add(std::move(f));
}

Flag* FlagSet::find(std::string_view name) {
    const auto at =
        std::find_if(flags_.begin(), flags_.end(), [&](const Flag& f) { return f.name == name; });
    return at == flags_.end() ? nullptr : &*at;
}

const Flag* FlagSet::find(std::string_view name) const {
    return const_cast<FlagSet*>(this)->find(name);
}

bool FlagSet::given(std::string_view name) const {
    const Flag* f = find(name);
    return f && f->source != FlagSource::preset;
}

std::string FlagSet::print_config() const {
    std::string out;
    for (const Flag& f : flags_) {
        if (f.name == "print-config") continue;
        const std::string value = f.source == FlagSource::preset
                                      ? f.preset
                                      : fmt::format("{}", fmt::join(f.given, " | "));
        const std::string source = f.source == FlagSource::preset ? "default"
                                   : f.source == FlagSource::flag ? "flag"
                                                                  : f.environment();
        out += fmt::format("{:<22} {:<28} {}\n", f.dashed(), value.empty() ? "-" : value, source);
    }
    return out;
}

}  // namespace terrace
