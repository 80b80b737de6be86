// The program: reads the command line, runs one command, and makes sure that whatever happens ends
// in one line on standard error and an exit status: 0 done, 1 failed, 2 called wrongly, 130
// interrupted.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>

#include "base/cpu_features.h"
#include "commands.h"
#include "common.h"
#include "ops/backends.h"

namespace terrace {
namespace {

std::string version_text() {
    const CpuFeatures& cpu = cpu_features();
    return fmt::format("terrace {} ({} {}), backends: {}; this machine: {}, {} CPUs{}{}{}",
                       TERRACE_VERSION, TERRACE_COMPILER, TERRACE_COMPILER_VERSION, backend_names(),
                       cpu.name.empty() ? "unknown processor" : cpu.name, cpu.physical_threads,
                       cpu.avx2 ? " avx2" : "", cpu.avx512 ? " avx512" : "",
                       cpu.avx512_vbmi ? " avx512vbmi" : "");
}

Command version_command() {
    Command c{
        "version", "Version, compiler, backends and processor", "  terrace version\n", {}, {}};
    c.run = []() -> Result<int> {
        out(version_text() + "\n");
        return 0;
    };
    return c;
}

int run(int argc, char** argv) {
    std::vector<Command> commands;
    for (Command (*make)() :
         {generate_command, chat_command, logits_command, eval_command, inspect_command,
          plan_command, bench_command, sim_command, version_command})
        commands.push_back(make());
    const auto parsed = parse_command_line(argc, argv, commands, version_text());
    if (!parsed) {
        complain(Error{Code::invalid_argument, parsed.error().message});
        return 2;
    }
    int status = 0;
    if (!parsed->command) {
        out(parsed->output);
    } else {
        watch_interrupts();
        const Result<int> result = parsed->command->run();
        if (!result) complain(result.error());
        status = !result ? 1 : *result;
        if (interrupted()) status = kInterruptedExit;
    }
    if (out_failed()) {
        complain(Error{Code::io, "standard output could not be written"});
        if (status == 0) status = 1;
    }
    return status;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
    try {
        return terrace::run(argc, argv);
    } catch (const std::bad_alloc&) {
        std::fputs(
            "terrace: the system refused memory: lower --ctx, --max-seqs or "
            "--prefill-chunk\n",
            stderr);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "terrace: internal error: %s\n", e.what());
    } catch (...) {
        std::fputs("terrace: internal error of unknown kind\n", stderr);
    }
    return 1;
}
