// Several requests at once over one model: admission, continuous batching of prompt chunks and
// decode rows, sampling, stop conditions, cancellation. One thread owns an Engine and calls step()
// while there is work; everything a request does comes out as TokenEvents.
//
// Equality: a request's tokens do not depend on what else runs. Placement of its pages, its batch
// mates and the chunking of prompts never change a logit by one bit.
// SPDX-License-Identifier: MIT
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "engine/batch.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace terrace {

struct EngineStats {
    int64_t steps = 0;
    int64_t prompt_tokens = 0, generated_tokens = 0;
    double prompt_seconds = 0;  // of steps that held prompt rows
    double decode_seconds = 0;  // of steps that held decode rows only
};

class Engine {
  public:
    static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);
    explicit Engine(std::unique_ptr<Runtime> runtime);
    ~Engine();

    Runtime& runtime() { return *runtime_; }
    const EngineStats& stats() const { return stats_; }

    // Checks the request (ids, ranges, that it can ever fit) and queues it.
    Result<SeqId> submit(Request request);
    // The request ends at the next step with reason `cancelled`. Unknown ids are ignored: the
    // request may have ended by itself.
    void cancel(SeqId id);

    bool idle() const { return waiting_.empty() && running_.empty(); }
    // One step for all that run; admits waiting requests first. Does nothing when idle.
    Status step();
    // Events since the last call, in order.
    std::vector<TokenEvent> take_events();

  private:
    struct Run;
    void admit();
    // `row` of the step's requested rows; candidates: how many of its largest logits came, 0 = all.
    void accept(Run& run, int32_t row, int32_t candidates);
    int32_t candidates_of_step() const;
    void finish(Run& run, FinishReason reason, std::string error = {});
    int64_t pages_wanted(const Request& request) const;

    std::unique_ptr<Runtime> runtime_;
    Batch batch_;
    std::deque<std::unique_ptr<Run>> waiting_;
    std::vector<std::unique_ptr<Run>> running_;
    std::vector<RunState> states_;
    StepPlan plan_;
    std::vector<TokenEvent> events_;
    EngineStats stats_;
    uint64_t next_id_ = 1;
    int64_t promised_pages_ = 0;  // of all running requests, at their longest
};

}  // namespace terrace
