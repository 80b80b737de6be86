// The residual streams' elementwise operations: embedding, write, row gather. All are bound by
// memory: 16-byte accesses where the row width and the addresses allow it, single words otherwise.
// SPDX-License-Identifier: MIT
#include "cuda/streams/stream_ops.h"

#include <algorithm>

#include "cuda/util/common.cuh"

namespace terrace::cuda {
namespace {

constexpr int kThreads = 256;

template <int N>
struct alignas(4 * N) Words {
    float v[N];
};

template <int N>
__device__ __forceinline__ Words<N> load_table(const PlainTensor& t, int64_t i) {
    if constexpr (N == 1) {
        return {{load_plain(t, i)}};
    } else {
        if (t.dtype == DType::f32)
            return *reinterpret_cast<const Words<N>*>(static_cast<const float*>(t.data) + i);
        const auto bits =
            *reinterpret_cast<const ushort4*>(static_cast<const uint16_t*>(t.data) + i);
        return {{load_plain(&bits.x, t.dtype, 0), load_plain(&bits.y, t.dtype, 0),
                 load_plain(&bits.z, t.dtype, 0), load_plain(&bits.w, t.dtype, 0)}};
    }
}

// Computes h[r][s][:] = table[token[r]][:]. Grid: (pieces of a row, rows), a thread per N columns.
template <int N>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs a) {
    pdl_launch();
    pdl_wait();
    const int i = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * N;
    if (i >= a.hidden) return;
    for (int r = static_cast<int>(blockIdx.y); r < a.rows; r += static_cast<int>(gridDim.y)) {
        const int64_t token = a.tokens.device_pointer()[r];
        const Words<N> w = load_table<N>(a.table, token * a.hidden + i);
        for (int s = 0; s < a.streams; ++s)
            *reinterpret_cast<Words<N>*>(a.h.device_pointer() +
                                         (int64_t{r} * a.streams + s) * a.hidden + i) = w;
    }
}

// Computes h[r][s][:] += inj[r][s] * y[r][:]. Grid: (pieces of a row, streams, rows).
// Traffic: h in and out, y from the cache after the first stream.
template <int N>
__global__ void __launch_bounds__(kThreads) write_kernel(HyperWriteArgs a) {
    pdl_launch();
    pdl_wait();
    const int i = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * N;
    const int s = static_cast<int>(blockIdx.y);
    if (i >= a.hidden) return;
    for (int r = static_cast<int>(blockIdx.z); r < a.rows; r += static_cast<int>(gridDim.z)) {
        const int64_t rs = int64_t{r} * a.streams + s;
        const float inj = a.inj.device_pointer()[rs];
        const Words<N> y =
            *reinterpret_cast<const Words<N>*>(a.y.device_pointer() + int64_t{r} * a.hidden + i);
        auto* at = reinterpret_cast<Words<N>*>(a.h.device_pointer() + rs * a.hidden + i);
        Words<N> h = *at;
#pragma unroll
        for (int j = 0; j < N; ++j)
            h.v[j] = fmaf(inj, y.v[j], h.v[j]);
        *at = h;
    }
}

// Computes out[i][:] = in[rows[i]][:]. Grid: (pieces of a row, rows).
template <int N>
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherRowsArgs a) {
    pdl_launch();
    pdl_wait();
    const int c = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * N;
    if (c >= a.width) return;
    for (int i = static_cast<int>(blockIdx.y); i < a.n; i += static_cast<int>(gridDim.y)) {
        const int64_t from = a.rows.device_pointer()[i];
        *reinterpret_cast<Words<N>*>(a.out.device_pointer() + int64_t{i} * a.width + c) =
            *reinterpret_cast<const Words<N>*>(a.in.device_pointer() + from * a.width + c);
    }
}

bool by_four(int width, std::initializer_list<const void*> addresses) {
    return width % 4 == 0 && std::all_of(addresses.begin(), addresses.end(), [](const void* p) {
               return reinterpret_cast<uintptr_t>(p) % 16 == 0;
           });
}
unsigned pieces(int width, int n) {
    return static_cast<unsigned>((width + kThreads * n - 1) / (kThreads * n));
}
unsigned capped(int rows) {
    return static_cast<unsigned>(std::min(rows, 65535));
}

}  // namespace

Status embed(const Launch& l, const EmbedArgs& a) {
    if (a.rows == 0) return {};
    const bool four = by_four(a.hidden, {a.table.data, a.h.device_pointer()});
    const dim3 grid(pieces(a.hidden, four ? 4 : 1), capped(a.rows));
    return start(l, "embed", four ? embed_kernel<4> : embed_kernel<1>, grid, kThreads, 0,
                 Start::overlapping, a);
}

Status hyper_write(const Launch& l, const HyperWriteArgs& a) {
    if (a.rows == 0) return {};
    const bool four = by_four(a.hidden, {a.h.device_pointer(), a.y.device_pointer()});
    const dim3 grid(pieces(a.hidden, four ? 4 : 1), static_cast<unsigned>(a.streams),
                    capped(a.rows));
    return start(l, "hyper_write", four ? write_kernel<4> : write_kernel<1>, grid, kThreads, 0,
                 Start::overlapping, a);
}

Status gather_rows(const Launch& l, const GatherRowsArgs& a) {
    if (a.n == 0) return {};
    const bool four = by_four(a.width, {a.in.device_pointer(), a.out.device_pointer()});
    const dim3 grid(pieces(a.width, four ? 4 : 1), capped(a.n));
    return start(l, "gather_rows", four ? gather_kernel<4> : gather_kernel<1>, grid, kThreads, 0,
                 Start::overlapping, a);
}

}  // namespace terrace::cuda
