#include "search/simulate.hpp"

#include <algorithm>
#include <deque>

#include "search/problem.hpp"

namespace osdp::search {
namespace {

using Kind = Instruction::Kind;
constexpr int64_t kMostAhead = 16;  // units gathered ahead, unless `prefetch` is more

class Player {
 public:
  Player(const Step& step, int64_t stolen_permille)
      : step_(step),
        stolen_permille_(stolen_permille),
        program_(make_program(step)),
        units_(step.units.size()) {
    note_memory(step.held_bytes);
    for (const StepOperator& o : step.operators) note_memory(o.resident_bytes);
    result_.memory = {{0, held_}};
    for (const StepUnit& u : step.units) {
      largest_bytes_ = std::max(largest_bytes_, u.full_bytes);
      all_kept_ &= u.keeps;
    }
  }

  PlayedStep play() {
    while (true) {
      begin_communication();
      int64_t done = -1;
      while (done != done_ && !computing()) {  // tasks that take no time let it go on at once
        done = done_;
        run_to_work();
        begin_communication();
      }
      if (!computing() && lane_.empty()) break;
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
    int64_t ticket = 0;  // while Gathering
  };
  struct Task {
    StepEvent event;
    int64_t left_ps = 0;                       // of its time alone
    int64_t factor_permille = 1000;            // how many times as long it takes beside computation
    int64_t begins_bytes = 0, ends_bytes = 0;  // memory that its beginning and its end bring
    bool running = false;
  };

  bool computing() const { return left_ps_ > 0; }

  // --- the thread that computes

  // Instructions that take no time, up to one that does or has to wait.
  void run_to_work() {
    while (left_ps_ == 0 && next_ < program_.instructions.size()) {
      const Instruction& i = program_.instructions[next_];
      if (!run(i)) return;
      ++next_;
    }
  }

  // False: it has to wait.
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
        return release(i.what);
      case Kind::Reduce:
        reduce(i);
        return true;
      case Kind::ReduceBucket: {
        const StepBucket& b = step_.buckets[i.what];
        if (b.reduce.alone_ps > 0)
          submit({StepEvent::Kind::ReduceBucket, i.phase, i.what}, b.reduce, b.buffer_bytes, -b.buffer_bytes);
        return true;
      }
      case Kind::AwaitReduction:
        return done_ >= last_reduction_;
      case Kind::AwaitCommunication:
        return done_ == submitted_;
    }
    return true;
  }

  bool use(const Instruction& i) {
    if (!asked_) {
      asked_ = true;
      if (units_[i.what].state == State::Sharded) gather(i.what, i.phase);
      gather_ahead(i);
    }
    if (!arrived(i.what)) return false;
    asked_ = false;
    return true;
  }

  // As the runtime does: the unit in use and the next in the memory of 1 + `prefetch` of the largest size; a
  // forward that keeps all units (SHARD_GRAD_OP) needs no such limit.
  void gather_ahead(const Instruction& i) {
    const bool kept = all_kept_ && i.phase == StepPhase::Forward;
    int128 sum = step_.units[i.what].full_bytes;
    for (int64_t ahead = 1; ahead <= (step_.prefetch > 0 ? std::max(step_.prefetch, kMostAhead) : 0);
         ++ahead) {
      const int next = program_.order[i.position + static_cast<size_t>(ahead)];
      if (next < 0) break;
      sum += step_.units[next].full_bytes;
      if (!kept && ahead > step_.prefetch && sum > (1 + static_cast<int128>(step_.prefetch)) * largest_bytes_)
        break;
      if (units_[next].state == State::Sharded) gather(next, i.phase);
    }
  }

  bool arrived(int unit) {
    Unit& u = units_[unit];
    if (u.state == State::Gathering && done_ >= u.ticket) u.state = State::Gathered;
    return u.state != State::Gathering;
  }

  void gather(int unit, StepPhase phase) {
    const StepUnit& u = step_.units[unit];
    units_[unit].state = State::Gathering;
    submit({StepEvent::Kind::Gather, phase, unit}, u.gather, u.full_bytes, 0);
    units_[unit].ticket = submitted_;
  }

  bool release(int unit) {
    if (!arrived(unit)) return false;
    if (units_[unit].state == State::Gathered) note_memory(-step_.units[unit].full_bytes);
    units_[unit].state = State::Sharded;
    return true;
  }

  void reduce(const Instruction& i) {
    const StepUnit& u = step_.units[i.what];
    submit({StepEvent::Kind::Reduce, i.phase, i.what}, u.reduce, u.kept_gradient_bytes,
           -u.gradient_bytes - (i.adds ? u.kept_gradient_bytes : 0));
    last_reduction_ = submitted_;
  }

  // --- the lane

  void submit(StepEvent event, const LaneTime& time, int64_t begins_bytes, int64_t ends_bytes) {
    // What it steals it must have time for: no less than all of computation's.
    int128 factor = time.alone_ps == 0
                        ? 1000
                        : (static_cast<int128>(time.beside_ps) * 1000 + time.alone_ps - 1) / time.alone_ps;
    factor = std::clamp<int128>(factor, std::max<int64_t>(1000, stolen_permille_), kLargestSum);
    lane_.push_back({event, time.alone_ps, static_cast<int64_t>(factor), begins_bytes, ends_bytes, false});
    ++submitted_;
  }

  void begin_communication() {
    while (!lane_.empty() && !lane_.front().running) {
      Task& task = lane_.front();
      task.running = true;
      task.event.begin_ps = now_;
      note_memory(task.begins_bytes);
      if (task.left_ps > 0) return;
      end_communication();
    }
  }

  void end_communication() {
    Task& task = lane_.front();
    task.event.end_ps = now_;
    note_memory(task.ends_bytes);
    result_.events.push_back(task.event);
    lane_.pop_front();
    ++done_;
  }

  // --- time

  // To the end of whatever ends first.
  void advance() {
    const bool communicating = !lane_.empty();
    const bool both = computing() && communicating;
    const int64_t factor = both ? lane_.front().factor_permille : 1000;
    const int64_t share = both ? factor - stolen_permille_ : 1000;  // of `factor`: what computation gets
    const int128 until_communicated = communicating ? scaled_up(lane_.front().left_ps, factor, 1000) : 0;
    const bool moves = share > 0;
    const int128 until_computed = moves ? scaled_up(left_ps_, factor, share) : until_communicated + 1;
    const int128 passed = both ? std::min(until_computed, until_communicated)
                               : (communicating ? until_communicated : until_computed);
    if (now_ + passed > kLargestSum) throw InvalidProblem("a step's time overflows 2^61 ps");
    now_ += static_cast<int64_t>(passed);
    const auto part = static_cast<int64_t>(passed);
    if (both) {
      result_.both_ps += part;
    } else if (communicating) {
      result_.only_communicating_ps += part;
    } else {
      (computed_.phase == StepPhase::Optimizer ? result_.optimizer_ps : result_.only_computing_ps) += part;
    }
    const bool lane_ends = communicating && until_communicated == passed;
    if (communicating && !lane_ends) {
      lane_.front().left_ps -= static_cast<int64_t>(passed * 1000 / factor);
    }
    if (computing()) {
      left_ps_ = until_computed == passed ? 0 : left_ps_ - static_cast<int64_t>(passed * share / factor);
      if (left_ps_ == 0) {
        computed_.end_ps = now_;
        result_.events.push_back(computed_);
      }
    }
    if (lane_ends) end_communication();
  }

  static int128 scaled_up(int64_t ps, int64_t by, int64_t of) {
    return (static_cast<int128>(ps) * by + of - 1) / of;
  }

  void note_memory(int64_t bytes) {
    held_ += bytes;  // each within 2^61
    if (held_ > kLargestSum || held_ < -kLargestSum)
      throw InvalidProblem("a step's memory overflows 2^61 bytes");
    result_.peak_bytes = std::max(result_.peak_bytes, held_);
    auto& points = result_.memory;
    if (bytes == 0 && !points.empty()) return;
    if (!points.empty() && points.back().time_ps == now_ && points.back().bytes <= held_) {
      points.back().bytes = held_;  // of several at one moment, rising ones are one
    } else {
      points.push_back({now_, held_});
    }
  }

  const Step& step_;
  const int64_t stolen_permille_;
  const Program program_;
  std::vector<Unit> units_;
  std::deque<Task> lane_;
  PlayedStep result_;
  StepEvent computed_;
  size_t next_ = 0;
  int64_t left_ps_ = 0;  // of the computation under way
  bool asked_ = false;   // the unit of the instruction under way was asked for
  int64_t now_ = 0, held_ = 0, largest_bytes_ = 0;
  bool all_kept_ = true;
  int64_t submitted_ = 0, done_ = 0, last_reduction_ = 0;  // tasks, counted from 1
};

}  // namespace

PlayedStep play(const Step& step, int64_t stolen_permille) {
  if (stolen_permille < 0 || stolen_permille > 1000000) {
    throw InvalidProblem(
        "what communication steals of computation must be from 0 to 1000 times its own time");
  }
  return Player(step, stolen_permille).play();
}

}  // namespace osdp::search
