// The most that a step may hold, found by trying: at each instruction the lanes are let run, task by task, as
// far as they may be by then.
//
// Note [What play does not try]
// A played step (simulate/simulate.hpp) has one order for what takes no time, so no durations make it hold
// what a real one may: computation goes on before a lane begins what was just submitted; released memory is
// given back at once, where the runtime keeps it for the next gather; copies of two lanes are never there at
// the same time; a block with a bare end is recomputed after its last unit's request; and on streams the
// gradient that completes a bucket is gone when the bucket is packed. Of 400 random steps that kept 20% from
// their largest peak under any of 4,000 timings.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "search/simulate/runtime_rules.hpp"

namespace osdp::search {

class AnyTiming {
 public:
  // `early`: units of modules that are called several times are gathered when backward begins.
  AnyTiming(const Step& step, const Program& program, bool early)
      : step_(step), program_(program), early_(early), rules_(step, program), units_(step.units.size()) {
    held_ = step.held_bytes;
    for (const StepOperator& o : step.operators) held_ += o.resident_bytes;
  }

  int64_t largest_peak() {
    look();
    bool forward = true;
    for (const Instruction& i : program_.instructions) {
      if (forward != (i.phase == StepPhase::Forward)) {
        add(-std::exchange(kept_, 0));
        forward = !forward;
        if (!forward && early_) gather_repeated();
      }
      run(i);
      look();
    }
    return peak_;
  }

 private:
  using Kind = Instruction::Kind;
  struct Task {
    int64_t begins, copied, ends, leaves;  // `leaves`: full bytes of the unit whose gradients it sends
  };
  struct Lane {
    std::vector<Task> tasks;
    size_t done = 0;
  };
  struct Unit {
    bool there = false, second = false;
    size_t by = 0;  // the main lane's tasks until it is
  };

  void run(const Instruction& i) {
    if (i.kind == Kind::Memory) add(i.bytes);
    if (i.kind == Kind::Use) use(i);
    if (i.kind == Kind::Release) {
      finish(main_, units_[i.what].by);
      if (i.phase == StepPhase::Backward && std::exchange(units_[i.what].second, false))
        add(-step_.units[i.what].second_bytes);
    }
    if (i.kind == Kind::Release && units_[i.what].there) {
      units_[i.what].there = false, gathered_.release(step_.units[i.what]);
      kept_ += step_.units[i.what].full_bytes;
    }
    if (i.kind == Kind::Reduce) reduce(i);
    if (i.kind == Kind::ReduceBucket) reduce_bucket(i);
    if (i.kind == Kind::AwaitReduction) wait_for_reductions(reduction_);
    if (i.kind == Kind::AwaitCommunication) {
      finish(main_, main_.tasks.size());
      wait_for_reductions(reductions().tasks.size());
      for (const int64_t rows : waiting_) add(-rows);
      waiting_.clear();
    }
  }

  Lane& reductions() { return step_.lanes.separate_reductions ? second_ : main_; }

  void use(const Instruction& i) {
    gather(i.what);
    rules_.gather_ahead(i, [&](int next) { gather(next); });
    add(-std::exchange(kept_, 0));
    finish(main_, units_[i.what].by);
  }

  // The last of a module's calls may be what backward begins with.
  void gather_repeated() {
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
      if (step_.units[u].repeats == 1 || step_.units[u].slice) continue;
      gather(u);
      finish(main_, units_[u].by);
    }
  }

  void gather(int unit) {
    const StepUnit& u = step_.units[unit];
    if (units_[unit].there) return;
    const int64_t from_hosts = units_[unit].second ? 0 : u.second_bytes;
    submit(main_,
           {u.full_bytes + u.brought_bytes + from_hosts - std::exchange(kept_, 0), u.packed_bytes,
            -u.brought_bytes, 0},
           step_.lanes.enqueue);
    units_[unit] = {true, u.second_bytes > 0, main_.tasks.size()};
    gathered_.gather(u);
  }

  void reduce(const Instruction& i) {
    const StepUnit& u = step_.units[i.what];
    add(-std::exchange(kept_, 0));
    while (!rules_.may_leave(i.what, leaving_, gathered_.bytes())) {
      while (reductions().tasks[reductions().done].leaves == 0) finish(reductions(), reductions().done + 1);
      wait_for_reductions(reductions().done + 1);
    }
    ReductionMemory m = memory_of(u, i.adds, step_.lanes.enqueue);
    if (step_.lanes.enqueue) later_ += std::exchange(m.ends, 0);  // freed after the next wait
    leaving_ += u.full_bytes;
    if (m.waits > 0) {
      waiting_.push_back(m.waits);
      if (waiting_.size() > 2) {  // the reduction begins when the first average is over
        m.begins -= waiting_.front();
        waiting_.erase(waiting_.begin());
      }
    }
    submit(reductions(), {m.begins, m.copied, m.ends, u.full_bytes}, step_.lanes.enqueue);
    reduction_ = reductions().tasks.size();
  }

  void reduce_bucket(const Instruction& i) {
    const StepBucket& b = step_.buckets[i.what];
    const BucketMemory m = memory_of(b, i.adds);
    if (b.reduce.alone_ps == 0) return add(m.begins + m.ends);
    if (b.cast_bytes > 0) finish(reductions(), bucket_);
    const int first = *std::min_element(b.members.begin(), b.members.end());
    const int64_t completing = step_.lanes.enqueue ? step_.operators[first].cast_gradient_bytes : 0;
    add(completing);
    submit(reductions(), {m.begins, m.copied, m.ends, 0}, false);
    add(-completing);
    bucket_ = reductions().tasks.size();
  }

  // On streams a task's memory is taken by computation, when it submits it.
  void submit(Lane& lane, Task task, bool by_computation) {
    if (by_computation) {
      add(std::exchange(task.begins, 0) + task.copied);
      add(-std::exchange(task.copied, 0));
    }
    lane.tasks.push_back(task);
    look();
  }

  void finish(Lane& lane, size_t tasks) {
    for (; lane.done < tasks; ++lane.done) {
      held_ += lane.tasks[lane.done].begins + lane.tasks[lane.done].ends;
      leaving_ -= lane.tasks[lane.done].leaves;
    }
  }

  void wait_for_reductions(size_t tasks) {
    finish(reductions(), tasks);
    add(std::exchange(later_, 0));
  }

  void add(int64_t bytes) {
    held_ += bytes;
    look();
  }

  // What a lane's open tasks may hold: none begun, and of each its begin, the time after its copies, and its
  // end.
  static std::vector<int64_t> states(const Lane& lane) {
    std::vector<int64_t> found = {0};
    int64_t sum = 0;
    for (size_t t = lane.done; t < lane.tasks.size(); ++t) {
      sum += lane.tasks[t].begins;
      found.push_back(sum + lane.tasks[t].copied);
      found.push_back(sum);
      found.push_back(sum += lane.tasks[t].ends);
    }
    return found;
  }

  void look() {
    for (const int64_t main : states(main_))
      for (const int64_t second : states(second_)) peak_ = std::max(peak_, held_ + main + second);
  }

  const Step& step_;
  const Program& program_;
  const bool early_;
  const RuntimeRules rules_;
  std::vector<Unit> units_;
  Lane main_, second_;
  GatheredBytes gathered_;
  size_t reduction_ = 0, bucket_ = 0;  // tasks of their lane until the last one submitted is over
  std::vector<int64_t> waiting_;       // rows of averages between hosts
  int64_t leaving_ = 0, later_ = 0;
  int64_t kept_ = 0;  // released memory, kept for the next gather
  int64_t held_ = 0, peak_ = 0;
};

}  // namespace osdp::search
