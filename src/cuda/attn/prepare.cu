// qsa_prepare and qsa_pool: per-head norm and rotary embedding, and what a step adds to the planes.
// SPDX-License-Identifier: MIT
#include <cmath>

#include "cuda/attn/attn_ops.h"
#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kPrepareWarps = 8;
constexpr int kPoolWarps = 4;
constexpr int kLanePairs = 32;  // rotary pairs whose two elements a lane of a short vector has
constexpr int kShort = 8;       // elements a lane has of a short vector: up to 256 in all

// Turns per token, theta^(-2i/dims) / 2 pi, of the first pairs, made on the host; in double because
// in fp32 the angle at position 1e6 would be off by 0.06.
struct Frequencies {
    double of[kLanePairs];
    double log2_theta;
};
constexpr double kPerTurn = 1 / 6.283185307179586476925;
Frequencies frequencies(const Rope& rope) {
    Frequencies f;
    for (int i = 0; i < kLanePairs; ++i)
        f.of[i] = rope.dims > 0
                      ? std::pow(static_cast<double>(rope.theta), -2.0 * i / rope.dims) * kPerTurn
                      : 0.0;
    f.log2_theta = std::log2(static_cast<double>(rope.theta));
    return f;
}

// Cosine and sine: the angle and its reduction to half a turn in double.
__device__ __forceinline__ float2 cos_sin(int pos, double turns_per_token) {
    const double turns = pos * turns_per_token;
    float2 cs;
    sincospif(static_cast<float>(2 * (turns - rint(turns))), &cs.y, &cs.x);
    return cs;
}

// What a warp does to a vector: zero-centred norm, rope at one position, store.
struct Head {
    int n;
    const void* norm;  // null: stored as it is
    DType norm_dtype;
    std::byte* to;
    PlaneType type;
    std::byte* also[2] = {};  // stored there too unless null; known after ready()
    __device__ __forceinline__ void put(int i, float v) const {
        store_plane(to, type, i, v);
#pragma unroll
        for (std::byte* copy : also)
            if (copy) store_plane(copy, type, i, v);
    }
};
struct Place {
    Rope rope;
    int pos;
    float2 own;  // cosine and sine of pair `lane`
};
__device__ __forceinline__ Place place_of(const Rope& rope, const Frequencies& f, int pos) {
    return {rope, pos, cos_sin(pos, f.of[static_cast<int>(threadIdx.x) & 31])};
}

// Vectors of up to 256 whose rotary pairs are (lane, lane + 32): all in registers.
__device__ __forceinline__ bool is_short(const Head& h, const Rope& rope) {
    return h.n <= 32 * kShort && rope.dims == 2 * kLanePairs && h.n >= rope.dims;
}
// Any vector. Norm weights never change and are read at once; then ready() is called, and then
// load(i), which gives element i and may be called several times.
template <class Ready, class Load>
__device__ __forceinline__ void store_head(Ready ready, Load load, const Head& h, const Place& at,
                                           const Frequencies& f, float eps) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    if (is_short(h, at.rope)) {
        float x[kShort], w[kShort];
#pragma unroll
        for (int k = 0; k < kShort; ++k) {
            const int i = lane + 32 * k;
            w[k] = h.norm && i < h.n ? 1.0f + load_plain(h.norm, h.norm_dtype, i) : 1.0f;
        }
        ready();
#pragma unroll
        for (int k = 0; k < kShort; ++k)
            x[k] = lane + 32 * k < h.n ? load(lane + 32 * k) : 0.0f;
        if (h.norm) {
            float sum = 0;
#pragma unroll
            for (int k = 0; k < kShort; ++k)
                sum += x[k] * x[k];
            const float inv = rsqrtf(warp_sum(sum) / static_cast<float>(h.n) + eps);
#pragma unroll
            for (int k = 0; k < kShort; ++k)
                x[k] *= inv * w[k];
            const float first = x[0], second = x[1];
            x[0] = first * at.own.x - second * at.own.y;
            x[1] = second * at.own.x + first * at.own.y;
        }
#pragma unroll
        for (int k = 0; k < kShort; ++k)
            if (lane + 32 * k < h.n) h.put(lane + 32 * k, x[k]);
        return;
    }
    ready();
    if (!h.norm) {
        for (int i = lane; i < h.n; i += 32)
            h.put(i, load(i));
        return;
    }
    float sum = 0;
    for (int i = lane; i < h.n; i += 32)
        sum += load(i) * load(i);
    const float inv = rsqrtf(warp_sum(sum) / static_cast<float>(h.n) + eps);
    const auto y = [&](int i) {
        return load(i) * inv * (1.0f + load_plain(h.norm, h.norm_dtype, i));
    };
    const int half = at.rope.dims / 2;
    for (int i = lane; i < half; i += 32) {
        const float2 cs =
            i < kLanePairs
                ? at.own
                : cos_sin(at.pos, exp2(-2.0 * i / at.rope.dims * f.log2_theta) * kPerTurn);
        const float first = y(i), second = y(i + half);
        h.put(i, first * cs.x - second * cs.y);
        h.put(i + half, second * cs.x + first * cs.y);
    }
    for (int i = 2 * half + lane; i < h.n; i += 32)
        h.put(i, y(i));
}

// Computes  q, k, iq: zero-centred norm and rope per head; K, V and the raw index key of each row
//           go to the planes.
// Grid and block  (rows x chunks), 8 warps; a warp takes `per_warp` of the row's vectors: query
//           heads, K heads, V heads, index heads, the raw key.
// Traffic   each input once, each output once.
// Numerics  fp32; angles are reduced in double.
__global__ void __launch_bounds__(32 * kPrepareWarps)
    prepare_kernel(const QsaPrepareArgs a, const __grid_constant__ Frequencies f, int chunks,
                   int per_warp) {
    pdl_launch();
    // Positions and pages are copied before the step's first kernel, so they may be read at once.
    const int warp = static_cast<int>(threadIdx.x) >> 5;
    const int row = static_cast<int>(blockIdx.x) / chunks;
    const int chunk = static_cast<int>(blockIdx.x) % chunks;
    const int hd = a.kv.head_dim, id = a.index.dim, kvh = a.kv.kv_heads, bt = a.kv.block_tokens;
    const RowPlace row_at = place_row(a.step, row);
    const int page = physical_page(a.step, row_at.seq, row_at.pos);
    const int offset = row_at.pos % kPageTokens;
    const Place at = place_of(a.rope, f, row_at.pos);
    const int first = (chunk * kPrepareWarps + warp) * per_warp;
    for (int v = first; v < first + per_warp; ++v) {
        int h = v;
        const float* x;
        Head head;
        head.norm = nullptr;
        head.norm_dtype = DType::f32;
        head.type = PlaneType::f32;
        bool to_planes = false;
        size_t in_block = 0;
        if (h < a.heads) {
            const int64_t n = int64_t{row} * a.heads + h;
            x = a.qg.device_pointer() + n * 2 * hd;
            head.n = hd;
            head.norm = a.q_norm.data;
            head.norm_dtype = a.q_norm.dtype;
            head.to = reinterpret_cast<std::byte*>(a.q.device_pointer() + n * hd);
        } else if ((h -= a.heads) < 2 * kvh) {
            const bool is_v = h >= kvh;
            if (is_v) h -= kvh;
            x = (is_v ? a.v : a.k).device_pointer() + (int64_t{row} * kvh + h) * hd;
            head.n = hd;
            head.norm = is_v ? nullptr : a.k_norm.data;
            head.norm_dtype = a.k_norm.dtype;
            in_block = (is_v ? a.kv.half_extent_bytes() : 0) +
                       static_cast<size_t>((offset % bt) * kvh + h) * static_cast<size_t>(hd) *
                           plane_bytes(a.kv.type);
            head.to = a.kv.home(page, offset / bt) + in_block;
            head.type = a.kv.type;
            to_planes = true;
        } else if ((h -= 2 * kvh) <= a.index_heads) {
            x = a.ix.device_pointer() + (int64_t{row} * (a.index_heads + 1) + h) * id;
            head.n = id;
            if (h < a.index_heads) {
                head.norm = a.index_q_norm.data;
                head.norm_dtype = a.index_q_norm.dtype;
                head.to = reinterpret_cast<std::byte*>(a.iq.device_pointer() +
                                                       (int64_t{row} * a.index_heads + h) * id);
            } else {
                head.to = a.index.raw + (size_t{kPageTokens} * static_cast<size_t>(page) +
                                         static_cast<size_t>(offset)) *
                                            static_cast<size_t>(id) * plane_bytes(a.index.type);
                head.type = a.index.type;
            }
        } else {
            if (v == first) pdl_wait();
            return;
        }
        store_head(
            [&] {
                if (v == first) pdl_wait();
                if (!to_planes) return;
                std::byte* const copies[] = {a.kv.mirrored(page, offset / bt),
                                             a.staged.mirrored(page, offset / bt)};
                for (int i = 0; i < 2; ++i)
                    head.also[i] = copies[i] ? copies[i] + in_block : nullptr;
            },
            [&](int i) { return x[i]; }, head, at, f, a.eps);
    }
}

// Computes  pooled rows of the blocks that the step touched and completed: mean of the raw rows,
//           zero-centred norm, rope at the block's first position.
// Grid and block  one warp per row of the step. Row i of its sequence with i % block_tokens == 0
//           takes block floor(pos0 / block_tokens) + i / block_tokens, the others nothing.
// Traffic   raw rows in, pooled rows out; no intermediate leaves the warp.
// Numerics  fp32; the mean is added oldest first.
__global__ void __launch_bounds__(32 * kPoolWarps)
    pool_kernel(const QsaPoolArgs a, const __grid_constant__ Frequencies f) {
    pdl_launch();
    const int row =
        static_cast<int>(blockIdx.x) * kPoolWarps + (static_cast<int>(threadIdx.x) >> 5);
    const int last = a.step.n_rows - 1;
    const SeqRows seq =
        a.step.seqs.device_pointer()[a.step.row_seq.device_pointer()[min(row, last)]];
    const int bt = a.index.block_tokens, id = a.index.dim, i = row - seq.row0;
    const int block = seq.pos0 / bt + i / bt, pos = block * bt;
    const bool mine = row <= last && i % bt == 0 && pos + bt <= seq.pos0 + seq.n_rows;
    const int64_t page = mine ? physical_page(a.step, seq, pos) : 0;
    const Place at = place_of(a.rope, f, pos);
    if (!mine) {
        pdl_wait();
        return;
    }
    const int64_t raw0 = (page * kPageTokens + pos % kPageTokens) * id;
    const int64_t to = (page * (kPageTokens / bt) + pos % kPageTokens / bt) * id;
    const float share = 1.0f / static_cast<float>(bt);
    store_head(
        [] { pdl_wait(); },
        [&](int e) {
            float sum = 0;
#pragma unroll 4
            for (int t = 0; t < bt; ++t)
                sum += load_plane(a.index.raw, a.index.type, raw0 + int64_t{t} * id + e);
            return sum * share;
        },
        Head{id, a.norm.data, a.norm.dtype,
             a.index.pooled + static_cast<size_t>(to) * plane_bytes(a.index.type), a.index.type},
        at, f, a.eps);
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
                 dim3(32 * kPrepareWarps), 0, Start::overlapping, a, frequencies(a.rope), chunks,
                 per_warp);
}

Status qsa_pool(const Launch& l, const QsaPoolArgs& a) {
    if (a.step.n_rows == 0) return {};
    return start(l, "qsa_pool", pool_kernel,
                 dim3(static_cast<unsigned>((a.step.n_rows + kPoolWarps - 1) / kPoolWarps)),
                 dim3(32 * kPoolWarps), 0, Start::overlapping, a, frequencies(a.rope));
}

}  // namespace terrace::cuda
