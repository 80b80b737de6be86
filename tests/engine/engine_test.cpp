// The engine on the demo model: what a request gets does not depend on its neighbours; stops,
// limits, cancellation, bad requests; memory as planned.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>

#include "engine/engine_support.h"

namespace terrace::test {
namespace {

using testing::HasSubstr;

const char* const kPrompts[] = {"In the beginning", "The LORD said unto Moses,",
                                "Mr. Darcy looked at her and said,", "HOPE, n.",
                                "It is a truth universally acknowledged, that"};

std::string long_prompt(int words) {
    std::string s;
    for (int i = 0; i < words; ++i)
        s += "And he said unto them, ";
    return s;
}

TEST(Engine, RequestsTogetherGiveWhatEachGivesAlone) {
    std::vector<Collected> alone;
    for (const char* p : kPrompts) {
        const auto engine = must(Engine::open(demo_options()));
        Request r = text_request(*engine, p + std::string(p[0] == 'M' ? long_prompt(60) : ""), 24);
        r.sampling.temperature = 0.9f;
        r.sampling.seed = 5;
        const SeqId id = must(engine->submit(r));
        alone.push_back(run_all(*engine)[id]);
        EXPECT_EQ(alone.back().tokens.size(), 24u);
    }
    // Five requests over three slots, another chunk size: they queue, prefill and decode mixed.
    EngineOptions o = demo_options();
    o.max_seqs = 3;
    o.prefill_chunk = 64;
    const auto engine = must(Engine::open(o));
    std::vector<SeqId> ids;
    for (const char* p : kPrompts) {
        Request r = text_request(*engine, p + std::string(p[0] == 'M' ? long_prompt(60) : ""), 24);
        r.sampling.temperature = 0.9f;
        r.sampling.seed = 5;
        ids.push_back(must(engine->submit(r)));
    }
    auto together = run_all(*engine);
    for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(together[ids[i]].tokens, alone[i].tokens) << kPrompts[i];
        EXPECT_EQ(together[ids[i]].text, alone[i].text);
    }
}

TEST(Engine, StopsAtLengthStopStringAndStopId) {
    const auto engine = must(Engine::open(demo_options()));
    const SeqId plain = must(engine->submit(text_request(*engine, kPrompts[0], 40)));
    const Collected whole = run_all(*engine)[plain];
    EXPECT_EQ(whole.last.finish, FinishReason::length);
    EXPECT_EQ(whole.last.generated_tokens, 40);
    ASSERT_GT(whole.text.size(), 30u);

    // A stop string from the middle of the text, across token borders.
    const std::string stop = whole.text.substr(whole.text.size() / 2, 7);
    Request r = text_request(*engine, kPrompts[0], 40);
    r.stop_strings = {stop};
    const SeqId stopped = must(engine->submit(r));
    const Collected cut = run_all(*engine)[stopped];
    EXPECT_EQ(cut.last.finish, FinishReason::stop_string);
    EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop)));

    Request by_id = text_request(*engine, kPrompts[0], 40);
    by_id.stop_ids = {whole.tokens[10]};
    const SeqId ended = must(engine->submit(by_id));
    const Collected early = run_all(*engine)[ended];
    EXPECT_EQ(early.last.finish, FinishReason::stop_id);
    EXPECT_LE(early.tokens.size(), 11u);
}

TEST(Engine, ContextEndsARequestThatFillsIt) {
    EngineOptions o = demo_options();
    o.ctx = 64;
    o.max_seqs = 1;
    const auto engine = must(Engine::open(o));
    Request r = text_request(*engine, long_prompt(8), 1000);
    const auto prompt = static_cast<int32_t>(r.prompt.size());
    ASSERT_LT(prompt, 64);
    const SeqId id = must(engine->submit(r));
    const Collected c = run_all(*engine)[id];
    EXPECT_EQ(c.last.finish, FinishReason::context_full);
    EXPECT_EQ(c.last.generated_tokens, 64 - prompt + 1);  // the last token need not be stored
}

TEST(Engine, CancelledRequestsEndAndGiveTheirPagesBack) {
    const auto engine = must(Engine::open(demo_options()));
    const int32_t free = engine->runtime().store().pages().free_pages();
    const SeqId a = must(engine->submit(text_request(*engine, kPrompts[0], 500)));
    const SeqId b = must(engine->submit(text_request(*engine, kPrompts[1], 12)));
    for (int i = 0; i < 5; ++i)
        must(engine->step());
    engine->cancel(a);
    engine->cancel(SeqId{999});
    auto out = run_all(*engine);
    EXPECT_EQ(out[a].last.finish, FinishReason::cancelled);
    EXPECT_EQ(out[b].last.finish, FinishReason::length);
    EXPECT_EQ(engine->runtime().store().pages().free_pages(), free);
}

TEST(Engine, BadRequestsAreRefusedWithNeedAndHave) {
    const auto engine = must(Engine::open(demo_options()));
    const auto message = [&](auto change) {
        Request r = text_request(*engine, kPrompts[0], 4);
        change(r);
        const auto id = engine->submit(r);
        return id ? std::string() : id.error().message;
    };
    EXPECT_THAT(message([](Request& r) { r.prompt.clear(); }), HasSubstr("no tokens"));
    EXPECT_THAT(message([](Request& r) { r.prompt.push_back(4096); }), HasSubstr("id 4096"));
    EXPECT_THAT(message([](Request& r) { r.prompt.push_back(-1); }), HasSubstr("id -1"));
    EXPECT_THAT(message([](Request& r) { r.prompt.resize(3000, 1); }), HasSubstr("--ctx is 2048"));
    EXPECT_THAT(message([](Request& r) { r.max_tokens = 0; }), HasSubstr("max_tokens"));
    EXPECT_THAT(message([](Request& r) { r.top_logprobs = 21; }), HasSubstr("0..20"));
    EXPECT_THAT(message([](Request& r) { r.sampling.top_p = 2; }), HasSubstr("top_p"));
    EXPECT_TRUE(engine->idle());
}

TEST(Engine, LogprobsComeWithTheToken) {
    const auto engine = must(Engine::open(demo_options()));
    Request r = text_request(*engine, kPrompts[0], 3);
    r.top_logprobs = 4;
    must(engine->submit(r));
    int tokens = 0;
    while (!engine->idle()) {
        must(engine->step());
        for (const TokenEvent& e : engine->take_events()) {
            if (e.token < 0) continue;
            ++tokens;
            ASSERT_EQ(e.top.size(), 5u);
            EXPECT_EQ(e.top[0].token, e.top[1].token);  // greedy: the token is the best
            for (size_t i = 2; i < e.top.size(); ++i)
                EXPECT_GE(e.top[i - 1].logprob, e.top[i].logprob);
        }
    }
    EXPECT_EQ(tokens, 3);
}

TEST(Memory, PlanAndReportAgreeToTheByte) {
    for (const PlaneType type : {PlaneType::f16, PlaneType::f32})
        for (const NgramPlacement ngram : {NgramPlacement::mapped, NgramPlacement::ram}) {
            EngineOptions o = demo_options();
            o.kv_type = type;
            o.ngram = ngram;
            const auto runtime = must(Runtime::open(o));
            const MemoryPlan plan = runtime->plan(), now = runtime->report();
            ASSERT_EQ(plan.rows.size(), now.rows.size());
            for (size_t i = 0; i < plan.rows.size(); ++i)
                EXPECT_EQ(plan.rows[i].bytes, now.rows[i].bytes) << to_string(plan.rows[i].role);
            EXPECT_THAT(now.table(), HasSubstr("K/V planes"));
        }
}

// The same on a device with its own memory, planes there or in the host's pinned memory.
TEST(Memory, PlanAndReportAgreeOnADeviceWithItsOwnMemory) {
    for (const KvOffload offload : {KvOffload::off, KvOffload::host, KvOffload::fit})
        for (const MemSpace raw : {MemSpace::host_pinned, MemSpace::device}) {
            EngineOptions o = demo_options();
            o.backend.device = "emulated:4";
            o.kv_offload = offload;
            o.kv_raw = raw;
            const auto runtime = must(Runtime::open(o));
            const MemoryPlan plan = runtime->plan(), now = runtime->report();
            ASSERT_EQ(plan.rows.size(), now.rows.size());
            for (size_t i = 0; i < plan.rows.size(); ++i)
                EXPECT_EQ(plan.rows[i].bytes, now.rows[i].bytes) << to_string(plan.rows[i].role);
            EXPECT_GT(plan.total(MemSpace::device), plan.bytes(Role::weights));
            const auto on_host = [&](Role role) {
                for (const MemoryRow& row : plan.rows)
                    if (row.role == role) return row.space != MemSpace::device;
                return false;
            };
            EXPECT_EQ(on_host(Role::kv), offload == KvOffload::host);
            EXPECT_EQ(on_host(Role::raw_index),
                      offload == KvOffload::host && raw == MemSpace::host_pinned);
            EXPECT_FALSE(on_host(Role::pooled_index));
        }
}

TEST(Memory, PlanesMoveToTheHostWhenTheDeviceIsTooSmall) {
    EngineOptions o = demo_options();
    o.backend.device = "emulated:4";
    o.kv_staging = KvStagingMode::off;
    o.kv_offload = KvOffload::off;
    o.kv_mirror = 0;
    const auto roomy = must(Runtime::open(o));
    const uint64_t planes = roomy->plan().bytes(Role::kv) + roomy->plan().bytes(Role::raw_index);
    o.kv_offload = KvOffload::fit;
    o.vram_limit = roomy->plan().total(MemSpace::device) - planes / 2;
    const auto tight = must(Runtime::open(o));
    EXPECT_EQ(tight->options().kv_offload, KvOffload::host);
    EXPECT_EQ(tight->plan().total(MemSpace::device),
              roomy->plan().total(MemSpace::device) - planes);
    o.vram_limit = tight->plan().total(MemSpace::device) - 1;
    const auto refused = Runtime::open(o);
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message, HasSubstr("GPU memory: the plan needs"));
    EXPECT_THAT(refused.error().message, HasSubstr("--vram-limit"));
}

TEST(Memory, TheMirrorTakesWhatFitsBesideTheRest) {
    EngineOptions o = demo_options();
    o.backend.device = "emulated:4";
    o.kv_offload = KvOffload::host;
    o.kv_staging = KvStagingMode::off;
    o.kv_mirror = 0;
    const uint64_t bare = must(Runtime::open(o))->plan().total(MemSpace::device);
    o.kv_mirror = kMirrorAuto;
    const auto roomy = must(Runtime::open(o));
    const PlaneGeometry g = plane_geometry(roomy->config(), roomy->options());
    const auto blocks = std::min(8192, g.pages * (kPageTokens / g.block_tokens));
    EXPECT_EQ(mirror_slots(g, roomy->options()), blocks);
    EXPECT_EQ(roomy->report().bytes(Role::kv_mirror), KvMirror::bytes(g, blocks));
    o.vram_limit = bare + KvMirror::bytes(g, 1024);
    EXPECT_EQ(mirror_slots(g, must(Runtime::open(o))->options()), 1024);
    o.vram_limit = bare + KvMirror::bytes(g, 1024) - 1;
    EXPECT_EQ(mirror_slots(g, must(Runtime::open(o))->options()), 0);
    o.vram_limit = 0;
    o.kv_mirror = 100'000;
    EXPECT_EQ(mirror_slots(g, must(Runtime::open(o))->options()), 100'000 / 2 / 2048);
    o.kv_offload = KvOffload::off;
    EXPECT_EQ(must(Runtime::open(o))->plan().bytes(Role::kv_mirror), 0u);
}

TEST(Memory, TheArenaTakesWhatIsLeftAndWhatWasAskedFor) {
    EngineOptions o = demo_options();
    o.backend.device = "emulated:4";
    o.kv_offload = KvOffload::host;
    o.kv_mirror = 0;
    o.ctx = 32'768;
    const auto roomy = must(Runtime::open(o));
    const MemoryPlan plan = roomy->plan();
    const uint64_t page = 2 * 2 * 64 * 2 * kPageTokens;  // K and V of 2 heads of 64, f16
    EXPECT_EQ(roomy->options().kv_arena, 128 * page);    // all of --ctx
    EXPECT_GT(plan.bytes(Role::kv_arena), 2 * 128 * page);
    EXPECT_EQ(roomy->report().bytes(Role::kv_arena), plan.bytes(Role::kv_arena));
    EXPECT_EQ(roomy->report().bytes(Role::staging), plan.bytes(Role::staging));

    o.kv_arena = 10 * page + 5;
    const auto asked = must(Runtime::open(o));
    EXPECT_EQ(asked->report().bytes(Role::kv_arena), asked->plan().bytes(Role::kv_arena));
    EXPECT_LT(asked->plan().bytes(Role::kv_arena), plan.bytes(Role::kv_arena));
    o.kv_arena = page;
    const auto refused = Runtime::open(o);
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message, HasSubstr("--kv-arena"));

    // No room: rows read directly, and everything else is as planned.
    o.kv_arena = 0;
    o.vram_limit = plan.total(MemSpace::device) - plan.bytes(Role::kv_arena) + page;
    const auto tight = must(Runtime::open(o));
    EXPECT_EQ(tight->options().kv_staging, KvStagingMode::off);
    EXPECT_EQ(tight->plan().bytes(Role::kv_arena), 0u);
    // On the host's own memory there is nothing to stage.
    o.backend.device = "cpu";
    o.vram_limit = 0;
    EXPECT_EQ(must(Runtime::open(o))->plan().bytes(Role::kv_arena), 0u);
}

TEST(Memory, ContextBeyondTheLimitIsRefusedBeforeAnythingIsAllocated) {
    EngineOptions o = demo_options();
    o.ctx = 1 << 20;
    o.max_seqs = 64;
    o.host_limit = uint64_t{1} << 30;
    const auto runtime = Runtime::open(o);
    ASSERT_FALSE(runtime.has_value());
    EXPECT_EQ(runtime.error().code, Code::out_of_memory);
    EXPECT_THAT(runtime.error().message, HasSubstr("lower --ctx"));
    EXPECT_THAT(runtime.error().message, HasSubstr("1.00 GiB are available"));
}

TEST(Options, RangesAreChecked) {
    const auto message = [](auto change) {
        EngineOptions o = demo_options();
        change(o);
        const auto r = Runtime::open(o);
        return r ? std::string() : r.error().message;
    };
    EXPECT_THAT(message([](auto& o) { o.ctx = -1; }), HasSubstr("--ctx"));
    EXPECT_THAT(message([](auto& o) { o.max_seqs = 0; }), HasSubstr("--max-seqs"));
    EXPECT_THAT(message([](auto& o) { o.prefill_chunk = 100; }), HasSubstr("multiple of 64"));
    EXPECT_THAT(message([](auto& o) { o.pool_tokens = 5; }), HasSubstr("--pool-tokens"));
    EXPECT_THAT(message([](auto& o) { o.backend.device = "tpu"; }),
                HasSubstr("auto, cpu, reference"));
    EXPECT_THAT(message([](auto& o) { o.backend.isa = "sse"; }), HasSubstr("avx2"));
    EXPECT_THAT(message([](auto& o) { o.backend.activations = "int4"; }), HasSubstr("int16"));
    EXPECT_THAT(message([](auto& o) { o.model = "/nonexistent"; }), HasSubstr("/nonexistent"));
}

TEST(Fork, ContinuesLikeTheOriginalAndLeavesItAlone) {
    const auto runtime = must(Runtime::open(demo_options()));
    Batch batch(*runtime);
    Sequence a = must(batch.start());
    std::vector<TokenId> prompt(333);
    for (size_t i = 0; i < prompt.size(); ++i)
        prompt[i] = static_cast<TokenId>(i * 13 % 4000);
    const auto feed = [&](Sequence& s, std::span<const TokenId> t) {
        batch.clear();
        must(batch.add(s, t, LogitRows::last));
        must(batch.run());
        const auto l = batch.logits(0);
        return std::vector<float>(l.begin(), l.end());
    };
    for (size_t at = 0; at < prompt.size(); at += 128)
        feed(a, std::span(prompt).subspan(at, std::min<size_t>(128, prompt.size() - at)));
    Sequence b = must(batch.fork(a));
    const TokenId one = 17, two = 99;
    const auto a1 = feed(a, {&one, 1});
    const auto b1 = feed(b, {&two, 1});  // another branch, in the same block of four tokens
    EXPECT_NE(a1, b1);
    Sequence c = must(batch.fork(a));
    const auto a2 = feed(a, {&two, 1});
    const auto c2 = feed(c, {&two, 1});
    EXPECT_EQ(a2, c2);
    EXPECT_NE(a2, b1);
}

}  // namespace
}  // namespace terrace::test
