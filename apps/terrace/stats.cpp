// SPDX-License-Identifier: MIT
#include "stats.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "json_out.h"

namespace terrace {
namespace {

MirrorCounters total(const std::vector<LayerCounters>& layers) {
    MirrorCounters sum;
    for (const LayerCounters& l : layers) {
        sum.calls += l.counters.calls;
        sum.rows += l.counters.rows;
        sum.entries += l.counters.entries;
        sum.copied += l.counters.copied;
        sum.at_home += l.counters.at_home;
    }
    return sum;
}

double link_mib(const MirrorCounters& c, uint64_t block_bytes) {
    return static_cast<double>((c.copied + c.at_home) * block_bytes) / (1 << 20);
}

std::string line(const std::string& layer, const MirrorCounters& c, uint64_t block_bytes) {
    const double share =
        c.entries > 0 ? 100.0 * static_cast<double>(c.hits()) / static_cast<double>(c.entries) : 0;
    return fmt::format("{:>8} {:>10} {:>10} {:>12} {:>12} {:>7.2f} {:>11} {:>11} {:>12.2f}\n",
                       layer, c.calls, c.rows, c.entries, c.hits(), share, c.copied, c.at_home,
                       link_mib(c, block_bytes));
}

void fields(JsonOut& json, const MirrorCounters& c, uint64_t block_bytes) {
    json.integer("calls", c.calls).integer("rows", c.rows).integer("blocks", c.entries);
    json.integer("hits", c.hits()).integer("copied", c.copied).integer("at_home", c.at_home);
    json.real("link_mib", link_mib(c, block_bytes));
}

Status write_text(const std::string& file, const std::string& text) {
    std::FILE* f = std::fopen(file.c_str(), "w");
    const bool written = f && std::fwrite(text.data(), 1, text.size(), f) == text.size();
    const bool closed = f && std::fclose(f) == 0;
    if (written && closed) return {};
    return Error{Code::io, fmt::format("{}: {}", file, std::strerror(errno))};
}

Status report(const Runtime& runtime, const CommonOptions& o) {
    TERRACE_ASSIGN(const std::vector<MirrorCounters> counters, runtime.mirror_counters());
    std::vector<LayerCounters> layers;
    const ModelConfig& c = runtime.config();
    for (int32_t i = 0; i < c.n_layers && layers.size() < counters.size(); ++i)
        if (c.layer_kinds[static_cast<size_t>(i)] == LayerKind::qsa)
            layers.push_back({i, counters[layers.size()]});
    const PlaneGeometry planes = plane_geometry(c, runtime.options());
    const uint64_t block_bytes =
        static_cast<uint64_t>(planes.block_tokens) * planes.kv_bytes_per_token();
    if (o.stats)
        fmt::print(stderr, "{}",
                   layers.empty() ? "K/V mirror: none\n" : print_mirror_stats(layers, block_bytes));
    const KvTraffic staged = runtime.kv_traffic();
    if (o.stats && staged.staged_steps > 0)
        fmt::print(stderr, "K/V arena: {} steps staged {} pages of a layer, {} by link\n",
                   staged.staged_steps, staged.staged_pages,
                   human_bytes(static_cast<uint64_t>(staged.staged_bytes)));
    if (o.stats_json.empty()) return {};
    return write_text(o.stats_json, mirror_stats_json(layers, block_bytes));
}

}  // namespace

std::string print_mirror_stats(const std::vector<LayerCounters>& layers, uint64_t block_bytes) {
    std::string out = fmt::format(
        "K/V mirror of {} blocks; decoded rows\n{:>8} {:>10} {:>10} {:>12} {:>12} "
        "{:>7} {:>11} {:>11} {:>12}\n",
        human_bytes(block_bytes), "layer", "calls", "rows", "blocks", "hits", "%", "copied",
        "at home", "MiB by link");
    for (const LayerCounters& l : layers)
        out += line(std::to_string(l.layer), l.counters, block_bytes);
    return out + line("total", total(layers), block_bytes);
}

std::string mirror_stats_json(const std::vector<LayerCounters>& layers, uint64_t block_bytes) {
    JsonOut json;
    json.begin_object().integer("block_bytes", block_bytes).begin_array("layers");
    for (const LayerCounters& l : layers) {
        json.begin_object().integer("layer", l.layer);
        fields(json, l.counters, block_bytes);
        json.end_object();
    }
    json.end_array().begin_object("total");
    fields(json, total(layers), block_bytes);
    return json.end_object().end_object().take();
}

void report_stats(const Runtime& runtime, const CommonOptions& options) {
    if (!options.stats && options.stats_json.empty()) return;
    if (const Status s = report(runtime, options); !s)
        log_warn(fmt::format("--stats: {}", s.error().message));
}

}  // namespace terrace
