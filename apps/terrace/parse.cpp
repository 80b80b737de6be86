// SPDX-License-Identifier: MIT
#include "parse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/env.h"

namespace terrace {
namespace {

using Parsed = tl::expected<Invocation, UsageError>;

tl::unexpected<UsageError> usage(std::string message) {
    return tl::unexpected<UsageError>(UsageError{std::move(message)});
}

std::vector<std::string> names_of(const std::vector<Command>& commands) {
    std::vector<std::string> names;
    for (const Command& c : commands)
        names.push_back(c.name);
    return names;
}

std::vector<std::string> names_of(const FlagSet& flags) {
    std::vector<std::string> names;
    for (const Flag& f : flags.flags())
        names.push_back(f.dashed());
    return names;
}

std::string hint(const std::string& word, const std::vector<std::string>& legal) {
    const auto best = closest(word, legal);
    return best ? fmt::format("; did you mean {}?", *best) : std::string();
}

// "--prompt=" and "--prompt=a" become two words each, so that an empty value stays a value; a word
// that follows a flag with a value is left alone whatever it looks like.
std::vector<std::string> split_equals(std::vector<std::string> words, const FlagSet& flags) {
    std::vector<std::string> out;
    const auto takes_value = [&](std::string_view dashed) {
        const Flag* f = dashed.starts_with("--") ? flags.find(dashed.substr(2)) : nullptr;
        return f && f->kind != FlagKind::toggle;
    };
    for (size_t i = 0; i < words.size(); ++i) {
        const size_t equals = words[i].find('=');
        if (equals != std::string::npos && takes_value(words[i].substr(0, equals))) {
            out.push_back(words[i].substr(0, equals));
            out.push_back(words[i].substr(equals + 1));
            continue;
        }
        out.push_back(words[i]);
        if (takes_value(words[i]) && i + 1 < words.size()) out.push_back(words[++i]);
    }
    return out;
}

struct Bound {
    CLI::App* app = nullptr;
    std::vector<CLI::Option*> options;             // one per flag
    std::vector<std::vector<std::string>> values;  // one per flag
};

void bind(CLI::App& app, Command& command, Bound& to) {
    to.app = app.add_subcommand(command.name, command.summary);
    to.app->allow_extras();
    to.app->set_help_flag("-h,--help", "This text");
    if (!command.examples.empty()) to.app->footer("Examples:\n" + command.examples);
    to.values.resize(command.flags.flags().size());
    size_t i = 0;
    for (const Flag& f : command.flags.flags()) {
        const std::string names =
            f.letter ? fmt::format("-{},{}", f.letter, f.dashed()) : f.dashed();
        // Const: add_flag() would take a mutable string for the variable to fill.
        const std::string help = f.kind == FlagKind::toggle || f.preset.empty()
                                     ? f.help
                                     : fmt::format("{} [{}]", f.help, f.preset);
        if (f.kind == FlagKind::toggle) {
            to.options.push_back(to.app->add_flag(names, help));
        } else {
            to.options.push_back(to.app->add_option(names, to.values[i], help));
            to.options.back()->expected(1)->allow_extra_args(false)->type_name(f.value_name);
            // Repetition is judged in apply_flags(), with a message of our own.
            to.options.back()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
        }
        to.options.back()->group(f.group.empty() ? "Flags" : f.group);
        ++i;
    }
}

// What stood on the command line.
tl::expected<void, UsageError> apply_flags(Command& command, const Bound& bound) {
    size_t i = 0;
    for (Flag& f : command.flags.flags()) {
        const CLI::Option& option = *bound.options[i];
        std::vector<std::string> texts =
            f.kind == FlagKind::toggle ? option.results() : bound.values[i];
        ++i;
        if (option.count() == 0) continue;
        if (texts.size() > 1 && f.kind == FlagKind::value)
            return usage(
                fmt::format("{} is given {} times: give it once", f.dashed(), texts.size()));
        for (const std::string& text : texts)
            if (const Status ok = f.set(text); !ok)
                return usage(fmt::format("{} {}", f.dashed(), ok.error().message));
        f.source = FlagSource::flag;
        f.given = std::move(texts);
    }
    for (const auto& [a, b] : command.flags.clashes())
        if (command.flags.given(a) && command.flags.given(b))
            return usage(fmt::format("--{} and --{} exclude each other: give one of them", a, b));
    return {};
}

// A twin counts only where neither its flag nor one that excludes it was given.
tl::expected<void, UsageError> apply_environment(Command& command) {
    FlagSet& flags = command.flags;
    for (Flag& f : flags.flags()) {
        if (f.source == FlagSource::flag) continue;
        const auto text = read_env(f.environment());
        if (!text) continue;
        bool silenced = false;
        for (const auto& [a, b] : flags.clashes())
            silenced |= (a == f.name && flags.find(b)->source == FlagSource::flag) ||
                        (b == f.name && flags.find(a)->source == FlagSource::flag);
        if (silenced) continue;
        // Several values of a repeated flag: one a line.
        size_t at = 0;
        do {
            const size_t end = f.kind == FlagKind::repeated
                                   ? std::min(text->find('\n', at), text->size())
                                   : text->size();
            const std::string part = text->substr(at, end - at);
            if (const Status ok = f.set(part); !ok)
                return usage(fmt::format("{} {} (environment twin of {})", f.environment(),
                                         ok.error().message, f.dashed()));
            f.given.push_back(part);
            at = end + 1;
        } while (at < text->size());
        f.source = FlagSource::environment;
    }
    for (const auto& [a, b] : flags.clashes())
        if (flags.given(a) && flags.given(b))
            return usage(fmt::format("{} and {} exclude each other: set one of them",
                                     flags.find(a)->environment(), flags.find(b)->environment()));
    return {};
}

Parsed finish(Command& command, const Bound& bound) {
    const auto where = [&](UsageError e) {
        return tl::unexpected<UsageError>(UsageError{command.name + ": " + e.message});
    };
    if (const auto extra = bound.app->remaining(); !extra.empty()) {
        const std::vector<std::string> legal = names_of(command.flags);
        const std::string& word = extra.front();
        if (word.starts_with("-")) {
            const std::string name = word.substr(0, word.find('='));
            return where({fmt::format("unknown flag {}{} (legal: {})", name, hint(name, legal),
                                      fmt::join(legal, " "))});
        }
        return where(
            {fmt::format("unexpected argument \"{}\": everything is given by flags, a "
                         "model folder as --model {} (legal: {})",
                         word, word, fmt::join(legal, " "))});
    }
    if (auto ok = apply_flags(command, bound); !ok) return where(ok.error());
    if (auto ok = apply_environment(command); !ok) return where(ok.error());
    if (command.flags.given("print-config"))
        return Invocation{nullptr, command.flags.print_config()};
    for (const Flag& f : command.flags.flags())
        if (!f.missing.empty() && f.source == FlagSource::preset)
            return where({fmt::format("{} is missing: {} (or set {})", f.dashed(), f.missing,
                                      f.environment())});
    for (const auto& rule : command.flags.rules())
        if (const Status ok = rule(); !ok) return where({ok.error().message});
    return Invocation{&command, {}};
}

}  // namespace

Parsed parse_command_line(int argc, const char* const* argv, std::vector<Command>& commands,
                          const std::string& version) {
    std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    const std::vector<std::string> names = names_of(commands);
    if (!words.empty() && words[0] == "help") {
        words.erase(words.begin());
        words.push_back("--help");
    }
    if (words.empty())
        return usage(fmt::format("no command given; legal commands: {}; terrace --help tells more",
                                 fmt::join(names, ", ")));
    const auto named = std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& c) { return c.name == words[0]; });
    if (named == commands.end() && !words[0].starts_with("-"))
        return usage(fmt::format("unknown command \"{}\"{} (legal: {})", words[0],
                                 hint(words[0], names), fmt::join(names, " ")));
    if (named == commands.end() && words[0] != "--help" && words[0] != "-h" &&
        words[0] != "--version")
        return usage(
            fmt::format("{} stands where a command belongs: terrace COMMAND {} ... (legal "
                        "commands: {})",
                        words[0], words[0], fmt::join(names, " ")));
    try {
        CLI::App app("Terrace runs EXL3-quantised sparse-attention mixture-of-experts models.",
                     "terrace");
        app.set_help_flag("-h,--help", "This text");
        app.set_version_flag("--version", version);
        app.require_subcommand(0, 1);
        app.footer(
            "terrace COMMAND --help lists the flags of a command. Every flag --some-name has "
            "an\nenvironment twin TERRACE_SOME_NAME; the flag wins.");
        std::vector<Bound> bound(commands.size());
        for (size_t i = 0; i < commands.size(); ++i)
            bind(app, commands[i], bound[i]);
        if (named != commands.end()) words = split_equals(std::move(words), named->flags);
        std::reverse(words.begin(), words.end());  // CLI11 takes arguments from the back
        try {
            app.parse(words);
        } catch (const CLI::CallForHelp&) {
            return Invocation{nullptr, app.help()};
        } catch (const CLI::CallForVersion&) {
            return Invocation{nullptr, version + "\n"};
        } catch (const CLI::ParseError& e) {
            std::string text = e.what();
            std::replace(text.begin(), text.end(), '\n', ' ');
            return usage(named == commands.end() ? text : named->name + ": " + text);
        }
        return finish(*named, bound[static_cast<size_t>(named - commands.begin())]);
    } catch (const CLI::Error& e) {
        return usage(fmt::format("command line: {}", e.what()));
    }
}

}  // namespace terrace
