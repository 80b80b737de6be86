// Seeded cases for the operations, runnable on any backend: a Rig is one backend on its device, a
// run_* function makes the case's inputs, uploads them, calls the operation on poisoned outputs and
// brings the result back in logical order (rows, positions), free of page numbers.
//
// Inputs depend on (seed, row or position) only, never on batch mates or placement, so that two
// runs of overlapping cases must agree bit for bit where they overlap. Test thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "support/support.h"

namespace terrace::test {

// One backend on one device, and the memory of the cases run on it.
class Rig {
  public:
    Rig(std::unique_ptr<Device> device, std::unique_ptr<Ops> ops);
    Ops& ops() { return *ops_; }
    Stream& stream() { return *stream_; }

    template <class T>
    DevSpan<T> upload(const std::vector<T>& host) {
        auto* p = static_cast<T*>(upload_bytes(host.data(), host.size() * sizeof(T), 0));
        return {p, host.size()};
    }
    // Device copy of `bytes` at an address that is `misalign` bytes past a border of at least 64.
    void* upload_bytes(const void* data, size_t bytes, size_t misalign);
    template <class T>
    DevSpan<T> poisoned(size_t n) {
        return upload(std::vector<T>(n, poison<T>()));
    }
    template <class T>
    std::vector<std::remove_const_t<T>> download(DevSpan<T> span) {
        std::vector<std::remove_const_t<T>> host(span.size());
        download_bytes(host.data(), span.device_pointer(), span.size() * sizeof(T));
        return host;
    }
    void download_bytes(void* to, const void* from, size_t bytes);

    // Weights lie this many bytes past a 256-byte border: files are packed, devices are not.
    size_t weight_misalign() const { return device_->unified() ? 2 : 0; }

    // Runs one operation; its memory allocations are added up through `probe` when one is set.
    void call(const std::function<Status(Ops&, Stream&)>& op);
    std::function<int64_t()> probe;  // allocations of the process so far
    int64_t allocations = 0;
    // When off, the limits of the first reserve() must do for the following cases.
    void reserve(const OpsLimits& limits);
    bool keep_first_limits = false;

    void forget_buffers() { buffers_.clear(); }

  private:
    template <class T>
    static T poison() {
        T v;
        std::memset(&v, 0xff, sizeof v);
        return v;
    }
    std::unique_ptr<Device> device_;
    std::unique_ptr<Stream> stream_;
    std::vector<Buffer> buffers_;
    std::unique_ptr<Ops> ops_;
    bool reserved_ = false;
};

// sum (a - b)^2 / sum b^2; infinite when a has a NaN or sizes differ.
double nmse(std::span<const float> a, std::span<const float> reference);

// n numbers of (seed, tag, index): the same on every backend.
std::vector<float> case_numbers(uint64_t seed, uint64_t tag, uint64_t index, size_t n,
                                float scale = 1.0f);

PlainTensor make_plain(Rig& rig, const std::vector<float>& values, DType dtype);
LinearWeight make_plain_linear(Rig& rig, uint64_t seed, int in, int out, DType dtype);
// Random bits are a valid trellis. in and out are padded to multiples of 128.
LinearWeight make_exl3_linear(Rig& rig, uint64_t seed, int in, int out, int n16, Codebook codebook);

// One input element that is put in place of a case's own: of a row of activations (linear, moe), of
// the queries (attend, index_scores).
struct Spoil {
    int row = -1;  // of the batch; -1: nothing
    int column = 0;
    float value = 0;
};

struct HyperCase {
    int first = 0, rows = 1;  // rows [first, first + rows) of an endless batch
    int streams = 4, hidden = 64, rank = 16;
    DType dtype = DType::f16;
    bool inject = true;
    std::vector<RowRun> runs = {};
    bool add = false;  // something is to be added to the streams before they are read
};
struct HyperResult {
    std::vector<float> x, inj, h;
};
HyperResult run_hyper_read(Rig& rig, const HyperCase& c);
std::vector<float> run_hyper_write(Rig& rig, const HyperCase& c);
std::vector<float> run_embed(Rig& rig, const HyperCase& c);

struct LinearCase {
    int first = 0, rows = 1, in = 128;
    std::vector<RowRun> runs = {};  // empty: the operation's default
    struct Job {
        int out = 128;
        int n16 = 0;  // 0 = plain
        DType dtype = DType::f16;
        Codebook codebook = Codebook::mul1;
    };
    std::vector<Job> jobs;
    Spoil spoil = {};
};
std::vector<std::vector<float>> run_linear(Rig& rig, const LinearCase& c);

// A sequence of a step: rows at positions pos0.. of the endless token stream `seed`.
struct SeqCase {
    uint64_t seed = 1;
    int pos0 = 0, rows = 1;
};

struct QsaCase {
    std::vector<SeqCase> seqs;
    PlaneType type = PlaneType::f16;
    int heads = 4, kv_heads = 2, head_dim = 32;
    int index_heads = 2, index_dim = 16, rope_dims = 8, block_tokens = 4;
    float theta = 1e7f;
    DType norm_dtype = DType::bf16;
    int top = 0;                   // 0 = dense
    bool select_all = false;       // list every complete block although `blocks` could be empty
    int first_row = 0, rows = -1;  // slab; -1 = all
    uint64_t page_seed = 1;        // physical placement
    int mapped_pages = 0;          // when not 0, logical pages share so many physical ones in turn
    // When not negative, about half of the groups of 2^n blocks lie in a mirror, and what is read
    // there is missing at home.
    int mirror_shift = -1;
    bool mirror_is_staged = false;  // the mirror is QsaPrepareArgs::staged
    // Borders of attend's passes, in pages, ascending; empty: one pass. What earlier passes left is
    // in the call's state alone.
    std::vector<int> passes = {};
    Spoil spoil = {};
};
struct QsaPrepared {
    std::vector<float> q, iq, k, v, raw;
};
QsaPrepared run_qsa_prepare(Rig& rig, const QsaCase& c);
std::vector<float> run_qsa_pool(Rig& rig, const QsaCase& c);
std::vector<float> run_index_scores(Rig& rig, const QsaCase& c);  // complete blocks, row after row
std::vector<float> run_attend(Rig& rig, const QsaCase& c);

struct SelectCase {
    int pos0 = 0, rows = 1, top = 8;
    std::function<float(int row, int block)> score;
};
std::vector<std::vector<int32_t>> run_select(Rig& rig, const SelectCase& c);

struct GdnCase {
    std::vector<SeqCase> seqs;
    int k_heads = 2, v_heads = 4, k_dim = 16, v_dim = 16, kernel = 4;
    DType dtype = DType::bf16;
    float decay_bias = 0.0f;                         // added to dt_bias: large = strong decay
    std::vector<float> state = {}, conv_state = {};  // of a single sequence; empty = of its seed
};
struct RecurrentResult {
    std::vector<std::vector<float>> out, state, conv;  // per sequence
};
RecurrentResult run_gdn(Rig& rig, const GdnCase& c);

struct PleCase {
    std::vector<SeqCase> seqs;
    int streams = 4, hidden = 48, kernel = 4, dilation = 3;
    DType dtype = DType::bf16;
};
RecurrentResult run_ple(Rig& rig, const PleCase& c);

struct RouteCase {
    int rows = 1, experts = 16, k = 4;
    Renormalise renormalise = Renormalise::yes;
    // Exactly these logits, of a router of f32; otherwise those of random rows [first, first + rows).
    std::function<float(int row, int expert)> logit = {};
    Spoil spoil = {};  // of x, without `logit`
    int first = 0, hidden = 64;
    DType dtype = DType::f16;
    std::vector<RowRun> runs = {};
};
struct RouteResult {
    std::vector<int32_t> ids;
    std::vector<float> weights;
};
RouteResult run_route(Rig& rig, const RouteCase& c);

enum class ExpertKind { plain, exl3, mixed };
struct MoeCase {
    int first = 0, rows = 1, hidden = 128, width = 128, shared_width = 128, experts = 8, k = 2;
    ExpertKind kind = ExpertKind::exl3;
    ExpertKind shared = ExpertKind::exl3;
    bool with_shared = true;
    Codebook codebook = Codebook::mul1;
    int64_t favourite = -1;  // every row's first choice, when not negative
    std::vector<RowRun> runs = {};
    Spoil spoil = {};
};
std::vector<float> run_moe(Rig& rig, const MoeCase& c);

}  // namespace terrace::test
