#include "search/pipeline/shared_cores.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class SharedPipeline {
 public:
  SharedPipeline(Passes passes, const std::vector<StageTimes>& times, const SharedCores& cores, bool record)
      : passes_(std::move(passes)), times_(times), cores_(cores), record_(record), stages_(times.size()) {
    result_.busy_ps.assign(times.size(), 0);
  }

  PlayedSchedule play() {
    for (;;) {
      for (size_t i = 0; i < stages_.size(); ++i)
        if (stages_[i].work == Work::Waits) begin(i);
      const int64_t next = next_ps();
      if (next == kNever) break;
      advance(next);
    }
    result_.step_ps = now_;
    return std::move(result_);
  }

 private:
  enum class Work { Waits, Computes, Reduces, Optimizes, Ended };
  struct Stage {
    Work work = Work::Waits;
    int64_t left_ps = 0;       // of its work, where all stages of its host compute
    int64_t here_ps = kNever;  // when what it waits for is here, if that was sent
    size_t event = 0;
    Passes::Pass pass;
  };
  // What there is to do now, if anything is.
  void begin(size_t i) {
    Stage& stage = stages_[i];
    if (passes_.ended(i)) {
      stage.work = Work::Optimizes, stage.left_ps = times_[i].optimizer_ps;
      return;
    }
    const std::optional<Passes::Pass> pass = passes_.next(i);
    stage.here_ps = pass ? pass->here_ps : kNever;
    if (!pass || pass->here_ps > now_) return;
    passes_.begin(i, *pass);
    stage.pass = *pass, stage.work = Work::Computes, stage.left_ps = pass->ps - pass->tail_ps;
    if (record_) {
      stage.event = result_.events.size();
      result_.events.push_back(
          {static_cast<int>(i), static_cast<int>(pass->micro_batch), pass->forward, now_, now_});
    }
  }

  bool computes(size_t i) const { return stages_[i].work != Work::Waits && stages_[i].work != Work::Ended; }

  // Of the stages that compute on the host of stage i, in thousandths.
  int64_t speed(size_t i) const {
    const size_t n = cores_.size();
    const size_t first = i / n * n, end = std::min(first + n, stages_.size());
    size_t busy = 0;
    for (size_t other = first; other < end; ++other) busy += computes(other);
    return cores_[busy - 1];
  }

  int64_t next_ps() const {
    int64_t next = kNever;
    for (size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].work == Work::Waits && stages_[i].here_ps != kNever)
        next = std::min(next, stages_[i].here_ps);
      if (!computes(i)) continue;
      const int128 work = int128{1000} * stages_[i].left_ps, by = speed(i);
      next = std::min(next, now_ + static_cast<int64_t>((work + by - 1) / by));
    }
    return next;
  }

  void advance(int64_t until) {
    const int64_t ps = until - now_;
    std::vector<int64_t> done(stages_.size(), 0);
    for (size_t i = 0; i < stages_.size(); ++i)
      if (computes(i)) done[i] = static_cast<int64_t>(int128{ps} * speed(i) / 1000);
    now_ = until;
    for (size_t i = 0; i < stages_.size(); ++i) {
      if (!computes(i)) continue;
      result_.busy_ps[i] += ps;
      stages_[i].left_ps -= std::min(stages_[i].left_ps, done[i]);
      if (stages_[i].left_ps == 0) end(i);
    }
  }

  void end(size_t i) {
    Stage& stage = stages_[i];
    if (record_ && stage.work != Work::Optimizes) result_.events[stage.event].end_ps = now_;
    if (stage.work == Work::Computes) {
      passes_.send(i, stage.pass, now_);
      stage.work = Work::Reduces, stage.left_ps = stage.pass.tail_ps;
      if (stage.left_ps > 0) return;
    }
    stage.work = stage.work == Work::Optimizes ? Work::Ended : Work::Waits;
    stage.here_ps = kNever;
  }

  Passes passes_;
  const std::vector<StageTimes>& times_;
  const SharedCores cores_;
  const bool record_;
  int64_t now_ = 0;
  std::vector<Stage> stages_;
  PlayedSchedule result_;
};

}  // namespace

PlayedSchedule play_on_shared_cores(Passes passes, const std::vector<StageTimes>& times,
                                    const SharedCores& cores, bool record) {
  return SharedPipeline(std::move(passes), times, cores, record).play();
}

}  // namespace osdp::search
