// SPDX-License-Identifier: MIT
#include "common.h"

#include <fmt/format.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace terrace {
namespace {

std::atomic<bool> g_interrupted{false};
bool g_out_failed = false;

void on_interrupt(int) {
    // The handler was installed for one signal: the next one has its default effect.
    g_interrupted.store(true, std::memory_order_relaxed);
}

Error bad_id(const std::string& path, size_t index, std::string_view problem) {
    return Error{Code::invalid_argument, fmt::format("{}: token {} {}", path, index, problem)};
}

Result<TokenId> checked_id(const std::string& path, size_t index, int64_t id, int32_t vocab) {
    if (id < 0 || id >= vocab)
        return bad_id(path, index,
                      fmt::format("has id {}, outside the vocabulary 0..{}", id, vocab - 1));
    return static_cast<TokenId>(id);
}

Result<std::vector<TokenId>> ids_of_tensor(const TensorPath& where, int32_t vocab) {
    TERRACE_ASSIGN(SafetensorsFile file, SafetensorsFile::open(where.file));
    TERRACE_ASSIGN(const TensorView t, file.require(where.tensor));
    if (t.dtype != DType::i32 && t.dtype != DType::i64)
        return Error{Code::corrupt_data,
                     fmt::format("{}: {} is {}, need I32 or I64 token ids", where.file.string(),
                                 t.name, describe(t.dtype, t.shape))};
    std::vector<TokenId> ids;
    for (size_t i = 0; i < static_cast<size_t>(t.elements()); ++i) {
        int64_t id = 0;
        if (t.dtype == DType::i64) {
            std::memcpy(&id, t.data + 8 * i, 8);
        } else {
            int32_t narrow = 0;
            std::memcpy(&narrow, t.data + 4 * i, 4);
            id = narrow;
        }
        TERRACE_ASSIGN(const TokenId ok, checked_id(where.file.string(), i, id, vocab));
        ids.push_back(ok);
    }
    return ids;
}

}  // namespace

void add_output_flags(FlagSet& flags, CommonOptions& o) {
    flags.heading("Output");
    flags.toggle("quiet", o.quiet, "No warnings on standard error");
    flags.toggle("verbose", o.verbose, "Say what is opened and how long it takes");
    flags.toggle("print-config", o.print_config,
                 "Print each value and where it comes from, then exit");
    flags.clash("quiet", "verbose");
}

void add_common_flags(FlagSet& flags, CommonOptions& o, ModelFlag model) {
    EngineOptions& e = o.engine;
    flags.heading("Model and machine");
    Flag& m = flags.text("model", "DIR", o.model, "Model folder: config.json and *.safetensors");
    if (model == ModelFlag::required)
        m.missing = "give the folder that holds config.json and *.safetensors";
    flags.text("device", "NAME", e.backend.device,
               "auto, cpu, cuda, cuda:N or reference (slow, exact)");
    flags.integer("threads", e.backend.threads, 0, 1024, "Threads; 0: every CPU of the process");
    flags.choice<std::string>(
        "isa", e.backend.isa,
        {{"auto", "auto"}, {"avx2", "avx2"}, {"avx512", "avx512"}, {"avx512vbmi", "avx512vbmi"}},
        "Instruction set of the CPU kernels");
    flags.choice<std::string>("activations", e.backend.activations,
                              {{"int16", "int16"}, {"f32", "f32"}}, "Activations of EXL3 products");
    flags.toggle("pin", o.pin, "Pin threads to cores");
    flags.integer("ctx", e.ctx, 0, INT32_MAX,
                  "Tokens a sequence may hold; 0: the model's maximum, at most 8192");
    flags.integer("max-seqs", e.max_seqs, 1, 1024, "Sequences that may run at once");
    flags.integer("pool-tokens", e.pool_tokens, 0, INT32_MAX,
                  "Tokens of all sequences together; 0: --ctx times --max-seqs");
    flags.integer("prefill-chunk", e.prefill_chunk, 1, 65536,
                  "Prompt rows of one step, a multiple of 64");
    flags.choice<PlaneType>("kv-dtype", e.kv_type,
                            {{"f16", PlaneType::f16}, {"f32", PlaneType::f32}},
                            "Type of the K, V and index planes");
    flags.choice<KvOffload>(
        "kv-offload", e.kv_offload,
        {{"auto", KvOffload::fit}, {"off", KvOffload::off}, {"host", KvOffload::host}},
        "K and V planes in pinned host memory; auto: when GPU memory is too small");
    flags.choice<MemSpace>("kv-raw", e.kv_raw,
                           {{"host", MemSpace::host_pinned}, {"vram", MemSpace::device}},
                           "Raw index keys when K and V are in host memory");
    flags.size_or("kv-mirror", e.kv_mirror, {{"auto", kMirrorAuto}, {"off", 0}},
                  "GPU memory for hot K/V blocks whose home is host memory");
    flags.choice<KvStagingMode>(
        "kv-staging", e.kv_staging,
        {{"auto", KvStagingMode::where_it_pays}, {"off", KvStagingMode::off}},
        "Prefill reads K and V in host memory by way of an arena in GPU "
        "memory; auto: where that reads less");
    flags.size(
        "kv-arena", e.kv_arena,
        "Size of each of the arena's two halves; 0: the history of --ctx, what fits, at most "
        "1G");
    flags.choice<NgramPlacement>("ngram", e.ngram,
                                 {{"mapped", NgramPlacement::mapped},
                                  {"pread", NgramPlacement::pread},
                                  {"ram", NgramPlacement::ram}},
                                 "Where the n-gram table is read from");
    flags.size("host-limit", e.host_limit, "Memory to use at most; 0: what the machine has free");
    flags.size("vram-limit", e.vram_limit, "GPU memory to use at most; 0: what the GPU has free");
    flags.choice<Model::Graphs>("graphs", e.graphs,
                                {{"on", Model::Graphs::on}, {"off", Model::Graphs::off}},
                                "Replay decode steps as captured graphs (GPU)");
    flags.text("trace", "FILE", o.trace, "Write a timeline of operations (Chrome trace JSON)");
    flags.text("kv-trace", "FILE", o.kv_trace,
               "Record which K/V blocks decoded rows select, for terrace sim");
    flags.toggle("stats", o.stats, "Print counters (and speeds, where text is made) at the end");
    flags.text("stats-json", "FILE", o.stats_json, "Write the counters as a JSON document");
    add_output_flags(flags, o);
}

void adapt_presets(FlagSet& flags, CommonOptions& o, std::string seqs, std::string ctx) {
    o.engine.max_seqs = 0;
    flags.find("max-seqs")->preset = std::move(seqs);
    if (!ctx.empty()) flags.find("ctx")->preset = std::move(ctx);
}

EngineOptions engine_options(const CommonOptions& o) {
    set_log_level(o.quiet ? LogLevel::quiet : o.verbose ? LogLevel::debug : LogLevel::warn);
    EngineOptions e = o.engine;
    e.model = o.model;
    e.trace = o.trace;
    e.kv_trace = o.kv_trace;
    e.backend.pinning = o.pin ? Pinning::cores : Pinning::off;
    return e;
}

void announce(const Runtime& runtime, double seconds) {
    log_info(fmt::format(
        "{}: {} layers, {} experts; {} on {} threads, {} of memory planned, opened in {:.2f} s",
        runtime.options().model.string(), runtime.config().n_layers, runtime.config().n_experts,
        runtime.ops().name(), runtime.backend().pool ? runtime.backend().pool->size() : 1,
        human_bytes(runtime.plan().total()), seconds));
}

Result<std::unique_ptr<Runtime>> open_runtime(const EngineOptions& engine) {
    const Stopwatch watch;
    TERRACE_ASSIGN(std::unique_ptr<Runtime> runtime, Runtime::open(engine));
    announce(*runtime, watch.seconds());
    return runtime;
}

TensorPath split_tensor_path(const std::string& text, std::string_view default_tensor) {
    constexpr std::string_view kEnding = ".safetensors:";
    const size_t at = text.rfind(kEnding);
    if (at == std::string::npos) return {text, std::string(default_tensor)};
    return {text.substr(0, at + kEnding.size() - 1), text.substr(at + kEnding.size())};
}

Result<std::vector<TokenId>> read_token_file(const std::string& path, int32_t vocab) {
    const TensorPath tensor = split_tensor_path(path, "tokens");
    if (tensor.file.extension() == ".safetensors") return ids_of_tensor(tensor, vocab);
    TERRACE_ASSIGN(const std::string text, read_text_file(path, kMaxTextBytes));
    constexpr std::string_view kBetween = " \t\r\n,";
    std::vector<TokenId> ids;
    if (const size_t first = text.find_first_not_of(kBetween);
        first != std::string::npos && text[first] == '[') {
        TERRACE_ASSIGN(const Json json, parse_json(text, path));
        TERRACE_ASSIGN(const std::vector<Json> elements, json.elements());
        for (const Json& element : elements) {
            TERRACE_ASSIGN(const int64_t id, element.as_int());
            TERRACE_ASSIGN(const TokenId ok, checked_id(path, ids.size(), id, vocab));
            ids.push_back(ok);
        }
    } else {
        for (size_t at = first; at < text.size();) {
            const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
            const std::string_view word = std::string_view(text).substr(at, end - at);
            const auto id = parse_integer(word, INT64_MIN, INT64_MAX);
            if (!id)
                return bad_id(path, ids.size(),
                              fmt::format("is \"{:.40}\", need an integer", word));
            TERRACE_ASSIGN(const TokenId ok, checked_id(path, ids.size(), *id, vocab));
            ids.push_back(ok);
            at = text.find_first_not_of(kBetween, end);
        }
    }
    if (ids.empty())
        return Error{Code::invalid_argument, fmt::format("{}: holds no token ids", path)};
    return ids;
}

Result<std::string> read_standard_input() {
    std::string text;
    char buffer[1 << 16];
    size_t n = 0;
    while ((n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0) {
        text.append(buffer, n);
        if (text.size() > kMaxTextBytes)
            return Error{Code::invalid_argument,
                         fmt::format("standard input: more than {} bytes", kMaxTextBytes)};
    }
    if (std::ferror(stdin) && !interrupted())
        return Error{Code::io, fmt::format("standard input: {}", std::strerror(errno))};
    return text;
}

void drop_final_newline(std::string& text) {
    if (text.ends_with('\n')) text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
}

void out(std::string_view text) {
    if (text.empty()) return;
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
        g_out_failed = true;
}

bool out_failed() {
    return g_out_failed;
}

void complain(const Error& error) {
    std::string line = error.message;
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::fprintf(stderr, "terrace: %s\n", line.c_str());
}

void watch_interrupts() {
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND);  // and no SA_RESTART: a read must end
    sigaction(SIGINT, &action, nullptr);
}

bool interrupted() {
    return g_interrupted.load(std::memory_order_relaxed);
}

void forget_interrupt() {
    g_interrupted.store(false, std::memory_order_relaxed);
    watch_interrupts();
}

}  // namespace terrace
