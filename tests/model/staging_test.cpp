// Staged prefill under whole models: whatever the arena, cuts, batch mates and edits, the bits are
// those of planes read directly; each history page crosses once per chunk and layer; and each of the
// orders between the streams is needed, which the emulated device shows by taking one away.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "device/emulated_device.h"
#include "model/model_runner.h"
#include "ops/emulated_ops.h"

namespace terrace::test {
namespace {

std::vector<TokenId> some_tokens(size_t n, uint64_t seed) {
    Random random(seed);
    std::vector<TokenId> out;
    for (size_t i = 0; i < n; ++i)
        out.push_back(static_cast<TokenId>(random.below(500)));
    return out;
}

class Script {
  public:
    explicit Script(ModelRunner& run) : run_(run), tokens_(some_tokens(4000, 3)) {}

    // Prompts in chunks, with decoding mates, after a fork, after a rollback, two at once.
    std::vector<float> all() {
        auto s = run_.start(), t = run_.start();
        step({&s}, {256});
        step({&s, &t}, {330, 70});
        step({&s, &t}, {131, 1});  // a decoded tail of three rows
        for (int i = 0; i < 3; ++i)
            step({&t, &s}, {1, 1});
        step({&t, &s}, {1, 128});
        // The fork's last page is copied right before its chunk; full pages are shared.
        auto u = ModelRunner::Sequence{must(run_.store().fork(run_.stream(), s.memory, kMaxPages)),
                                       s.tokens};
        step({&u, &t, &s}, {192, 64, 100});
        must(run_.store().checkpoint(run_.stream(), s.memory));
        const size_t kept = s.tokens.size();
        step({&s}, {90});
        must(run_.store().restore(run_.stream(), s.memory));
        s.tokens.resize(kept);
        step({&u, &s}, {64, 150});
        step({&s, &u}, {1, 1});
        return std::move(logits_);
    }

  private:
    static constexpr int32_t kMaxPages = 17;
    void step(const std::vector<ModelRunner::Sequence*>& seqs, const std::vector<size_t>& rows) {
        std::vector<std::vector<TokenId>> news;
        for (const size_t n : rows) {
            const auto from = tokens_.begin() + static_cast<std::ptrdiff_t>(next_);
            news.emplace_back(from, from + static_cast<std::ptrdiff_t>(n));
            next_ += n;
        }
        for (const auto& l : run_.step(seqs, news))
            logits_.insert(logits_.end(), l.begin(), l.end());
    }
    ModelRunner& run_;
    std::vector<TokenId> tokens_;
    size_t next_ = 0;
    std::vector<float> logits_;
};

ModelRunner::Options staged_options(int32_t half_pages) {
    ModelRunner::Options o;
    o.planes = PlaneType::f16;
    o.max_tokens = 2048;
    o.seqs = 3;
    o.kv_space = MemSpace::host_pinned;
    o.observe = false;
    o.half_pages = half_pages;
    return o;
}

TEST(Staged, AnyArenaGivesTheBitsOfDirectPlanes) {
    WorkerPool pool(1);
    const auto host = make_host_device();
    for (const char* name : {"tiny-exl3", "demo"}) {
        const auto cpu = must(make_cpu_ops(*host, pool, {}));
        ModelRunner direct(name, *cpu, staged_options(0));
        const auto want = Script(direct).all();
        for (const int32_t half : {1, 2, 3, 100}) {
            if (half % 2 && std::string(name) == "demo") continue;
            ModelRunner run(name, *cpu, staged_options(half));
            EXPECT_EQ(Script(run).all(), want) << name << ", halves of " << half;
            EXPECT_GE(run.staging()->traffic().staged_steps, half == 1 ? 4 : 6);
        }
    }
}

TEST(Staged, EverySeedGivesTheBitsOfPlanesInDeviceMemory) {
    WorkerPool pool(1);
    const auto host = make_host_device();
    for (const char* name : {"tiny-exl3", "demo"}) {
        std::vector<float> want;
        for (uint64_t seed = 0; seed < (std::string(name) == "demo" ? 3 : 6); ++seed) {
            const auto device = must(EmulatedDevice::create(seed, size_t{1} << 30));
            const auto ops = make_emulated_ops(must(make_cpu_ops(*host, pool, {})));
            {
                constexpr int32_t kHalves[] = {0, 1, 2, 3, 100, 2};
                ModelRunner::Options o = staged_options(kHalves[seed]);
                o.device = device.get();
                if (seed == 0) o.kv_space = MemSpace::device;
                if (seed == 5) o.raw_space = MemSpace::host_pinned;
                ModelRunner run(name, *ops, o);
                const auto got = Script(run).all();
                if (seed == 0) want = got;
                EXPECT_EQ(got, want) << name << ", seed " << seed;
            }
            EXPECT_TRUE(device->faults().empty()) << "seed " << seed << ": " << device->faults()[0];
        }
    }
}

TEST(Staged, EachHistoryPageCrossesOncePerChunkAndLayer) {
    WorkerPool pool(1);
    const auto host = make_host_device();
    const auto cpu = must(make_cpu_ops(*host, pool, {}));
    for (const int32_t half : {1, 2, 100}) {
        ModelRunner run("tiny-exl3", *cpu, staged_options(half));
        auto seq = run.start();
        const StagingGeometry& g = run.staging()->geometry();
        const size_t block = g.page_bytes() / (kPageTokens / 4);
        size_t want = 0;
        int32_t pages = 0, pos = 0;
        for (const size_t n : {192, 256, 320, 181, 64, 300}) {
            run.step({&seq}, {some_tokens(n, n)});
            pages += pos / kPageTokens;
            want += static_cast<size_t>(pos / kPageTokens) * g.page_bytes() +
                    static_cast<size_t>((pos % kPageTokens + 3) / 4) * block;
            pos += static_cast<int32_t>(n);
        }
        EXPECT_EQ(run.staging()->traffic().staged_steps, 6);
        EXPECT_EQ(run.staging()->traffic().staged_pages, pages * g.planes.layers);
        for (int32_t layer = 0; layer < g.planes.layers; ++layer)
            EXPECT_EQ(run.staging()->copied_bytes(layer), static_cast<int64_t>(want));
    }
}

TEST(Staged, FewRowsFarFromTheStartReadDirectly) {
    WorkerPool pool(1);
    const auto host = make_host_device();
    const auto cpu = must(make_cpu_ops(*host, pool, {}));
    ModelRunner run("tiny-exl3", *cpu, staged_options(100));
    auto seq = run.start();
    run.feed(seq, some_tokens(1024, 1), 512);
    EXPECT_EQ(run.staging()->traffic().staged_steps, 2);
    run.step({&seq}, {some_tokens(20, 2)});  // 20 rows of 64 tokens against twice 1024
    run.step({&seq}, {some_tokens(3, 3)});   // decoded rows
    EXPECT_EQ(run.staging()->traffic().staged_steps, 2);
}

// Leaves one of the orders out.
class Careless final : public KvStaging {
  public:
    static constexpr int kFences = 4;
    Careless(Device& device, Budget& budget, const StagingGeometry& geometry, int left_out)
        : KvStaging(geometry), left_out_(left_out) {
        must(allocate(device, budget, budget));
    }
    bool used = false;

  protected:
    Status hold(Fence fence, Stream& later, Event& event) override {
        if (static_cast<int>(fence) != left_out_) return KvStaging::hold(fence, later, event);
        used = true;
        return {};
    }

  private:
    int left_out_;
};

// Steps until one fails: tokens, then tokens of a fork at once.
Status steps(ModelRunner& run) {
    const auto step = [&](ModelRunner::Sequence& s, size_t n) -> Status {
        const auto tokens = some_tokens(n, n);
        TERRACE_TRY(run.store().reserve(run.stream(), s.memory, static_cast<int32_t>(n)));
        SeqRows r;
        r.n_rows = static_cast<int32_t>(n);
        r.pos0 = s.memory.length();
        r.n_pages = static_cast<int32_t>(s.memory.block_table().size());
        r.slot = ix(s.memory.slot());
        const std::span<const TokenId> history = s.tokens;
        TERRACE_TRY(run.model().forward(
            run.stream(), run.store(),
            StepInput{tokens, {&r, 1}, s.memory.block_table(), {&history, 1}, {}}));
        run.store().commit(s.memory, r.n_rows);
        s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
        return {};
    };
    auto s = run.start();
    TERRACE_TRY(step(s, 512));
    TERRACE_TRY(run.stream().synchronize());
    TERRACE_TRY(step(s, 181));
    TERRACE_TRY(run.stream().synchronize());
    ModelRunner::Sequence fork{must(run.store().fork(run.stream(), s.memory, 9)), s.tokens};
    TERRACE_TRY(step(fork, 192));
    return run.stream().synchronize();
}

TEST(Staged, NoOrderBetweenTheStreamsCanBeLeftOut) {
    WorkerPool pool(1);
    const auto host = make_host_device();
    for (int fence = -1; fence < Careless::kFences; ++fence)
        for (uint64_t seed = 0; seed < 3; ++seed) {
            const auto device = must(EmulatedDevice::create(seed, size_t{1} << 30));
            const auto ops = make_emulated_ops(must(make_cpu_ops(*host, pool, {})));
            {
                ModelRunner::Options o = staged_options(1);
                o.device = device.get();
                Careless* careless = nullptr;
                o.make_staging = [&](Device& d, Budget& b, const StagingGeometry& g) {
                    auto staging = std::make_unique<Careless>(d, b, g, fence);
                    careless = staging.get();
                    return staging;
                };
                ModelRunner run("tiny-exl3", *ops, o);
                const Status status = steps(run);
                EXPECT_EQ(careless->used, fence >= 0);
                EXPECT_EQ(status.has_value(), fence < 0)
                    << "order " << fence << " left out, seed " << seed;
                if (!status) {
                    EXPECT_NE(status.error().message.find("no event orders them"),
                              std::string::npos)
                        << status.error().message;
                }
                (void)run.stream().synchronize();
            }
            EXPECT_EQ(device->faults().empty(), fence < 0) << "order " << fence;
        }
}

}  // namespace
}  // namespace terrace::test
