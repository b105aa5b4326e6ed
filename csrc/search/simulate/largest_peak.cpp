#include "search/simulate/largest_peak.hpp"

#include <algorithm>
#include <deque>
#include <utility>

#include "search/simulate/runtime_rules.hpp"

namespace osdp::search {
namespace {

using Kind = Instruction::Kind;

// Tasks that may be in flight: from the first that nothing has waited for to the last submitted.
class OpenTasks {
 public:
  // Bytes allocated at the task's begin and at its end, and those needed at its begin for a moment only.
  void submit(int64_t begins, int64_t ends, int64_t copied) {
    open_.push_back({begins, ends, copied});
    ++submitted_;
    add(open_.back());
  }
  size_t submitted() const { return submitted_; }
  size_t awaited() const { return submitted_ - open_.size(); }

  // Completes the first `tasks`; returns the bytes that they have allocated.
  int64_t wait(size_t tasks) {
    int64_t bytes = 0;
    if (awaited() >= tasks) return bytes;
    for (; awaited() < tasks; open_.pop_front()) bytes += open_.front().begins + open_.front().ends;
    sum_ = most_ = 0;
    for (const Task& task : open_) add(task);
    return bytes;
  }

  // The most bytes that the open tasks may have allocated.
  int64_t most() const { return most_; }

 private:
  struct Task {
    int64_t begins, ends, copied;
  };
  void add(const Task& task) {
    most_ = std::max(most_, sum_ + task.begins + task.copied);
    sum_ += task.begins + task.ends;
    most_ = std::max(most_, sum_);
  }

  std::deque<Task> open_;
  size_t submitted_ = 0;
  int64_t sum_ = 0, most_ = 0;  // of open_
};

// When backward requests a unit whose module is called several times: see Note [Peaks of every timing].
enum class Repeated { AtFirstCall, AtBegin };

class Walker {
 public:
  Walker(const Step& step, const Program& program, Repeated repeated)
      : step_(step),
        program_(program),
        repeated_(repeated),
        rules_(step, program_),
        units_(step.units.size()) {
    hold(step.held_bytes);
    for (const StepOperator& o : step.operators) hold(o.resident_bytes);
  }

  int64_t walk(int64_t enough) {
    for (const Instruction& i : program_.instructions) {
      if (peak_ > enough) break;
      run(i);
    }
    return peak_;
  }

 private:
  struct Unit {
    bool gathered = false;  // or being gathered
    bool second = false;    // what came from other hosts is there, or on its way
    size_t ticket = 0;      // number of the lane's tasks until it is gathered
  };
  struct Leaving {
    size_t ticket;
    int64_t bytes;
  };

  void run(const Instruction& i) {
    const bool passes = (i.phase == StepPhase::Forward) != (phase_ == StepPhase::Forward);
    if (passes) give_back();
    phase_ = i.phase;
    if (passes && phase_ != StepPhase::Forward && repeated_ == Repeated::AtBegin) use_repeated();
    switch (i.kind) {
      case Kind::Compute:
        return;
      case Kind::Memory:
        return hold(i.bytes);
      case Kind::Use:
        return use(i);
      case Kind::Release:
        if (!units_[i.what].gathered) return drop_second(i);
        wait(gathers_, units_[i.what].ticket);
        drop_second(i);
        units_[i.what].gathered = false;
        gathered_.release(step_.units[i.what]);
        idle_ += step_.units[i.what].full_bytes;  // still held
        return;
      case Kind::Reduce:
        return reduce(i);
      case Kind::ReduceBucket:
        return reduce_bucket(i);
      case Kind::AwaitReduction:
        return await_reductions(last_reduction_);
      case Kind::AwaitCommunication:
        wait(gathers_, gathers_.submitted());
        await_reductions(reductions_.submitted());
        while (!waiting_.empty()) hold(-over());
        return;
    }
  }

  void use(const Instruction& i) {
    gather(i.what);
    rules_.gather_ahead(i, [this](int next) { gather(next); });
    give_back();  // if nothing was gathered
    wait(gathers_, units_[i.what].ticket);
  }

  // The last of several calls of a module may end the forward: see Note [Peaks of every timing].
  void use_repeated() {
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
      if (step_.units[u].repeats == 1 || step_.units[u].slice) continue;
      gather(u);
      wait(gathers_, units_[u].ticket);
    }
  }

  void gather(int unit) {
    Unit& u = units_[unit];
    if (u.gathered) return;
    const StepUnit& of = step_.units[unit];
    const int64_t second = std::exchange(u.second, of.second_bytes > 0) ? 0 : of.second_bytes;
    submit_with_memory(gathers_, of.full_bytes + of.brought_bytes + second - std::exchange(idle_, 0),
                       -of.brought_bytes, of.packed_bytes);
    u.gathered = true, u.ticket = gathers_.submitted();
    gathered_.gather(step_.units[unit]);
  }

  void drop_second(const Instruction& i) {
    if (i.phase == StepPhase::Backward && std::exchange(units_[i.what].second, false))
      hold(-step_.units[i.what].second_bytes);
  }

  void reduce(const Instruction& i) {
    const StepUnit& u = step_.units[i.what];
    give_back();
    while (!rules_.may_leave(i.what, leaving_bytes_, gathered_.bytes()))
      await_reductions(leaving_.front().ticket);
    ReductionMemory m = memory_of(u, i.adds, step_.lanes.enqueue);
    if (step_.lanes.enqueue) reduced_bytes_ -= std::exchange(m.ends, 0);
    if (m.waits > 0) {
      if (waiting_.size() == kMostWaiting) m.begins -= over();
      waiting_.push_back(m.waits);
    }
    submit_with_memory(reductions_, m.begins, m.ends, m.copied);
    last_reduction_ = reductions_.submitted();
    leaving_.push_back({last_reduction_, u.full_bytes});
    leaving_bytes_ += u.full_bytes;
  }

  // The first average that waits is over; returns the bytes that it frees.
  int64_t over() {
    const int64_t bytes = waiting_.front();
    waiting_.pop_front();
    return bytes;
  }

  void reduce_bucket(const Instruction& i) {
    const StepBucket& b = step_.buckets[i.what];
    const BucketMemory m = memory_of(b, i.adds);
    if (b.reduce.alone_ps == 0) return hold(m.begins + m.ends);
    if (b.cast_bytes > 0) await(last_bucket_);
    // On streams autograd still has the gradient that completes the bucket while all of this is allocated.
    const int64_t last = step_.lanes.enqueue ? completing_bytes(b) : 0;
    hold(last);
    submit(reductions_, m.begins, m.ends, m.copied);
    hold(-last);
    last_bucket_ = reductions_.submitted();
  }

  int64_t completing_bytes(const StepBucket& b) const {
    const int first = *std::min_element(b.members.begin(), b.members.end());
    return step_.operators[first].cast_gradient_bytes;
  }

  void give_back() { hold(-std::exchange(idle_, 0)); }

  void await_reductions(size_t tasks) {
    await(tasks);
    hold(-std::exchange(reduced_bytes_, 0));
  }
  void await(size_t tasks) {
    wait(reductions_, tasks);
    while (!leaving_.empty() && leaving_.front().ticket <= reductions_.awaited()) {
      leaving_bytes_ -= leaving_.front().bytes;
      leaving_.pop_front();
    }
  }

  // On streams memory is allocated at submission; buckets have the lane's own buffer.
  void submit_with_memory(OpenTasks& lane, int64_t begins, int64_t ends, int64_t copied) {
    if (step_.lanes.enqueue) {
      hold(std::exchange(begins, 0) + copied);
      hold(-std::exchange(copied, 0));
    }
    submit(lane, begins, ends, copied);
  }
  void submit(OpenTasks& lane, int64_t begins, int64_t ends, int64_t copied) {
    lane.submit(begins, ends, copied);
    note_peak();
  }
  void wait(OpenTasks& lane, size_t tasks) { held_ += lane.wait(tasks); }

  void hold(int64_t bytes) {
    held_ += bytes;  // each within 2^61
    if (held_ > kLargestSum || held_ < -kLargestSum)
      throw InvalidProblem("a step's memory overflows 2^61 bytes");
    if (bytes > 0) note_peak();
  }
  void note_peak() {
    int128 most = static_cast<int128>(held_) + main_.most();
    if (step_.lanes.separate_reductions) most += beside_.most();
    if (most > kLargestSum) throw InvalidProblem("a step's memory overflows 2^61 bytes");
    peak_ = std::max(peak_, static_cast<int64_t>(most));
  }

  const Step& step_;
  const Program& program_;
  const Repeated repeated_;
  const RuntimeRules rules_;
  std::vector<Unit> units_;
  OpenTasks main_, beside_;
  OpenTasks& gathers_ = main_;
  OpenTasks& reductions_ = step_.lanes.separate_reductions ? beside_ : main_;
  GatheredBytes gathered_;
  std::deque<Leaving> leaving_;
  std::deque<int64_t> waiting_;  // rows of averages between hosts: Note [Means that wait for other hosts]
  int64_t leaving_bytes_ = 0;    // full bytes of units whose reductions nothing has waited for
  int64_t reduced_bytes_ = 0;    // on streams: freed after the next wait for reductions
  size_t last_reduction_ = 0, last_bucket_ = 0;
  int64_t idle_ = 0;  // of `held_`: released units' memory, kept for the next gather
  StepPhase phase_ = StepPhase::Forward;
  int64_t held_ = 0, peak_ = 0;
};

}  // namespace

LargestPeak::LargestPeak(const Step& step) : step_(step), after_use_(make_program(step)) {
  const bool either = std::any_of(step.operators.begin(), step.operators.end(), [&](const StepOperator& o) {
    return o.block >= 0 && step.blocks[o.block].bare_end;
  });
  repeats_ = std::any_of(step.units.begin(), step.units.end(),
                         [](const StepUnit& u) { return u.repeats > 1 && !u.slice; });
  if (either) before_use_ = make_program(step, Recomputation::BeforeUse);
}

int64_t LargestPeak::find(int64_t enough) const {
  int64_t peak = 0;
  for (const Program* program : {&after_use_, before_use_ ? &*before_use_ : nullptr}) {
    for (const Repeated repeated : {Repeated::AtFirstCall, Repeated::AtBegin}) {
      if (!program || (repeated == Repeated::AtBegin && !repeats_) || peak > enough) continue;
      peak = std::max(peak, Walker(step_, *program, repeated).walk(enough));
    }
  }
  return peak;
}

}  // namespace osdp::search
