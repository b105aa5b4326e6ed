#include "search/simulate/simulate.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "search/problem/problem.hpp"
#include "search/simulate/runtime_rules.hpp"

namespace osdp::search {
namespace {

using Kind = Instruction::Kind;
constexpr int64_t kWhole = 1000000000;  // denominator of shares

class Player {
 public:
  Player(const Step& step, int64_t stolen_permille, Record record)
      : step_(step),
        stolen_permille_(stolen_permille),
        recorded_(record == Record::Everything),
        program_(make_program(step)),
        rules_(step, program_),
        units_(step.units.size()) {
    note_memory(step.held_bytes);
    for (const StepOperator& o : step.operators) note_memory(o.resident_bytes);
    if (recorded_) result_.memory = {{0, held_}};
  }

  PlayedStep play() {
    while (true) {
      begin_communication();
      size_t ended = events_ + 1;
      while (ended != events_ && !computing()) {  // tasks of zero duration end at once and may unblock it
        ended = events_;
        run_to_work();
        begin_communication();
      }
      if (!computing() && !communicating()) break;
      advance();
    }
    if (next_ < program_.instructions.size()) {
      throw std::logic_error("simulate: the program waits for what nothing will bring");
    }
    result_.step_ps = now_;
    std::stable_sort(result_.events.begin(), result_.events.end(),
                     [](const StepEvent& a, const StepEvent& b) { return a.begin_ps < b.begin_ps; });
    return std::move(result_);
  }

 private:
  enum class State { Sharded, Gathering, Gathered };
  struct Unit {
    State state = State::Sharded;
    size_t ticket = 0;    // while Gathering: number of the lane's tasks until it is gathered
    bool second = false;  // what came from other hosts is there
  };
  struct Task {
    StepEvent event;
    int64_t begins_bytes = 0, ends_bytes = 0;  // allocated at its begin and at its end
    int64_t copied_bytes = 0;                  // needed at its begin for a moment only
    int64_t left_ps = 0;                       // remaining time, in time alone
    Link link = Link::InsideHost;
    int64_t busy_permille = 0;    // fraction of its time alone in which its link is busy
    int64_t beside_permille = 0;  // its time beside computation over its time alone
    int64_t stolen = 0;           // computation time taken per time alone, in parts of kWhole
    bool running = false;
    int64_t waits_bytes = 0;  // of a reduction, freed by its average: Note [Means that wait for other hosts]
  };
  struct Lane {
    std::vector<Task> tasks;
    size_t done = 0;  // number of completed tasks; the next one is in progress
    bool idle() const { return done == tasks.size(); }
    bool running() const { return !idle() && current().running; }
    Task& current() { return tasks[done]; }
    const Task& current() const { return tasks[done]; }
  };
  enum : size_t { kMain, kReductions, kBetweenHosts, kLanes };

  bool computing() const { return left_ps_ > 0; }
  bool communicating() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return !l.idle(); });
  }

  // --- the computing thread

  // Executes instructions that take no time, up to one that takes time or has to wait.
  void run_to_work() {
    while (left_ps_ == 0 && next_ < program_.instructions.size()) {
      const Instruction& i = program_.instructions[next_];
      if (forward_ && (i.phase == StepPhase::Recompute || i.phase == StepPhase::Backward)) end_pass();
      if (!run(i)) return;
      ++next_;
    }
  }

  void end_pass() {
    result_.passes_ps.push_back(now_ - std::exchange(began_, now_));
    forward_ = !forward_;
  }

  // Returns false if it has to wait.
  bool run(const Instruction& i) {
    switch (i.kind) {
      case Kind::Compute:
        left_ps_ = i.ps;
        computed_ = {StepEvent::Kind::Compute, i.phase, i.what, now_, now_};
        return true;
      case Kind::Memory:
        note_memory(i.bytes);
        return true;
      case Kind::Use:
        return use(i);
      case Kind::Release:
        return release(i);
      case Kind::Reduce:
        return reduce(i);
      case Kind::ReduceBucket:
        return reduce_bucket(i);
      case Kind::AwaitReduction:
        return reductions_.done >= last_reduction_ && free_reduced();
      case Kind::AwaitCommunication:
        if (computed_ps_ < began_) computed_ps_ = now_;
        if (communicating()) return false;
        free_reduced();
        result_.tails_ps.push_back(now_ - computed_ps_);
        end_pass();
        result_.step_ps = now_;
        result_.ends.push_back(result_);
        computed_ps_ = -1;
        return true;
    }
    return true;
  }

  bool use(const Instruction& i) {
    if (!asked_) {
      asked_ = true;
      if (units_[i.what].state == State::Sharded) gather(i.what, i.phase);
      rules_.gather_ahead(i, [&](int next) {
        if (units_[next].state == State::Sharded) gather(next, i.phase);
      });
    }
    if (!arrived(i.what)) return false;
    asked_ = false;
    return true;
  }

  bool arrived(int unit) {
    Unit& u = units_[unit];
    if (u.state == State::Gathering && lanes_[kMain].done >= u.ticket) u.state = State::Gathered;
    return u.state != State::Gathering;
  }

  void gather(int unit, StepPhase phase) {
    const StepUnit& u = step_.units[unit];
    units_[unit].state = State::Gathering;
    gathered_.gather(u);
    const bool again = u.second_bytes > 0 && std::exchange(units_[unit].second, true);
    submit(lanes_[kMain], {StepEvent::Kind::Gather, phase, unit}, again ? u.gather_again : u.gather,
           u.full_bytes + u.brought_bytes + (again ? 0 : u.second_bytes), -u.brought_bytes, u.packed_bytes);
    units_[unit].ticket = lanes_[kMain].tasks.size();
  }

  bool release(const Instruction& i) {
    const int unit = i.what;
    if (!arrived(unit)) return false;
    if (i.phase == StepPhase::Backward && std::exchange(units_[unit].second, false))
      note_memory(-step_.units[unit].second_bytes);
    if (units_[unit].state == State::Sharded) return true;
    note_memory(-step_.units[unit].full_bytes);
    gathered_.release(step_.units[unit]);
    units_[unit].state = State::Sharded;
    return true;
  }

  // Returns false if it must wait until the reductions in flight fit the reserve
  // (csrc/runtime/step/unit_scheduler.cpp, Note [Gradients that leave]).
  bool reduce(const Instruction& i) {
    const StepUnit& u = step_.units[i.what];
    if (!rules_.may_leave(i.what, leaving_bytes_, gathered_.bytes())) return false;
    ReductionMemory m = memory_of(u, i.adds, step_.lanes.enqueue);
    if (step_.lanes.enqueue && m.waits > 0 && reserved_ >= kMostWaiting) return false;
    leaving_bytes_ += u.full_bytes;
    if (step_.lanes.enqueue) reduced_bytes_ -= std::exchange(m.ends, 0);
    LaneTime time = u.reduce;
    if (i.adds) time.alone_ps += u.further_ps, time.beside_ps += u.further_ps;
    submit(reductions_, {StepEvent::Kind::Reduce, i.phase, i.what}, time, m.begins, m.ends, m.copied);
    reductions_.tasks.back().waits_bytes = m.waits;
    if (step_.lanes.enqueue && m.waits > 0) ++reserved_;
    last_reduction_ = reductions_.tasks.size();
    return true;
  }

  // Under mixed precision a bucket waits for the one before it: returns false until that is over.
  bool reduce_bucket(const Instruction& i) {
    const StepBucket& b = step_.buckets[i.what];
    const BucketMemory m = memory_of(b, i.adds);
    if (b.reduce.alone_ps == 0) {
      note_memory(m.begins + m.ends);
      return true;
    }
    if (b.cast_bytes > 0 && reductions_.done < last_bucket_) return false;
    submit(reductions_, {StepEvent::Kind::ReduceBucket, i.phase, i.what}, b.reduce, m.begins, m.ends,
           m.copied);
    last_bucket_ = reductions_.tasks.size();
    return true;
  }

  // On streams reduced gradients are kept until computation has waited for the reduction.
  bool free_reduced() {
    note_memory(-std::exchange(reduced_bytes_, 0));
    return true;
  }

  // --- the lanes

  void submit(Lane& lane, StepEvent event, const LaneTime& time, int64_t begins_bytes, int64_t ends_bytes,
              int64_t copied_bytes = 0) {
    // On streams memory is allocated at submission; buckets use the lane's own buffer, one after the other.
    if (step_.lanes.enqueue && event.kind != StepEvent::Kind::ReduceBucket) {
      note_memory(std::exchange(begins_bytes, 0));
      note_moment(std::exchange(copied_bytes, 0));
    }
    // Latency is a wait and takes nothing from computation. A task lasts at least as long as the computation
    // time it takes.
    const auto stolen =
        static_cast<int64_t>(scaled_up(static_cast<int128>(stolen_permille_) * (kWhole / 1000),
                                       time.transfer_ps, std::max<int64_t>(time.alone_ps, 1)));
    lane.tasks.push_back({event, begins_bytes, ends_bytes, copied_bytes, time.alone_ps, time.link,
                          permille(time.transfer_ps - time.inside_ps, time.alone_ps),
                          std::max(permille(time.beside_ps, time.alone_ps), permille(stolen, kWhole)),
                          stolen});
  }

  void begin_communication() {
    for (Lane& lane : lanes_) {
      while (!lane.idle() && !lane.current().running) {
        Task& task = lane.current();
        if (!step_.lanes.enqueue && task.waits_bytes > 0) {
          if (reserved_ >= kMostWaiting) break;  // until an average is over
          ++reserved_;
        }
        task.running = true;
        task.event.begin_ps = now_;
        note_memory(task.begins_bytes);
        note_moment(task.copied_bytes);
        if (task.left_ps > 0) break;
        end_communication(lane);
      }
    }
  }

  void end_communication(Lane& lane) {
    // Copied, since submit() below may reallocate the tasks.
    StepEvent event = lane.current().event;
    event.end_ps = now_;
    note_memory(lane.current().ends_bytes);
    note_event(event);
    if (event.kind == StepEvent::Kind::Reduce) {
      const StepUnit& u = step_.units[event.what];
      const int64_t waits = lane.current().waits_bytes;
      leaving_bytes_ -= u.full_bytes;
      if (u.average.alone_ps > 0)
        submit(lanes_[kBetweenHosts], {StepEvent::Kind::Average, event.phase, event.what}, u.average, 0,
               -waits);
    }
    if (event.kind == StepEvent::Kind::Average && lane.current().ends_bytes < 0) --reserved_;
    ++lane.done;
  }

  // --- time

  // Rounded up.
  static int64_t permille(int128 part, int128 whole) {
    return whole == 0
               ? 1000
               : static_cast<int64_t>(std::min<int128>((part * 1000 + whole - 1) / whole, kLargestSum));
  }

  // The current slowdown of a task relative to running alone, in thousandths.
  int64_t slowdown(const Task& task) const {
    int64_t busy = 0;  // of its link
    for (const Lane& lane : lanes_)
      if (lane.running() && lane.current().link == task.link) busy += lane.current().busy_permille;
    const int128 factor = computing() ? task.beside_permille : 1000;
    return static_cast<int64_t>(
        std::clamp<int128>(factor * std::max<int64_t>(busy, 1000) / 1000, 1000, kLargestSum));
  }

  // Advances to the next end of a task or of the computation.
  void advance() {
    std::array<int64_t, kLanes> slow{};
    std::array<int128, kLanes> ends{};  // remaining time of its task at the current slowdown
    int128 share = kWhole;              // computation's share of time
    int128 passed = -1;
    for (size_t l = 0; l < kLanes; ++l) {
      if (!lanes_[l].running()) continue;
      const Task& task = lanes_[l].current();
      slow[l] = slowdown(task);
      share -= scaled_up(task.stolen, 1000, slow[l]);
      ends[l] = scaled_up(task.left_ps, slow[l], 1000);
      passed = passed < 0 ? ends[l] : std::min(passed, ends[l]);
    }
    const bool communicates = passed >= 0, both = computing() && communicates;
    const int128 until_computed = computing() && share > 0 ? scaled_up(left_ps_, kWhole, share) : -1;
    if (until_computed >= 0) passed = communicates ? std::min(passed, until_computed) : until_computed;
    if (now_ + passed > kLargestSum) throw InvalidProblem("a step's time overflows 2^61 ps");
    const auto part = static_cast<int64_t>(passed);
    now_ += part;
    if (both) {
      result_.both_ps += part;
    } else if (communicates) {
      result_.only_communicating_ps += part;
    } else {
      (computed_.phase == StepPhase::Optimizer ? result_.optimizer_ps : result_.only_computing_ps) += part;
    }
    if (computing()) {
      left_ps_ = until_computed == passed ? 0 : left_ps_ - std::max<int64_t>(0, part * share / kWhole);
      if (left_ps_ == 0) {
        computed_.end_ps = now_;
        note_event(computed_);
      }
    }
    for (size_t l = 0; l < kLanes; ++l) {
      if (slow[l] == 0) continue;
      Task& task = lanes_[l].current();
      task.left_ps -= static_cast<int64_t>(passed * 1000 / slow[l]);
      if (ends[l] == passed) end_communication(lanes_[l]);
    }
  }

  static int128 scaled_up(int128 ps, int128 by, int128 of) { return (ps * by + of - 1) / of; }

  void note_event(const StepEvent& event) {
    ++events_;
    if (recorded_) result_.events.push_back(event);
  }

  // Memory held for an instant only.
  void note_moment(int64_t bytes) {
    if (bytes == 0) return;
    note_memory(bytes);
    note_memory(-bytes);
  }

  void note_memory(int64_t bytes) {
    held_ += bytes;  // each within 2^61
    if (held_ > kLargestSum || held_ < -kLargestSum)
      throw InvalidProblem("a step's memory overflows 2^61 bytes");
    result_.peak_bytes = std::max(result_.peak_bytes, held_);
    if (!recorded_) return;
    auto& points = result_.memory;
    if (bytes == 0 && !points.empty()) return;
    if (!points.empty() && points.back().time_ps == now_ && points.back().bytes <= held_) {
      points.back().bytes = held_;  // successive increases at one time are merged
    } else {
      points.push_back({now_, held_});
    }
  }

  const Step& step_;
  const int64_t stolen_permille_;
  const bool recorded_;
  const Program program_;
  const RuntimeRules rules_;
  std::vector<Unit> units_;
  std::array<Lane, kLanes> lanes_;
  Lane& reductions_ = lanes_[step_.lanes.separate_reductions ? kReductions : kMain];
  PlayedStep result_;
  size_t events_ = 0;  // completed ones
  StepEvent computed_;
  size_t next_ = 0;
  int64_t left_ps_ = 0;  // of the computation in progress
  bool asked_ = false;   // the current instruction's unit has been requested
  int64_t now_ = 0, held_ = 0;
  bool forward_ = true;       // the pass
  int64_t began_ = 0;         // when it did
  int64_t computed_ps_ = -1;  // when its computation ended; below `began_`: it has not
  GatheredBytes gathered_;
  int64_t leaving_bytes_ = 0;  // full bytes of units whose reductions are submitted and not over
  size_t reserved_ = 0;        // room for rows that wait for their average, at most kMostWaiting
  int64_t reduced_bytes_ = 0;  // on streams: freed after the next wait for reductions
  size_t last_bucket_ = 0;     // as last_reduction_, of buckets
  size_t last_reduction_ = 0;  // number of the lane's tasks until it is over
};

}  // namespace

PlayedStep play(const Step& step, int64_t stolen_permille, Record record) {
  if (stolen_permille < 0 || stolen_permille > 1000000) {
    throw InvalidProblem(
        "what communication steals of computation must be from 0 to 1000 times its own time");
  }
  return Player(step, stolen_permille, record).play();
}

}  // namespace osdp::search
