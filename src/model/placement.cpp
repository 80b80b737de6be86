// SPDX-License-Identifier: MIT
#include "model/placement.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace terrace {
namespace {

constexpr size_t kWindow = size_t{32} << 20;

size_t padded(size_t bytes) {
    return (bytes + kWeightAlign - 1) / kWeightAlign * kWeightAlign;
}

// Calls f(role, address of the pointer, bytes) for every tensor, in one fixed order.
template <class F>
class Walk {
  public:
    explicit Walk(F& f) : f_(f) {}

    void all(ModelWeights& w) {
        plain(w.embed);
        for (LayerWeights& l : w.layers) {
            hyper(l.attn_hyper);
            hyper(l.mlp_hyper);
            if (l.kind == LayerKind::gdn) {
                linears({&l.gdn.qkv, &l.gdn.z, &l.gdn.a, &l.gdn.b, &l.gdn.out});
                plains({&l.gdn.conv, &l.gdn.a_log, &l.gdn.dt_bias, &l.gdn.norm});
            } else {
                linears({&l.qsa.q, &l.qsa.k, &l.qsa.v, &l.qsa.index_qk, &l.qsa.out});
                plains({&l.qsa.q_norm, &l.qsa.k_norm, &l.qsa.index_q_norm, &l.qsa.index_k_norm});
            }
            linears({&l.moe.router, &l.moe.shared_gate, &l.moe.shared.gate, &l.moe.shared.up,
                     &l.moe.shared.down});
            if (l.ple) {
                linears({&l.ple->key, &l.ple->value});
                plains({&l.ple->norm_key, &l.ple->norm_query, &l.ple->norm_conv, &l.ple->conv});
            }
            role_ = Role::experts;
            for (ExpertWeights& e : l.moe.experts)
                linears({&e.gate, &e.up, &e.down});
            role_ = Role::weights;
        }
        hyper(w.mixer);
        linear(w.head);
    }

  private:
    void plain(PlainTensor& t) {
        if (t.data) f_(role_, t.data, static_cast<size_t>(t.size) * dtype_bytes(t.dtype));
    }
    template <class T>
    void raw(const T*& p, size_t bytes) {
        const void* any = p;
        f_(role_, any, bytes);
        p = static_cast<const T*>(any);
    }
    void linear(LinearWeight& w) {
        if (w.kind == LinearKind::plain) plain(w.plain);
        if (w.kind != LinearKind::exl3) return;
        raw(w.exl3.trellis, w.exl3.trellis_bytes());
        raw(w.exl3.suh, 2 * static_cast<size_t>(w.exl3.in));
        raw(w.exl3.svh, 2 * static_cast<size_t>(w.exl3.out));
    }
    void linears(std::initializer_list<LinearWeight*> all) {
        for (LinearWeight* w : all)
            linear(*w);
    }
    void plains(std::initializer_list<PlainTensor*> all) {
        for (PlainTensor* t : all)
            plain(*t);
    }
    void hyper(HyperWeights& h) {
        plain(h.norm);
        linears({&h.down, &h.up, &h.inject});
    }

    F& f_;
    Role role_ = Role::weights;
};

// A tied head is the embedding: one home for one address.
template <class F>
void walk(ModelWeights& w, F&& f) {
    std::unordered_map<const void*, const void*> homes;
    auto once = [&](Role role, const void*& p, size_t bytes) {
        const void* from = p;
        const auto found = homes.find(from);
        if (found != homes.end()) {
            p = found->second;
            return;
        }
        f(role, p, bytes);
        homes.emplace(from, p);
    };
    Walk<decltype(once)>(once).all(w);
}

}  // namespace

uint64_t expert_table_bytes(const ModelWeights& w) {
    uint64_t sum = 0;
    for (const LayerWeights& l : w.layers)
        sum += padded(l.moe.experts.size() * sizeof(ExpertWeights));
    return sum;
}

WeightBytes placed_bytes(const ModelWeights& weights) {
    WeightBytes sum;
    sum.weights = expert_table_bytes(weights);
    walk(const_cast<ModelWeights&>(weights), [&](Role role, const void*&, size_t bytes) {
        (role == Role::experts ? sum.experts : sum.weights) += padded(bytes);
    });
    return sum;
}

Status place_expert_tables(ModelWeights& w, Device& device, Stream& stream, Budget& budget) {
    if (device.unified()) {
        for (LayerWeights& l : w.layers)
            l.moe.device_experts = {l.moe.experts.data(), l.moe.experts.size()};
        return {};
    }
    TERRACE_ASSIGN(ChargedBuffer memory,
                   allocate_charged(device, budget, Role::weights, expert_table_bytes(w),
                                    MemSpace::device, Fill::unspecified, "expert tables"));
    std::byte* to = memory.buffer.device_pointer();
    for (LayerWeights& l : w.layers) {
        const size_t bytes = l.moe.experts.size() * sizeof(ExpertWeights);
        TERRACE_TRY(stream.copy(to, l.moe.experts.data(), bytes));
        l.moe.device_experts = {reinterpret_cast<const ExpertWeights*>(to), l.moe.experts.size()};
        to += padded(bytes);
    }
    TERRACE_TRY(stream.synchronize());
    w.device_memory.push_back(std::move(memory));
    return {};
}

Status place_weights(ModelWeights& w, Device& device, Stream& stream, Budget& budget) {
    if (device.unified() || !w.device_memory.empty())  // there already
        return place_expert_tables(w, device, stream, budget);
    const WeightBytes bytes = placed_bytes(w);
    TERRACE_ASSIGN(
        ChargedBuffer weights,
        allocate_charged(device, budget, Role::weights, bytes.weights - expert_table_bytes(w),
                         MemSpace::device, Fill::unspecified, "weights"));
    TERRACE_ASSIGN(ChargedBuffer experts,
                   allocate_charged(device, budget, Role::experts, bytes.experts, MemSpace::device,
                                    Fill::unspecified, "routed experts"));
    TERRACE_ASSIGN(UploadWindow window, UploadWindow::create(device, stream, kWindow));
    std::byte* at[2] = {weights.buffer.device_pointer(), experts.buffer.device_pointer()};
    Status status;
    // Small tensors share a piece: pieces are contiguous at both ends, one role at a time.
    std::byte* piece = nullptr;
    std::byte* piece_to = nullptr;
    size_t used = 0;
    const auto flush = [&]() -> Status {
        if (used > 0) TERRACE_TRY(window.send(piece_to, used));
        piece = nullptr;
        used = 0;
        return {};
    };
    const auto put = [&](std::byte* to, const std::byte* from, size_t n) -> Status {
        while (n > 0) {
            if (piece && (to != piece_to + used || used == window.bytes())) TERRACE_TRY(flush());
            if (!piece) {
                TERRACE_ASSIGN(piece, window.next());
                piece_to = to;
            }
            const size_t take = std::min(n, window.bytes() - used);
            if (from) {
                std::memcpy(piece + used, from, take);
                from += take;
            } else {
                std::memset(piece + used, 0, take);
            }
            used += take;
            to += take;
            n -= take;
        }
        return {};
    };
    walk(w, [&](Role role, const void*& p, size_t n) {
        std::byte*& to = at[role == Role::experts ? 1 : 0];
        if (status) status = put(to, static_cast<const std::byte*>(p), n);
        if (status) status = put(to + n, nullptr, padded(n) - n);
        p = to;
        to += padded(n);
    });
    TERRACE_TRY(status);
    TERRACE_TRY(flush());
    TERRACE_TRY(window.finish());
    w.owned.clear();
    w.device_memory.push_back(std::move(weights));
    w.device_memory.push_back(std::move(experts));
    return place_expert_tables(w, device, stream, budget);
}

Result<UploadWindow> UploadWindow::create(Device& device, Stream& stream, size_t bytes) {
    UploadWindow w;
    w.stream_ = &stream;
    w.bytes_ = bytes;
    for (int i = 0; i < 2; ++i) {
        TERRACE_ASSIGN(w.buffers_[i],
                       device.allocate(bytes, MemSpace::host_pinned, Fill::unspecified));
        TERRACE_ASSIGN(w.free_[i], device.make_event());
    }
    return w;
}

Result<std::byte*> UploadWindow::next() {
    // The buffer's last copy must have left it before it is filled again.
    if (used_[current_]) TERRACE_TRY(free_[current_]->wait_host());
    return buffers_[current_].device_pointer();
}

Status UploadWindow::send(std::byte* to, size_t bytes) {
    TERRACE_TRY(stream_->copy(to, buffers_[current_].device_pointer(), bytes));
    TERRACE_TRY(stream_->record(*free_[current_]));
    used_[current_] = true;
    current_ = 1 - current_;
    return {};
}

Status UploadWindow::finish() {
    return stream_->synchronize();
}

}  // namespace terrace
