// The command line, read into the FlagSets of the commands. The only file that sees CLI11 is
// parse.cpp. Errors of use (unknown command or flag, a value that cannot be read, a flag that is
// missing or clashes) are UsageError: the program exits with 2. Start-up only, one thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "flags.h"

namespace terrace {

// Exit status of a command that ran: 0, or 1 after it told what went wrong.
struct Command {
    std::string name;      // "generate"
    std::string summary;   // one line
    std::string examples;  // whole lines, shown under --help
    FlagSet flags;
    std::function<Result<int>()> run;
};

struct Invocation {
    Command* command = nullptr;  // null: print `output` and leave
    std::string output;          // help, version or configuration
};

struct UsageError {
    std::string message;
};

// Applies the command line, then the environment, then checks.
tl::expected<Invocation, UsageError> parse_command_line(int argc, const char* const* argv,
                                                        std::vector<Command>& commands,
                                                        const std::string& version);

}  // namespace terrace
