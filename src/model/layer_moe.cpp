// Mixture of experts (model spec 3.8): router, top-k, experts, shared expert.
// SPDX-License-Identifier: MIT
#include "model/buffers.h"

namespace terrace {

Status Model::moe_layer(Stream& stream, const LayerWeights& layer, LayerIx index) {
    StepBuffers& b = *b_;
    const MoeWeights& w = layer.moe;
    RouteArgs route;
    route.x = b.x;
    route.router = &w.router;
    route.logits = b.router;
    route.ids = b.ids;
    route.weights = b.id_weights;
    route.rows = step_.n_rows;
    route.experts = config_.n_experts;
    route.k = config_.n_experts_per_token;
    route.runs = step_.runs;
    route.renormalise = config_.norm_topk ? Renormalise::yes : Renormalise::no;
    TERRACE_TRY(ops_->route(stream, route));
    if (observer_) observer_->routed(index, step_.n_rows, route.k, b.ids);

    MoeArgs moe;
    moe.x = b.x;
    moe.ids = b.ids;
    moe.weights = b.id_weights;
    moe.table =
        ExpertTable{w.experts.data(), static_cast<int32_t>(w.experts.size()), w.device_experts};
    moe.shared = &w.shared;
    moe.shared_gate = &w.shared_gate;
    moe.y = b.y;
    moe.rows = step_.n_rows;
    moe.hidden = config_.hidden;
    moe.width = config_.moe_width;
    moe.shared_width = config_.shared_width;
    moe.k = config_.n_experts_per_token;
    moe.runs = step_.runs;
    return ops_->moe(stream, moe);
}

}  // namespace terrace
