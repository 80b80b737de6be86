// The subcommands, one file each: a function makes the command with its flags and its run().
// Start-up only, one thread; run() is called at most once, by the thread that then is the engine
// thread.
// SPDX-License-Identifier: MIT
#pragma once
#include "parse.h"

namespace terrace {

Command generate_command();
Command chat_command();
Command logits_command();
Command eval_command();
Command inspect_command();
Command plan_command();
Command bench_command();
Command sim_command();

}  // namespace terrace
