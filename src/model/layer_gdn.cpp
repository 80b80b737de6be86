// Gated delta net layer (model spec 3.6): projections, convolution and delta rule, output
// projection.
// SPDX-License-Identifier: MIT
#include "model/buffers.h"

namespace terrace {

Status Model::gdn_layer(Stream& stream, const SequenceStore& store, const LayerWeights& layer,
                        int32_t index) {
    StepBuffers& b = *b_;
    const GdnWeights& w = layer.gdn;
    TERRACE_TRY(linear(stream, b.x, {{&w.qkv, b.wide}, {&w.z, b.z}, {&w.a, b.a}, {&w.b, b.b}}));
    GdnArgs args;
    args.step = step_;
    args.qkv = b.wide;
    args.z = b.z;
    args.a = b.a;
    args.b = b.b;
    args.conv = w.conv;
    args.a_log = w.a_log;
    args.dt_bias = w.dt_bias;
    args.norm = w.norm;
    args.state = store.states().gdn(index);
    args.conv_state = store.states().conv(index);
    args.out = b.mixed;
    args.k_heads = config_.gdn_k_heads;
    args.v_heads = config_.gdn_v_heads;
    args.k_dim = config_.gdn_k_dim;
    args.v_dim = config_.gdn_v_dim;
    args.kernel = config_.conv_kernel;
    args.eps = static_cast<float>(config_.rms_eps);
    TERRACE_TRY(ops_->gdn(stream, args));
    return linear(stream, b.mixed, {{&w.out, b.y}});
}

}  // namespace terrace
