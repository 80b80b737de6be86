// The CPU backend for a program: the host device, a worker pool, and the fast operations, or the
// scalar reference where the processor has no AVX2. The only place that names src/cpu.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <charconv>

#include "base/cpu_features.h"
#include "compose.h"
#include "cpu/cpu_ops.h"
#include "device/emulated_device.h"
#include "ops/emulated_ops.h"

namespace terrace {
namespace {

Error bad(const char* flag, const std::string& value, const char* legal) {
    return Error{Code::invalid_argument,
                 fmt::format("{} {}: legal values are {}", flag, value, legal)};
}

// "emulated:SEED".
Result<uint64_t> seed_of(const std::string& device) {
    constexpr std::string_view kPrefix = "emulated:";
    uint64_t seed = 0;
    const char* end = device.data() + device.size();
    if (device.starts_with(kPrefix)) {
        const auto [at, error] = std::from_chars(device.data() + kPrefix.size(), end, seed);
        if (error == std::errc{} && at == end) return seed;
    }
    return bad("--device", device, "emulated:SEED with a number such as emulated:7");
}

size_t available_bytes() {
    struct sysinfo info = {};
    return ::sysinfo(&info) == 0 ? size_t{info.totalram} * info.mem_unit : size_t{8} << 30;
}

}  // namespace

Result<Backend> open_cpu_backend(const BackendOptions& o) {
    const bool emulated = o.device.starts_with("emulated");
    uint64_t seed = 0;
    if (emulated) {
        TERRACE_ASSIGN(seed, seed_of(o.device));
    }
    if (o.threads < 0 || o.threads > 1024)
        return bad("--threads", std::to_string(o.threads), "0 (every CPU) to 1024");
    CpuOpsOptions cpu;
    if (o.activations == "f32")
        cpu.activations = Activations::f32;
    else if (o.activations != "int16")
        return bad("--activations", o.activations, "int16, f32");
    if (o.isa == "avx2")
        cpu.isa = IsaChoice::avx2;
    else if (o.isa == "avx512")
        cpu.isa = IsaChoice::avx512;
    else if (o.isa == "avx512vbmi")
        cpu.isa = IsaChoice::avx512_vbmi;
    else if (o.isa != "auto")
        return bad("--isa", o.isa, "auto, avx2, avx512, avx512vbmi");

    Backend b;
    b.device = make_host_device();
    const int threads = o.threads > 0 ? o.threads : cpu_features().physical_threads;
    b.pool = std::make_unique<WorkerPool>(threads, o.pinning);
    if (o.device == "reference" ||
        (o.device == "auto" && o.isa == "auto" && !cpu_features().avx2)) {
        if (o.device == "auto")
            b.notes.push_back(
                "this processor has no AVX2 with FMA and F16C: the scalar reference "
                "runs instead, hundreds of times slower");
        b.ops = make_reference_ops();
        return b;
    }
    if (emulated) {
        // A third of the machine's memory for the device: the host holds the weights a second time.
        b.inner = std::move(b.device);
        TERRACE_ASSIGN(b.device, EmulatedDevice::create(seed, available_bytes() / 3));
        TERRACE_ASSIGN(auto inner, make_cpu_ops(*b.inner, *b.pool, cpu));
        b.ops = make_emulated_ops(std::move(inner));
        return b;
    }
    TERRACE_ASSIGN(b.ops, make_cpu_ops(*b.device, *b.pool, cpu));
    return b;
}

}  // namespace terrace
