#include "search/pipeline/schedule.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "search/pipeline/passes.hpp"
#include "search/pipeline/shared_cores.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

constexpr int64_t kMostPasses = int64_t{1} << 24, kMostSpeed = 1'000'000;

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

// Each stage on cores of its own: a pass takes its time whatever the others do.
class Pipeline {
 public:
  Pipeline(Passes passes, const std::vector<StageTimes>& times, bool record)
      : passes_(std::move(passes)), times_(times), record_(record), stages_(times.size()) {}

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
  struct Stage {
    int64_t free_ps = 0, busy_ps = 0;  // until when it computes; of that, in passes
  };

  // The stage's next pass, if its input is sent.
  bool run(size_t i) {
    if (passes_.ended(i)) return false;
    const std::optional<Passes::Pass> pass = passes_.next(i);
    if (!pass) return false;
    Stage& stage = stages_[i];
    const int64_t begin = std::max(stage.free_ps, pass->here_ps);
    stage.free_ps = begin + pass->ps, stage.busy_ps += pass->ps;
    passes_.begin(i, *pass);
    if (record_)
      result_.events.push_back(
          {static_cast<int>(i), static_cast<int>(pass->micro_batch), pass->forward, begin, stage.free_ps});
    passes_.send(i, *pass, stage.free_ps - pass->tail_ps);
    return true;
  }

  Passes passes_;
  const std::vector<StageTimes>& times_;
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
                             int64_t micro_batches, bool record, const SharedCores& cores) {
  check(stages, micro_batches);
  const bool valid = !cores.empty() && cores.back() == 1000 &&
                     std::ranges::all_of(cores, [](int64_t s) { return 1000 <= s && s <= kMostSpeed; });
  if (!valid) throw InvalidProblem("stages that share cores have a speed below that of all of them, or none");
  Passes passes(schedule, stages, micro_batches);
  if (std::ranges::any_of(cores, [](int64_t s) { return s > 1000; }))
    return play_on_shared_cores(std::move(passes), stages, cores, record);
  return Pipeline(std::move(passes), stages, record).play();
}

}  // namespace osdp::search
