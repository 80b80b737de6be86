// qsa_prepare and qsa_pool: per-head norm and rotary embedding, and what a step adds to the planes.
// SPDX-License-Identifier: MIT
#include "cuda/attn/attn_ops.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

// Rotary frequencies a lane can keep: pairs lane, lane + 32, ...; more are computed when needed.
constexpr int kKeptPairs = 2;
constexpr int kPrepareWarps = 8;

// theta^(-2i/dims) in double. In fp32 the angle at position 1e6 would be off by 0.06.
__device__ __forceinline__ double inverse_frequency(const Rope& rope, double log2_theta, int i) {
    return exp2(-2.0 * i / rope.dims * log2_theta);
}

// Cosine and sine of pos * frequency: the product and its reduction to [-pi, pi] in double.
__device__ __forceinline__ float2 cos_sin(int pos, double frequency) {
    constexpr double kTurn = 6.283185307179586476925;
    const double angle = pos * frequency;
    const auto r = static_cast<float>(angle - kTurn * rint(angle / kTurn));
    float2 cs;
    sincosf(r, &cs.y, &cs.x);
    return cs;
}

// A warp's rotary angles of one position.
class Angles {
  public:
    __device__ __forceinline__ explicit Angles(const Rope& rope)
        : rope_(rope), log2_theta_(log2(static_cast<double>(rope.theta))) {
        const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
        for (int k = 0; k < kKeptPairs; ++k)
            frequency_[k] = inverse_frequency(rope, log2_theta_, lane + 32 * k);
    }
    __device__ __forceinline__ void set_position(int pos) {
        pos_ = pos;
#pragma unroll
        for (int k = 0; k < kKeptPairs; ++k)
            kept_[k] = cos_sin(pos, frequency_[k]);
    }
    // Pair lane + 32 * k.
    __device__ __forceinline__ float2 pair(int k) const {
        float2 cs = kept_[0];
        if (k == 1) cs = kept_[1];
        if (k >= kKeptPairs) {
            const int lane = static_cast<int>(threadIdx.x) & 31;
            cs = cos_sin(pos_, inverse_frequency(rope_, log2_theta_, lane + 32 * k));
        }
        return cs;
    }

  private:
    Rope rope_;
    double log2_theta_;
    double frequency_[kKeptPairs];
    float2 kept_[kKeptPairs];
    int pos_ = 0;
};

// One warp: store(i, rope(zero-centred norm of x)[i]) for all n. load(i) gives x[i].
template <class Load, class Store>
__device__ __forceinline__ void norm_rope(Load load, int n, const PlainTensor& w, float eps,
                                          const Angles& angles, int dims, Store store) {
    const int lane = static_cast<int>(threadIdx.x) & 31, half = dims / 2;
    float sum = 0;
    for (int i = lane; i < n; i += 32) {
        const float x = load(i);
        sum += x * x;
    }
    const float inv = rsqrtf(warp_sum(sum) / static_cast<float>(n) + eps);
    const auto y = [&](int i) { return load(i) * inv * (1.0f + load_plain(w, i)); };
    for (int k = 0; lane + 32 * k < half; ++k) {
        const int i = lane + 32 * k;
        const float a = y(i), b = y(i + half);
        const float2 cs = angles.pair(k);
        store(i, a * cs.x - b * cs.y);
        store(i + half, b * cs.x + a * cs.y);
    }
    for (int i = dims + lane; i < n; i += 32)
        store(i, y(i));
}

// Computes  q, k, iq: zero-centred norm and rope per head; K, V and the raw index key of each row
//           go to the planes.
// Grid and block  (rows x chunks), 8 warps; a warp takes `per_warp` of the row's vectors: query
//           heads, K heads, V heads, index heads, the raw key.
// Traffic   each input once from memory (the second look is in L1), each output once.
// Numerics  fp32; angles are reduced in double.
__global__ void __launch_bounds__(32 * kPrepareWarps)
    prepare_kernel(const QsaPrepareArgs a, int chunks, int per_warp) {
    pdl_launch();
    // Positions and pages are copied before the step's first kernel, so they may be read at once.
    Angles angles(a.rope);
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int row = static_cast<int>(blockIdx.x) / chunks;
    const int chunk = static_cast<int>(blockIdx.x) % chunks;
    const int hd = a.kv.head_dim, id = a.index.dim, kvh = a.kv.kv_heads, bt = a.kv.block_tokens;
    const int vectors = a.heads + 2 * kvh + a.index_heads + 1;
    const RowPlace at = place_row(a.step, row);
    const int page = physical_page(a.step, at.seq, at.pos), offset = at.pos % kPageTokens;
    angles.set_position(at.pos);
    pdl_wait();
    const int first = (chunk * kPrepareWarps + warp) * per_warp;
    for (int v = first; v < min(first + per_warp, vectors); ++v) {
        int h = v;
        if (h < a.heads) {
            const float* x = a.qg.device_pointer() + (int64_t{row} * a.heads + h) * 2 * hd;
            float* q = a.q.device_pointer() + (int64_t{row} * a.heads + h) * hd;
            norm_rope([&](int i) { return x[i]; }, hd, a.q_norm, a.eps, angles, a.rope.dims,
                      [&](int i, float y) { q[i] = y; });
            continue;
        }
        h -= a.heads;
        if (h < 2 * kvh) {
            const bool is_v = h >= kvh;
            if (is_v) h -= kvh;
            const float* x = (is_v ? a.v : a.k).device_pointer() + (int64_t{row} * kvh + h) * hd;
            std::byte* to = a.kv.block(page, offset / bt) + (is_v ? a.kv.half_extent_bytes() : 0) +
                            static_cast<size_t>((offset % bt) * kvh + h) * static_cast<size_t>(hd) *
                                plane_bytes(a.kv.type);
            if (is_v)
                for (int i = lane; i < hd; i += 32)
                    store_plane(to, a.kv.type, i, x[i]);
            else
                norm_rope([&](int i) { return x[i]; }, hd, a.k_norm, a.eps, angles, a.rope.dims,
                          [&](int i, float y) { store_plane(to, a.kv.type, i, y); });
            continue;
        }
        h -= 2 * kvh;
        const float* x = a.ix.device_pointer() + (int64_t{row} * (a.index_heads + 1) + h) * id;
        if (h < a.index_heads) {
            float* iq = a.iq.device_pointer() + (int64_t{row} * a.index_heads + h) * id;
            norm_rope([&](int i) { return x[i]; }, id, a.index_q_norm, a.eps, angles, a.rope.dims,
                      [&](int i, float y) { iq[i] = y; });
        } else {
            const int64_t raw0 = (int64_t{page} * kPageTokens + offset) * id;
            for (int i = lane; i < id; i += 32)
                store_plane(a.index.raw, a.index.type, raw0 + i, x[i]);
        }
    }
}

constexpr int kPoolWarps = 4;

// Computes  pooled rows of the blocks that the step touched and completed: mean of the raw rows,
//           zero-centred norm, rope at the block's first position.
// Grid and block  one warp per row of the step. Row i of its sequence with i % block_tokens == 0
//           takes block floor(pos0 / block_tokens) + i / block_tokens, the others nothing.
// Traffic   raw rows in, pooled rows out; no intermediate leaves the warp.
// Numerics  fp32; the mean is added oldest first.
__global__ void __launch_bounds__(32 * kPoolWarps) pool_kernel(const QsaPoolArgs a) {
    pdl_launch();
    Angles angles(a.rope);
    const int row =
        static_cast<int>(blockIdx.x) * kPoolWarps + (static_cast<int>(threadIdx.x) >> 5);
    const int last = a.step.n_rows - 1;
    const SeqRows seq =
        a.step.seqs.device_pointer()[a.step.row_seq.device_pointer()[min(row, last)]];
    const int bt = a.index.block_tokens, id = a.index.dim, i = row - seq.row0;
    const int block = seq.pos0 / bt + i / bt, pos = block * bt;
    angles.set_position(pos);
    pdl_wait();
    if (row > last || i % bt != 0 || pos + bt > seq.pos0 + seq.n_rows) return;
    const int64_t page = physical_page(a.step, seq, pos);
    const int64_t raw0 = (page * kPageTokens + pos % kPageTokens) * id;
    const int64_t to = (page * (kPageTokens / bt) + pos % kPageTokens / bt) * id;
    const float share = 1.0f / static_cast<float>(bt);
    norm_rope(
        [&](int e) {
            float sum = 0;
            for (int t = 0; t < bt; ++t)
                sum += load_plane(a.index.raw, a.index.type, raw0 + int64_t{t} * id + e);
            return sum * share;
        },
        id, a.norm, a.eps, angles, a.rope.dims,
        [&](int e, float y) { store_plane(a.index.pooled, a.index.type, to + e, y); });
}

}  // namespace

Status qsa_prepare(const Launch& l, const QsaPrepareArgs& a) {
    if (a.step.n_rows == 0) return {};
    const int vectors = a.heads + 2 * a.kv.kv_heads + a.index_heads + 1;
    // Few rows: a warp per vector, for the shortest way. Many: angles are shared by four vectors.
    const int per_warp = a.step.n_rows <= 64 ? 1 : 4;
    const int chunks = (vectors + kPrepareWarps * per_warp - 1) / (kPrepareWarps * per_warp);
    return start(l, "qsa_prepare", prepare_kernel,
                 dim3(static_cast<unsigned>(a.step.n_rows) * static_cast<unsigned>(chunks)),
                 dim3(32 * kPrepareWarps), 0, Start::overlapping, a, chunks, per_warp);
}

Status qsa_pool(const Launch& l, const QsaPoolArgs& a) {
    if (a.step.n_rows == 0) return {};
    return start(l, "qsa_pool", pool_kernel,
                 dim3(static_cast<unsigned>((a.step.n_rows + kPoolWarps - 1) / kPoolWarps)),
                 dim3(32 * kPoolWarps), 0, Start::overlapping, a);
}

}  // namespace terrace::cuda
