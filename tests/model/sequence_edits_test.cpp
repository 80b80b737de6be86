// Edits of sequences under a whole model: rollback and replay, forks, copies of shared pages,
// n-gram and recurrent state across separators. Whatever the edits, logits, planes and states must
// have the bits of a sequence that was computed from scratch with the same kinds of rows.
// SPDX-License-Identifier: MIT
#include <cstring>
#include <functional>

#include "cpu/cpu_ops.h"
#include "device/emulated_device.h"
#include "model/model_runner.h"
#include "ops/emulated_ops.h"

namespace terrace::test {
namespace {

// What an Ops stands on, destroyed after it.
struct TestBackend {
    std::unique_ptr<Device> device;
    std::unique_ptr<WorkerPool> pool;
    std::unique_ptr<EmulatedDevice> emulated;  // null: the runner's own host device
    std::unique_ptr<Ops> ops;
};

struct BackendCase {
    const char* name;
    std::function<TestBackend()> make;
    PlaneType planes;
    MemSpace kv_space = MemSpace::device, raw_space = MemSpace::device;
    int32_t mirror_slots = 0;
};

TestBackend reference_backend() {
    TestBackend b;
    b.ops = make_reference_ops();
    return b;
}

TestBackend cpu_backend() {
    TestBackend b;
    b.device = make_host_device();
    b.pool = std::make_unique<WorkerPool>(2);
    b.ops = must(make_cpu_ops(*b.device, *b.pool, {}));
    return b;
}

// Copies and operations queued, run late in an order the seed picks.
TestBackend emulated_backend(uint64_t seed) {
    TestBackend b = cpu_backend();
    b.emulated = must(EmulatedDevice::create(seed, size_t{1} << 30));
    b.ops = make_emulated_ops(std::move(b.ops));
    return b;
}

// Everything that a sequence leaves behind and later tokens read.
struct Picture {
    std::vector<std::byte> kv, raw, pooled, state;
};

// Pieces of device memory on their way into a picture.
class Reader {
  public:
    void add(std::vector<std::byte>& to, const void* from, size_t bytes) {
        pieces_.push_back({&to, to.size(), from, bytes});
        to.resize(to.size() + bytes);
    }
    void read(Stream& stream) {
        for (const Piece& p : pieces_)
            must(stream.copy(p.to->data() + p.at, p.from, p.bytes));
        must(stream.synchronize());
    }

  private:
    struct Piece {
        std::vector<std::byte>* to;
        size_t at;
        const void* from;
        size_t bytes;
    };
    std::vector<Piece> pieces_;
};

Picture picture_of(ModelRunner& run, const SequenceMemory& m) {
    Picture out;
    Reader reader;
    const KvPlanes& planes = run.store().planes();
    const PlaneGeometry& g = planes.geometry();
    const auto block = g.block_tokens;
    const size_t index_row = g.raw_bytes_per_token();
    for (int32_t layer = 0; layer < g.layers; ++layer) {
        const RowSource rows = planes.rows(layer);
        const IndexPlanes index = planes.index(layer);
        const size_t row = rows.half_extent_bytes() / static_cast<size_t>(block);
        for (int32_t p = 0; p < m.length(); ++p) {
            const int32_t page = m.block_table()[static_cast<size_t>(p / kPageTokens)];
            const int32_t offset = p % kPageTokens;
            const std::byte* k =
                rows.home(page, offset / block) + static_cast<size_t>(offset % block) * row;
            reader.add(out.kv, k, row);
            reader.add(out.kv, k + rows.half_extent_bytes(), row);
            reader.add(out.raw,
                       index.raw + static_cast<size_t>(page * kPageTokens + offset) * index_row,
                       index_row);
            if (offset % block == block - 1)  // complete: the only ones that are ever scored
                reader.add(
                    out.pooled,
                    index.pooled +
                        static_cast<size_t>((page * kPageTokens + offset) / block) * index_row,
                    index_row);
        }
    }
    const StatePool& states = run.store().states();
    const auto slot = static_cast<size_t>(ix(m.slot()));
    const auto add_state = [&](DevSpan<float> all, size_t floats) {
        reader.add(out.state, all.device_pointer() + slot * floats, floats * sizeof(float));
    };
    for (int32_t i = 0; i < states.geometry().gdn_layers; ++i) {
        add_state(states.gdn(i), states.geometry().gdn_floats());
        add_state(states.conv(i), states.geometry().conv_floats());
    }
    for (int32_t i = 0; i < states.geometry().ple_layers; ++i)
        add_state(states.ple(i), states.geometry().ple_floats());
    reader.read(run.stream());
    return out;
}

class SequenceEdits : public ::testing::TestWithParam<BackendCase> {
  protected:
    using Sequence = ModelRunner::Sequence;
    using Tokens = std::vector<TokenId>;

    SequenceEdits() : backend_(GetParam().make()), run_("tiny-bf16", *backend_.ops, options()) {}
    void TearDown() override {
        if (backend_.emulated) {
            EXPECT_TRUE(backend_.emulated->faults().empty()) << backend_.emulated->faults()[0];
        }
    }

    ModelRunner::Options options() {
        ModelRunner::Options o;
        o.planes = GetParam().planes;
        o.max_tokens = 512;
        o.kv_space = GetParam().kv_space;
        o.raw_space = GetParam().raw_space;
        o.mirror_slots = GetParam().mirror_slots;
        if (backend_.emulated) {
            o.device = backend_.emulated.get();
            o.observe = false;  // decoded rows are replayed as graphs
        }
        return o;
    }
    Tokens tokens(size_t n) {
        Tokens out;
        for (size_t i = 0; i < n; ++i)
            out.push_back(static_cast<TokenId>(3 + random_.below(run_.config().vocab - 3)));
        return out;
    }
    // Steps of one sequence, each of the given tokens: logits of all rows.
    std::vector<float> steps(Sequence& s, const std::vector<Tokens>& parts) {
        std::vector<float> out;
        for (const Tokens& part : parts) {
            const auto logits = run_.step({&s}, {part});
            out.insert(out.end(), logits[0].begin(), logits[0].end());
        }
        return out;
    }
    static std::vector<Tokens> one_by_one(const Tokens& tokens) {
        std::vector<Tokens> out;
        for (const TokenId t : tokens)
            out.push_back({t});
        return out;
    }
    void checkpoint(Sequence& s) { must(run_.store().checkpoint(run_.stream(), s.memory)); }
    void restore(Sequence& s) {
        must(run_.store().restore(run_.stream(), s.memory));
        s.tokens.resize(static_cast<size_t>(s.memory.length()));
    }
    Sequence fork(const Sequence& s) {
        return Sequence{must(run_.store().fork(run_.stream(), s.memory, 2)), s.tokens};
    }
    // `parts` on a new sequence: `s` must be in the same state, and `logits` are its last rows.
    void expect_as_from_scratch(const Sequence& s, const std::vector<float>& logits,
                                const std::vector<Tokens>& parts, const std::string& what) {
        Sequence scratch = run_.start();
        const auto want = steps(scratch, parts);
        ASSERT_EQ(scratch.tokens, s.tokens) << what;
        ASSERT_LE(logits.size(), want.size()) << what;
        ASSERT_FALSE(logits.empty());
        EXPECT_EQ(std::memcmp(logits.data(), want.data() + (want.size() - logits.size()),
                              logits.size() * sizeof(float)),
                  0)
            << what << ": other logits";
        const Picture a = picture_of(run_, s.memory), b = picture_of(run_, scratch.memory);
        EXPECT_TRUE(a.kv == b.kv) << what << ": other K or V rows";
        EXPECT_TRUE(a.raw == b.raw) << what << ": other raw index rows";
        EXPECT_TRUE(a.pooled == b.pooled) << what << ": other pooled rows";
        EXPECT_TRUE(a.state == b.state) << what << ": another state";
    }

    TestBackend backend_;
    ModelRunner run_;
    Random random_{17};
};

std::vector<std::vector<TokenId>> operator+(std::vector<std::vector<TokenId>> a,
                                            const std::vector<std::vector<TokenId>>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

TEST_P(SequenceEdits, RollbackByOneToSevenTokensIsAsIfTheyHadNeverBeen) {
    for (size_t back = 1; back <= 7; ++back) {
        // One across a page border and with sparse selection, the others at all block phases.
        const Tokens prefix = tokens(back == 5 ? 252 : 8 + back);
        const Tokens drafts = tokens(7), others = tokens(5);
        const Tokens accepted(drafts.begin(), drafts.end() - static_cast<int64_t>(back));
        Sequence s = run_.start();
        steps(s, {prefix});
        checkpoint(s);
        steps(s, one_by_one(drafts));
        restore(s);
        const auto logits = steps(s, one_by_one(accepted) + one_by_one(others));
        expect_as_from_scratch(
            s, logits, std::vector<Tokens>{prefix} + one_by_one(accepted) + one_by_one(others),
            "back by " + std::to_string(back));
    }
}

TEST_P(SequenceEdits, ForksInsideABlockOrPageGoTheirOwnWaysInOneStep) {
    for (const size_t length : {66u, 258u}) {
        const Tokens prefix = tokens(length), ours = tokens(6), theirs = tokens(6);
        Sequence a = run_.start();
        steps(a, {prefix});
        Sequence b = fork(a);
        std::vector<float> logits_a, logits_b;
        for (size_t i = 0; i < 6; ++i) {
            const auto both = run_.step({&a, &b}, {{ours[i]}, {theirs[i]}});
            logits_a.insert(logits_a.end(), both[0].begin(), both[0].end());
            logits_b.insert(logits_b.end(), both[1].begin(), both[1].end());
        }
        EXPECT_NE(logits_a, logits_b);
        const std::string what = " of a fork at " + std::to_string(length);
        expect_as_from_scratch(a, logits_a, std::vector<Tokens>{prefix} + one_by_one(ours),
                               "origin" + what);
        expect_as_from_scratch(b, logits_b, std::vector<Tokens>{prefix} + one_by_one(theirs),
                               "copy" + what);
    }
}

TEST_P(SequenceEdits, WritingIntoASharedPageLeavesTheOtherSequenceAlone) {
    const Tokens first = tokens(201), second = tokens(70), other = tokens(21), last = tokens(3);
    Sequence a = run_.start();
    steps(a, {first});
    checkpoint(a);
    steps(a, {second});
    Sequence b = fork(a);
    ASSERT_EQ(a.memory.block_table()[0], b.memory.block_table()[0]);
    restore(a);
    const auto logits_a = steps(a, {other});
    EXPECT_NE(a.memory.block_table()[0], b.memory.block_table()[0]);
    const auto logits_b = steps(b, one_by_one(last));
    expect_as_from_scratch(a, logits_a, {first, other}, "the writer");
    expect_as_from_scratch(b, logits_b, std::vector<Tokens>{first, second} + one_by_one(last),
                           "the other holder");
}

TEST_P(SequenceEdits, NgramStateFollowsRollbackAcrossSeparators) {
    const TokenId e = run_.config().eos;
    const std::vector<Tokens> prefixes = {{40, 41, 42, e}, {40, 41, e, 42}, {40, e, e}, {e}, {40}};
    for (const Tokens& prefix : prefixes)
        for (const Tokens& next : std::vector<Tokens>{{e, 50, 51, 52}, {50, e, 51, e, 52}}) {
            Sequence s = run_.start();
            steps(s, {prefix});
            checkpoint(s);
            steps(s, one_by_one({60, e, 61}));
            restore(s);
            const auto logits = steps(s, one_by_one(next));
            expect_as_from_scratch(s, logits, std::vector<Tokens>{prefix} + one_by_one(next),
                                   "prefix of " + std::to_string(prefix.size()));
        }
}

TEST_P(SequenceEdits, APromptSplitAtMultiplesOf64TokensGivesTheSameBits) {
    Tokens prompt = tokens(150);
    for (const size_t at : {62u, 64u, 65u, 127u})
        prompt[at] = run_.config().eos;
    const auto part = [&](size_t from, size_t to) {
        return Tokens(prompt.begin() + static_cast<int64_t>(from),
                      prompt.begin() + static_cast<int64_t>(to));
    };
    for (const size_t cut : {64u, 128u}) {
        Sequence s = run_.start();
        const auto logits = steps(s, {part(0, cut), part(cut, 150)});
        expect_as_from_scratch(s, logits, {prompt}, "cut at " + std::to_string(cut));
    }
}

INSTANTIATE_TEST_SUITE_P(
    Backends, SequenceEdits,
    ::testing::Values(BackendCase{"reference", reference_backend, PlaneType::f32},
                      BackendCase{"cpu", cpu_backend, PlaneType::f32},
                      BackendCase{"cpu_f16", cpu_backend, PlaneType::f16},
                      BackendCase{"emulated", [] { return emulated_backend(1); }, PlaneType::f16},
                      BackendCase{"emulated_kv_on_host", [] { return emulated_backend(2); },
                                  PlaneType::f16, MemSpace::host_pinned, MemSpace::device},
                      BackendCase{"emulated_planes_on_host", [] { return emulated_backend(3); },
                                  PlaneType::f16, MemSpace::host_pinned, MemSpace::host_pinned},
                      BackendCase{"cpu_mirror_40", cpu_backend, PlaneType::f16, MemSpace::device,
                                  MemSpace::device, 40},
                      BackendCase{"emulated_mirror_24", [] { return emulated_backend(4); },
                                  PlaneType::f16, MemSpace::host_pinned, MemSpace::host_pinned, 24},
                      BackendCase{"emulated_mirror_600", [] { return emulated_backend(3); },
                                  PlaneType::f16, MemSpace::host_pinned, MemSpace::device, 600}),
    [](const auto& p) { return std::string(p.param.name); });

}  // namespace
}  // namespace terrace::test
