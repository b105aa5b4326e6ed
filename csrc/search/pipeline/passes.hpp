// The passes of a pipeline's stages in their order, and what they send each other: Note [Schedules] in
// schedule.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "search/pipeline/schedule.hpp"

namespace osdp::search {

class Passes {
 public:
  struct Pass {
    int64_t micro_batch = 0;
    bool forward = true;
    int64_t here_ps = 0;  // when its input is here
    int64_t ps = 0;       // that it takes
    int64_t tail_ps = 0;  // of these, after its gradients have left
  };

  Passes(PipelineSchedule schedule, const std::vector<StageTimes>& times, int64_t micro_batches)
      : times_(times), micro_batches_(micro_batches), stages_(times.size()) {
    for (size_t i = 0; i < stages_.size(); ++i) {
      Stage& stage = stages_[i];
      stage.ahead = most_in_flight(schedule, static_cast<int64_t>(stages_.size()), static_cast<int64_t>(i),
                                   micro_batches);
      stage.activations.assign(static_cast<size_t>(micro_batches), i == 0 ? 0 : kNotYet);
      stage.gradients.assign(static_cast<size_t>(micro_batches), i + 1 == stages_.size() ? 0 : kNotYet);
    }
  }

  bool ended(size_t i) const { return stages_[i].backwards == micro_batches_; }

  // The next pass of a stage that has not ended, if what it waits for was sent.
  std::optional<Pass> next(size_t i) const {
    const Stage& stage = stages_[i];
    const bool forward = stage.forwards < std::min(micro_batches_, stage.backwards + stage.ahead);
    const int64_t micro = forward ? stage.forwards : stage.backwards;
    const int64_t here = (forward ? stage.activations : stage.gradients)[static_cast<size_t>(micro)];
    if (here == kNotYet) return std::nullopt;
    const StageTimes& t = times_[i];
    if (forward) return Pass{micro, true, here, micro == 0 ? t.first_forward_ps : t.forward_ps, 0};
    const bool last = micro + 1 == micro_batches_;
    return Pass{micro, false, here, last ? t.last_backward_ps : t.backward_ps,
                last ? t.last_backward_tail_ps : t.backward_tail_ps};
  }

  // The stage's next pass has begun: there is another next one.
  void begin(size_t i, const Pass& pass) { ++(pass.forward ? stages_[i].forwards : stages_[i].backwards); }

  // What a pass computes for a neighbour is ready: its links send in order.
  void send(size_t i, const Pass& pass, int64_t ready_ps) {
    if (pass.forward ? i + 1 == stages_.size() : i == 0) return;
    Stage &from = stages_[i], &to = stages_[pass.forward ? i + 1 : i - 1];
    int64_t& link = from.sends_free_ps[pass.forward ? 0 : 1];
    const StageTimes& t = times_[i];
    link = std::max(link, ready_ps) + (pass.forward ? t.send_activations_ps : t.send_gradients_ps);
    (pass.forward ? to.activations : to.gradients)[static_cast<size_t>(pass.micro_batch)] = link;
  }

 private:
  static constexpr int64_t kNotYet = -1;
  struct Stage {
    int64_t ahead = 0;                            // forwards before the first backward
    int64_t forwards = 0, backwards = 0;          // begun
    int64_t sends_free_ps[2] = {0, 0};            // its links': to the next stage, to the one before
    std::vector<int64_t> activations, gradients;  // when those of a micro-batch are here
  };

  const std::vector<StageTimes>& times_;
  const int64_t micro_batches_;
  std::vector<Stage> stages_;
};

}  // namespace osdp::search
