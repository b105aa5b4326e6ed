#include "search/pipeline/schedule.hpp"

#include <algorithm>
#include <string>

#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

constexpr int64_t kMostPasses = int64_t{1} << 24;

void check(const std::vector<StageTimes>& stages, int64_t micro_batches) {
  if (stages.empty() || micro_batches < 1) throw InvalidProblem("a pipeline without stages or micro-batches");
  if (static_cast<int128>(stages.size()) * micro_batches > kMostPasses)
    throw InvalidProblem("a pipeline of " + std::to_string(stages.size()) + " stages and " +
                         std::to_string(micro_batches) + " micro-batches is too long to be played");
  int128 all = 0;  // one after the other, which nothing takes longer than
  for (const StageTimes& s : stages) {
    for (const int64_t ps : {s.first_forward_ps, s.forward_ps, s.backward_ps, s.last_backward_ps,
                             s.optimizer_ps, s.send_activations_ps, s.send_gradients_ps}) {
      if (ps < 0) throw InvalidProblem("a stage's time is negative");
      all += static_cast<int128>(ps) * micro_batches;
    }
    if (s.backward_tail_ps < 0 || s.backward_tail_ps > s.backward_ps || s.last_backward_tail_ps < 0 ||
        s.last_backward_tail_ps > s.last_backward_ps)
      throw InvalidProblem("a stage waits longer than its backward takes");
  }
  if (all > kLargestSum) throw InvalidProblem("a pipeline's step overflows 2^61 ps");
}

class Pipeline {
 public:
  Pipeline(PipelineSchedule schedule, const std::vector<StageTimes>& times, int64_t micro_batches,
           bool record)
      : times_(times), micro_batches_(micro_batches), record_(record), stages_(times.size()) {
    for (size_t i = 0; i < stages_.size(); ++i) {
      Stage& stage = stages_[i];
      stage.ahead = most_in_flight(schedule, static_cast<int64_t>(stages_.size()), static_cast<int64_t>(i),
                                   micro_batches);
      stage.activations.assign(static_cast<size_t>(micro_batches), i == 0 ? 0 : kNotYet);
      stage.gradients.assign(static_cast<size_t>(micro_batches), i + 1 == stages_.size() ? 0 : kNotYet);
    }
  }

  PlayedSchedule play() {
    // Each turn plays what has its input; a pass needs one of a neighbour that was played before it.
    for (bool played = true; played;) {
      played = false;
      for (size_t i = 0; i < stages_.size(); ++i)
        while (run(i)) played = true;
    }
    for (size_t i = 0; i < stages_.size(); ++i) {
      result_.step_ps = std::max(result_.step_ps, stages_[i].free_ps + times_[i].optimizer_ps);
      result_.busy_ps.push_back(stages_[i].busy_ps + times_[i].optimizer_ps);
    }
    std::stable_sort(result_.events.begin(), result_.events.end(),
                     [](const PassEvent& a, const PassEvent& b) { return a.begin_ps < b.begin_ps; });
    return std::move(result_);
  }

 private:
  static constexpr int64_t kNotYet = -1;
  struct Stage {
    int64_t ahead = 0;                            // forwards before the first backward
    int64_t forwards = 0, backwards = 0;          // done
    int64_t free_ps = 0, busy_ps = 0;             // until when it computes; of that, in passes
    int64_t sends_free_ps[2] = {0, 0};            // its links': to the next stage, to the one before
    std::vector<int64_t> activations, gradients;  // when those of a micro-batch are here
  };

  // The stage's next pass, if its input is here.
  bool run(size_t i) {
    Stage& stage = stages_[i];
    if (stage.backwards == micro_batches_) return false;
    const bool forward = stage.forwards < std::min(micro_batches_, stage.backwards + stage.ahead);
    int64_t& done = forward ? stage.forwards : stage.backwards;
    const int64_t micro = done;
    const int64_t here = (forward ? stage.activations : stage.gradients)[static_cast<size_t>(micro)];
    if (here == kNotYet) return false;
    const int64_t ps = forward ? forward_ps(i, micro) : backward_ps(i, micro);
    const int64_t begin = std::max(stage.free_ps, here);
    stage.free_ps = begin + ps, stage.busy_ps += ps;
    ++done;
    if (record_)
      result_.events.push_back({static_cast<int>(i), static_cast<int>(micro), forward, begin, stage.free_ps});
    send(i, micro, forward);
    return true;
  }

  int64_t forward_ps(size_t i, int64_t micro) const {
    return micro == 0 ? times_[i].first_forward_ps : times_[i].forward_ps;
  }
  int64_t backward_ps(size_t i, int64_t micro) const {
    return micro + 1 == micro_batches_ ? times_[i].last_backward_ps : times_[i].backward_ps;
  }

  int64_t tail_ps(size_t i, int64_t micro) const {
    return micro + 1 == micro_batches_ ? times_[i].last_backward_tail_ps : times_[i].backward_tail_ps;
  }

  void send(size_t i, int64_t micro, bool forward) {
    if (forward ? i + 1 == stages_.size() : i == 0) return;
    Stage &from = stages_[i], &to = stages_[forward ? i + 1 : i - 1];
    int64_t& link = from.sends_free_ps[forward ? 0 : 1];
    const int64_t tail = forward ? 0 : tail_ps(i, micro);
    link = std::max(link, from.free_ps - tail) +
           (forward ? times_[i].send_activations_ps : times_[i].send_gradients_ps);
    (forward ? to.activations : to.gradients)[static_cast<size_t>(micro)] = link;
  }

  const std::vector<StageTimes>& times_;
  const int64_t micro_batches_;
  const bool record_;
  std::vector<Stage> stages_;
  PlayedSchedule result_;
};

}  // namespace

int64_t most_in_flight(PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t micro_batches) {
  if (micro_batches < stages) schedule = PipelineSchedule::GPipe;
  return schedule == PipelineSchedule::GPipe ? micro_batches : stages - stage;
}

PlayedSchedule play_schedule(PipelineSchedule schedule, const std::vector<StageTimes>& stages,
                             int64_t micro_batches, bool record) {
  check(stages, micro_batches);
  return Pipeline(schedule, stages, micro_batches, record).play();
}

}  // namespace osdp::search
