// The flags of a command as data: name, how to read a value, where it came from. Parsing (parse.h),
// --help, --print-config and the environment all work on this one list. Each flag --some-name has
// an environment twin TERRACE_SOME_NAME; the flag wins.
//
// A FlagSet holds pointers to the options it fills: the options must outlive it. Start-up only, one
// thread. Never reads the command line or the environment itself.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace terrace {

enum class FlagKind : uint8_t { value, toggle, repeated };
enum class FlagSource : uint8_t { preset, environment, flag };

struct Flag {
    std::string name;  // "max-seqs", without dashes
    std::string help;
    std::string value_name;  // "N", "DIR"; empty for a toggle
    FlagKind kind = FlagKind::value;
    char letter = 0;           // one-letter form, or 0
    std::string group = {};    // heading in --help
    std::string missing = {};  // not empty: must be given, and this is the remedy
    std::string preset = {};   // the default, as text
    FlagSource source = FlagSource::preset;
    std::vector<std::string> given = {};  // texts that were applied
    // Reads one text. The error is the rest of a sentence: "is \"x\": need an integer 1..9".
    std::function<Status(const std::string&)> set = {};

    std::string dashed() const { return "--" + name; }
    std::string environment() const;  // TERRACE_MAX_SEQS
};

class FlagSet {
  public:
    // Flags added from here on are listed under this heading.
    void heading(std::string text) { heading_ = std::move(text); }

    Flag& integer(std::string name, int32_t& to, int64_t low, int64_t high, std::string help);
    Flag& number64(std::string name, std::optional<uint64_t>& to, std::string help);
    Flag& real(std::string name, std::optional<float>& to, std::string preset, std::string help);
    Flag& real(std::string name, double& to, double low, double high, std::string help);
    Flag& size(std::string name, uint64_t& to, std::string help);  // 0, 512M, 1.5G
    // A size, or one of the words.
    Flag& size_or(std::string name, uint64_t& to,
                  std::vector<std::pair<std::string, uint64_t>> words, std::string help);
    Flag& text(std::string name, std::string value_name, std::string& to, std::string help);
    Flag& text(std::string name, std::string value_name, std::optional<std::string>& to,
               std::string help);
    Flag& texts(std::string name, std::string value_name, std::vector<std::string>& to,
                std::string help);
    Flag& integers(std::string name, std::vector<int32_t>& to, int64_t low, int64_t high,
                   std::string help);  // comma list
    Flag& toggle(std::string name, bool& to, std::string help);
    template <class T>
    Flag& choice(std::string name, T& to, std::vector<std::pair<std::string, T>> legal,
                 std::string help);

    // Giving both on the command line is an error; one on the command line silences the other's
    // environment twin.
    void clash(std::string a, std::string b) { clashes_.emplace_back(std::move(a), std::move(b)); }
    // What a value must satisfy together with others; run after all flags are set.
    void rule(std::function<Status()> check) { rules_.push_back(std::move(check)); }

    std::vector<Flag>& flags() { return flags_; }
    const std::vector<Flag>& flags() const { return flags_; }
    Flag* find(std::string_view name);
    const Flag* find(std::string_view name) const;
    bool given(std::string_view name) const;  // by flag or environment
    const std::vector<std::pair<std::string, std::string>>& clashes() const { return clashes_; }
    const std::vector<std::function<Status()>>& rules() const { return rules_; }

    // One line per flag: name, value, source.
    std::string print_config() const;

  private:
    Flag& add(Flag flag);
    Flag& add_choice(std::string name, std::string preset, std::vector<std::string> legal,
                     std::function<void(size_t)> pick, std::string help);

    std::string heading_;
    std::vector<Flag> flags_;
    std::vector<std::pair<std::string, std::string>> clashes_;
    std::vector<std::function<Status()>> rules_;
};

// Whole texts only: "12x", "", " 1" and values out of range are errors.
Result<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high);
Result<double> parse_real(std::string_view text);
// "1024", "64K", "1.5G", "8GiB": powers of 1024.
Result<uint64_t> parse_size(std::string_view text);
// The candidate with the smallest edit distance, when that is small enough to be a slip.
std::optional<std::string> closest(std::string_view word, const std::vector<std::string>& legal);

template <class T>
Flag& FlagSet::choice(std::string name, T& to, std::vector<std::pair<std::string, T>> legal,
                      std::string help) {
    std::vector<std::string> names;
    std::string preset;
    for (const auto& [text, value] : legal) {
        names.push_back(text);
        if (value == to) preset = text;
    }
    return add_choice(
        std::move(name), std::move(preset), std::move(names),
        [&to, legal = std::move(legal)](size_t i) { to = legal[i].second; }, std::move(help));
}

}  // namespace terrace
