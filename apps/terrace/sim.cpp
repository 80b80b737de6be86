// terrace sim: replays recorded block selections (--kv-trace) against mirrors of several sizes and
// policies. Needs no model.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "common.h"
#include "json_out.h"
#include "tier/kv_sim.h"
#include "tier/kv_trace.h"

namespace terrace {
namespace {

struct Options {
    CommonOptions common;
    std::string kv;
    std::vector<int32_t> slots{512, 1024, 2048, 4096, 8192, 16384, 32768};
    bool json = false;
};

// Records of one layer and step are one call.
std::vector<MirrorCalls> calls_of(const KvTrace& trace) {
    std::vector<MirrorCalls> layers(trace.layers);
    std::vector<uint32_t> last(trace.layers, 0);
    for (const KvTraceRecord& r : trace.records) {
        MirrorCalls& calls = layers[r.layer];
        if (calls.empty() || last[r.layer] != r.step) calls.emplace_back();
        last[r.layer] = r.step;
        calls.back().insert(calls.back().end(), r.blocks.begin(), r.blocks.end());
    }
    return layers;
}

Result<int> run(const Options& o) {
    TERRACE_ASSIGN(const KvTrace trace, read_kv_trace(o.kv));
    const std::vector<MirrorCalls> layers = calls_of(trace);
    int64_t asked = 0;
    size_t calls = 0;
    for (const MirrorCalls& layer : layers) {
        calls += layer.size();
        for (const auto& call : layer)
            asked += static_cast<int64_t>(call.size());
    }
    if (asked == 0)
        return Error{Code::invalid_argument,
                     fmt::format("{}: holds no selections: decoded rows select once there are more "
                                 "blocks than a row may attend to",
                                 o.kv)};
    JsonOut json;
    json.begin_object().text("trace", o.kv).integer("layers", trace.layers);
    json.integer("rows", trace.records.size()).integer("calls", calls).integer("blocks", asked);
    json.begin_array("sizes");
    std::string table = fmt::format(
        "{}: {} layers, {} rows in {} calls, {} blocks asked for\nshare of them that a mirror "
        "would "
        "have had\n\n{:>14}",
        o.kv, trace.layers, trace.records.size(), calls, asked, "blocks a layer");
    for (const MirrorPolicy policy : kMirrorPolicies)
        table += fmt::format(" {:>9}", to_string(policy));
    table += "\n";
    for (const int32_t slots : o.slots) {
        table += fmt::format("{:>14}", slots);
        json.begin_object().integer("slots", slots);
        for (const MirrorPolicy policy : kMirrorPolicies) {
            int64_t hits = 0;
            for (const MirrorCalls& layer : layers)
                hits += simulated_hits(policy, layer, slots);
            const double share = static_cast<double>(hits) / static_cast<double>(asked);
            table += fmt::format(" {:>8.2f}%", 100 * share);
            json.real(to_string(policy), share);
        }
        table += "\n";
        json.end_object();
    }
    out(o.json ? json.end_array().end_object().take() : table);
    return 0;
}

}  // namespace

Command sim_command() {
    auto o = std::make_shared<Options>();
    Command c{"sim",
              "Replay recorded block selections against mirrors",
              "  terrace generate --model models/demo --prompt-file p.txt --kv-trace t.kv\n"
              "  terrace sim --kv t.kv --slots 512,2048,8192\n",
              {},
              {}};
    c.flags.heading("Simulation");
    c.flags.text("kv", "FILE", o->kv, "Selections that --kv-trace recorded").missing =
        "give a file that --kv-trace wrote";
    c.flags.integers("slots", o->slots, 1, 1 << 24, "Blocks a layer of the mirrors");
    c.flags.toggle("json", o->json, "Print a JSON document");
    add_output_flags(c.flags, o->common);
    c.run = [o] { return run(*o); };
    return c;
}

}  // namespace terrace
