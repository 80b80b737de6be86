// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench.h"
#include "bench_selection.h"
#include "common.h"
#include "feed.h"
#include "json_out.h"

namespace terrace {
namespace {

// SplitMix64; the same tokens on every machine.
class Noise {
  public:
    uint64_t next() {
        uint64_t v = state_ += 0x9E3779B97F4A7C15u;
        v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
        v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
        return v ^ (v >> 31);
    }
    TokenId token(int32_t vocab) {
        return static_cast<TokenId>(next() % static_cast<uint64_t>(vocab));
    }
    std::vector<TokenId> tokens(int64_t n, int32_t vocab) {
        std::vector<TokenId> out;
        for (int64_t i = 0; i < n; ++i)
            out.push_back(token(vocab));
        return out;
    }

  private:
    uint64_t state_ = 20;
};

// Values of magnitude 0.25 to 0.5 with random signs: finite in either type, no two rows alike.
void fill_random(std::byte* to, size_t bytes, PlaneType type, Noise& noise) {
    const uint64_t keep = type == PlaneType::f16 ? 0x83FF83FF83FF83FFu : 0x807FFFFF807FFFFFu;
    const uint64_t exponent = type == PlaneType::f16 ? 0x3400340034003400u : 0x3E8000003E800000u;
    for (size_t at = 0; at < bytes; at += 8) {
        const uint64_t word = (noise.next() & keep) | exponent;
        std::memcpy(to + at, &word, std::min<size_t>(8, bytes - at));
    }
}

// Random planes for positions [length, depth): pages are copied from one random block at offsets
// that no two of them share, since making every byte of a long context would take minutes.
Status fill_depth(Runtime& runtime, Sequence& sequence, int32_t depth, Noise& noise) {
    constexpr size_t kBlock = size_t{64} << 20;
    const int32_t add = depth - sequence.memory.length();
    SequenceStore& store = runtime.store();
    Stream& stream = runtime.stream();
    const size_t first_page = static_cast<size_t>(sequence.memory.length() / kPageTokens);
    TERRACE_TRY(store.reserve(stream, sequence.memory, add));
    const KvPlanes& planes = store.planes();
    const PlaneGeometry& g = planes.geometry();
    const size_t largest = kPageTokens * std::max({g.kv_bytes_per_token(), g.raw_bytes_per_token(),
                                                   g.pooled_bytes_per_token()});
    TERRACE_ASSIGN(
        const Buffer block,
        stream.device().allocate(kBlock + largest, MemSpace::host_pinned, Fill::unspecified));
    fill_random(block.device_pointer(), block.bytes(), g.type, noise);
    size_t at = 0;
    const auto fill = [&](std::byte* base, int32_t page, size_t token_bytes) {
        const size_t page_bytes = static_cast<size_t>(kPageTokens) * token_bytes;
        at = (at + 40503 * 16) % kBlock / 16 * 16;
        return stream.copy(base + static_cast<size_t>(page) * page_bytes,
                           block.device_pointer() + at, page_bytes);
    };
    const std::vector<int32_t>& table = sequence.memory.block_table();
    for (size_t i = first_page; i < table.size(); ++i)
        TERRACE_TRY(planes.forget(stream, PageId{table[i]}));
    for (int32_t layer = 0; layer < g.layers; ++layer)
        for (size_t i = first_page; i < table.size(); ++i) {
            TERRACE_TRY(fill(planes.rows(layer).base, table[i], g.kv_bytes_per_token()));
            TERRACE_TRY(fill(planes.index(layer).raw, table[i], g.raw_bytes_per_token()));
            TERRACE_TRY(fill(planes.index(layer).pooled, table[i], g.pooled_bytes_per_token()));
        }
    TERRACE_TRY(stream.synchronize());
    store.commit(sequence.memory, add);
    const std::vector<TokenId> tokens = noise.tokens(add, runtime.config().vocab);
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
    return {};
}

class Bench {
  public:
    Bench(Runtime& runtime, const BenchPlan& plan)
        : runtime_(runtime), plan_(plan), batch_(runtime) {}

    Result<std::vector<BenchRow>> run() {
        std::vector<int32_t> depths = plan_.depths;
        std::sort(depths.begin(), depths.end());
        depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
        TERRACE_TRY(warm_up());
        TERRACE_ASSIGN(Sequence base, batch_.start());
        for (const int32_t depth : depths) {
            TERRACE_TRY(deepen(base, depth));
            for (const int32_t n : plan_.prompts)
                if (n > 0) {
                    TERRACE_TRY(prompt(base, depth, n));
                }
            for (const int32_t n : plan_.generated)
                if (n > 0) {
                    TERRACE_TRY(generate(base, depth, n));
                }
        }
        return std::move(rows_);
    }

  private:
    int32_t vocab() const { return runtime_.config().vocab; }
    int32_t chunk() const { return runtime_.options().prefill_chunk; }

    // First touches of memory and the processor's clock are not what is asked for.
    Status warm_up() {
        TERRACE_ASSIGN(Sequence sequence, batch_.start());
        const auto longest = [](const std::vector<int32_t>& n) {
            return n.empty() ? 0 : *std::max_element(n.begin(), n.end());
        };
        const int32_t rows = std::min(longest(plan_.prompts), chunk());
        if (rows > 0)
            TERRACE_TRY(
                feed(batch_, sequence, noise_.tokens(rows, vocab()), chunk(), LogitRows::last, {}));
        if (longest(plan_.generated) > 0)
            TERRACE_TRY(feed(batch_, sequence, noise_.tokens(1, vocab()), 1, LogitRows::last, {}));
        return {};
    }

    Status deepen(Sequence& base, int32_t depth) {
        const int32_t add = depth - base.memory.length();
        if (add <= 0) return {};
        if (plan_.depth == Depth::filled) return fill_depth(runtime_, base, depth, noise_);
        return feed(batch_, base, noise_.tokens(add, vocab()), chunk(), LogitRows::none, {});
    }

    Result<Sequence> copy_of(const Sequence& base, int32_t depth) {
        return depth == 0 ? batch_.start() : batch_.fork(base);
    }

    BenchRow row(const char* kind, int32_t n, int32_t depth, int32_t batch) const {
        BenchRow r;
        r.test = fmt::format("{}{}{}{}", kind, n, batch > 1 ? fmt::format(" x{}", batch) : "",
                             depth > 0 ? fmt::format(" @ d{}", depth) : "");
        r.depth = depth;
        r.batch = batch;
        r.tokens = int64_t{n} * batch;
        r.how = depth > 0 ? plan_.depth : Depth::computed;
        return r;
    }

    Status prompt(const Sequence& base, int32_t depth, int32_t n) {
        BenchRow r = row("pp", n, depth, 1);
        for (int32_t i = 0; i < plan_.repetitions; ++i) {
            TERRACE_ASSIGN(Sequence sequence, copy_of(base, depth));
            const std::vector<TokenId> tokens = noise_.tokens(n, vocab());
            const Stopwatch watch;
            TERRACE_TRY(feed(batch_, sequence, tokens, chunk(), LogitRows::last, {}));
            r.seconds.push_back(watch.seconds());
        }
        rows_.push_back(std::move(r));
        return {};
    }

    // A step as the engine makes it: where logits would cross a link, only the best one does.
    Status decode_step(std::vector<Sequence>& sequences) {
        if (interrupted()) return Error{Code::cancelled, "interrupted"};
        batch_.clear();
        for (Sequence& sequence : sequences) {
            const TokenId token = noise_.token(vocab());
            TERRACE_TRY(batch_.add(sequence, {&token, 1}, LogitRows::last));
        }
        return runtime_.backend().device->unified() ? batch_.run() : batch_.run_for_candidates(1);
    }

    // The first repetition is not counted: a new shape of step is captured on a GPU.
    Status generate(const Sequence& base, int32_t depth, int32_t n) {
        BenchRow r = row("tg", n, depth, plan_.batch);
        std::optional<SyntheticSelection> selection;
        if (plan_.locality && r.how == Depth::filled) {
            const int32_t steps = std::min(n, 3) + n * plan_.repetitions;
            TERRACE_ASSIGN(selection, SyntheticSelection::create(runtime_, depth, plan_.batch,
                                                                 steps, *plan_.locality));
            if (selection) r.locality = plan_.locality;
        }
        for (int32_t i = -1; i < plan_.repetitions; ++i) {
            std::vector<Sequence> sequences;
            for (int32_t s = 0; s < plan_.batch; ++s) {
                TERRACE_ASSIGN(Sequence sequence, copy_of(base, depth));
                sequences.push_back(std::move(sequence));
            }
            const Stopwatch watch;
            const int32_t steps = i < 0 ? std::min(n, 3) : n;
            for (int32_t t = 0; t < steps; ++t) {
                if (selection) TERRACE_TRY(selection->next());
                TERRACE_TRY(decode_step(sequences));
            }
            if (i >= 0) r.seconds.push_back(watch.seconds());
        }
        rows_.push_back(std::move(r));
        return {};
    }

    Runtime& runtime_;
    const BenchPlan& plan_;
    Batch batch_;
    Noise noise_;
    std::vector<BenchRow> rows_;
};

std::string csv_field(const std::string& text) {
    std::string out = "\"";
    for (const char c : text)
        out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
}

std::string speed(const BenchRow& r) {
    return fmt::format("{:.2f} ± {:.2f}", r.mean(), r.deviation());
}

}  // namespace

double BenchRow::mean() const {
    double sum = 0;
    for (const double s : seconds)
        sum += static_cast<double>(tokens) / s;
    return sum / static_cast<double>(seconds.size());
}

double BenchRow::deviation() const {
    if (seconds.size() < 2) return 0;
    const double m = mean();
    double sum = 0;
    for (const double s : seconds)
        sum += std::pow(static_cast<double>(tokens) / s - m, 2);
    return std::sqrt(sum / static_cast<double>(seconds.size() - 1));
}

Result<std::vector<BenchRow>> run_bench(Runtime& runtime, const BenchPlan& plan) {
    return Bench(runtime, plan).run();
}

std::string print_bench(const BenchTitle& t, const std::vector<BenchRow>& rows,
                        BenchFormat format) {
    const auto test = [](const BenchRow& r) {
        if (r.how != Depth::filled) return r.test;
        return r.test + (r.locality ? fmt::format(" (depth filled, {} of blocks kept)", *r.locality)
                                    : " (depth filled)");
    };
    if (format == BenchFormat::json) {
        JsonOut json;
        json.begin_object().text("model", t.model).integer("bytes", t.bytes);
        json.text("backend", t.backend).integer("threads", t.threads).begin_array("rows");
        for (const BenchRow& r : rows) {
            json.begin_object().text("test", r.test).integer("depth", r.depth);
            json.flag("depth_filled", r.how == Depth::filled).integer("batch", r.batch);
            if (r.locality) json.real("kv_locality", static_cast<double>(*r.locality));
            json.integer("tokens", r.tokens)
                .real("mean", r.mean())
                .real("deviation", r.deviation());
            json.begin_array("seconds");
            for (const double s : r.seconds)
                json.real("", s);
            json.end_array().end_object();
        }
        json.end_array().begin_array("notes");
        for (const std::string& note : t.notes)
            json.text("", note);
        return json.end_array().end_object().take();
    }
    if (format == BenchFormat::csv) {
        std::string out =
            "model,bytes,backend,threads,test,depth_filled,tokens_per_second,deviation,notes\n";
        for (const BenchRow& r : rows)
            out += fmt::format("{},{},{},{},{},{},{:.4f},{:.4f},{}\n", csv_field(t.model), t.bytes,
                               csv_field(t.backend), t.threads,
                               csv_field(r.locality ? test(r) : r.test),
                               r.how == Depth::filled ? 1 : 0, r.mean(), r.deviation(),
                               csv_field(fmt::format("{}", fmt::join(t.notes, "; "))));
        return out;
    }
    const std::string size = human_bytes(t.bytes);
    size_t wide = 4;
    for (const BenchRow& r : rows)
        wide = std::max(wide, test(r).size());
    const size_t name = std::max<size_t>(5, t.model.size());
    const size_t backend = std::max<size_t>(7, t.backend.size());
    std::string out =
        fmt::format("| {:<{}} | {:>10} | {:<{}} | {:>7} | {:<{}} | {:>20} |\n", "model", name,
                    "size", "backend", backend, "threads", "test", wide, "t/s");
    out += fmt::format("| {:-<{}} | {:->9}: | {:-<{}} | {:->6}: | {:-<{}} | {:->19}: |\n", "", name,
                       "", "", backend, "", "", wide, "");
    for (const BenchRow& r : rows)
        out += fmt::format("| {:<{}} | {:>10} | {:<{}} | {:>7} | {:<{}} | {:>20} |\n", t.model,
                           name, size, t.backend, backend, t.threads, test(r), wide, speed(r));
    for (const std::string& note : t.notes)
        out += "\nnote: " + note + "\n";
    return out;
}

}  // namespace terrace
