// From tensor names to bound weights: every tensor of the text model is found, checked against the
// configuration and wrapped in the views that operations take. Tensors stay where the checkpoint
// has them (mapped); the few that cannot be used in place (odd addresses, legacy packed signs) are
// copied and owned here. Immutable after bind(); any thread may read.
//
// Draft-head (mtp.*) and vision (model.visual.*) tensors are recognised and skipped; a tensor that
// nobody knows is listed, never ignored in silence.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "io/model_dir.h"
#include "ops/weights.h"
#include "tier/budget.h"

namespace terrace {

struct GdnWeights {
    LinearWeight qkv, z, a, b, out;
    PlainTensor conv, a_log, dt_bias, norm;
};

struct QsaWeights {
    LinearWeight q, k, v, index_qk, out;
    PlainTensor q_norm, k_norm, index_q_norm, index_k_norm;
};

struct MoeWeights {
    LinearWeight router;
    std::vector<ExpertWeights> experts;
    DevSpan<const ExpertWeights> device_experts;  // the same in device memory (model/placement.h)
    ExpertWeights shared;
    LinearWeight shared_gate;
};

struct PleWeights {
    LinearWeight key, value;
    PlainTensor norm_key, norm_query, norm_conv, conv;
    std::string table_prefix;  // of the n-gram table's tensors
};

struct LayerWeights {
    LayerKind kind = LayerKind::gdn;
    HyperWeights attn_hyper, mlp_hyper;
    GdnWeights gdn;  // kind gdn
    QsaWeights qsa;  // kind qsa
    MoeWeights moe;
    std::optional<PleWeights> ple;
};

// Memory of this process that views point into; from allocate_bytes().
struct FreeBytes {
    void operator()(std::byte* p) const { std::free(p); }
};
using OwnedBytes = std::unique_ptr<std::byte[], FreeBytes>;

// 64-byte aligned; from 2 MiB up aligned to and advised for huge pages: a tile row of a narrow linear
// is 1 KiB, each on a page of its own otherwise. Null when the system refuses.
OwnedBytes allocate_bytes(size_t bytes);

// What a class of weights takes: for inspect, plan and the memory report.
struct WeightClass {
    int64_t tensors = 0;  // linears or plain tensors
    int64_t values = 0;   // weights
    int64_t bytes = 0;    // as stored, scales included
    double bits() const {
        return values ? 8.0 * static_cast<double>(bytes) / static_cast<double>(values) : 0;
    }
};

struct ModelWeights {
    PlainTensor embed;  // [vocab][hidden]
    std::vector<LayerWeights> layers;
    HyperWeights mixer;
    LinearWeight head;

    std::map<std::string, WeightClass> classes;  // "routed experts", "attention", ...
    std::map<std::string, WeightClass> skipped;  // "draft head", "vision", "unknown"
    std::vector<std::string> unknown;            // names, for the report

    std::vector<OwnedBytes> owned;             // copies of what could not be used in place
    std::vector<ChargedBuffer> device_memory;  // of a device with its own space

    int64_t resident_bytes() const;  // all classes but the n-gram table
};

Result<ModelWeights> bind_weights(const ModelDir& dir);

}  // namespace terrace
