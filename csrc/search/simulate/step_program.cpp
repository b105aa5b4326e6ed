#include "search/simulate/step_program.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

using Kind = Instruction::Kind;

constexpr int64_t kMostInstructions = int64_t{1} << 26;

// Where a slice is acquired.
std::vector<int> acquired_at(const StepUnit& slice) {
  if (slice.calls.empty()) return {slice.members.front()};
  std::vector<int> at;
  for (const Span& s : slice.calls) at.push_back(s.last);
  return at;
}

void check(const Step& step) {
  const auto within = [](int i, size_t n) { return i >= 0 && static_cast<size_t>(i) < n; };
  const auto check_members = [&](const std::string& name, const std::vector<int>& members) {
    if (members.empty()) throw InvalidProblem("unit '" + name + "' has no operator");
    for (int i : members) {
      if (!within(i, step.operators.size()))
        throw InvalidProblem("unit '" + name + "' has an unknown operator");
    }
  };
  const auto check_time = [](const std::string& name, const LaneTime& time) {
    if (time.alone_ps < 0 || time.beside_ps < time.alone_ps || time.beside_ps > kLargestSum) {
      throw InvalidProblem("unit '" + name +
                           "': a negative time, or one that computing beside it makes shorter");
    }
    if (time.transfer_ps < 0 || time.transfer_ps > time.alone_ps)
      throw InvalidProblem("unit '" + name + "': a link that is busy for longer than the collective");
  };
  const auto check_bytes = [](const std::string& name, std::initializer_list<int64_t> sizes) {
    for (int64_t bytes : sizes) {
      if (bytes < 0 || bytes > kLargestSum) throw InvalidProblem("'" + name + "': a size that is none");
    }
  };
  check_bytes("the model's input", {step.held_bytes});
  for (const StepBlock& b : step.blocks) check_bytes("a block's input", {b.input_bytes});
  for (const StepOperator& o : step.operators) {
    check_bytes(o.name, {o.resident_bytes, o.saved_bytes, o.work_bytes, o.forward_work_bytes,
                         o.recompute_work_bytes, o.whole_gradient_bytes, o.full_gradient_bytes,
                         o.slice_gradient_bytes, o.cast_gradient_bytes, o.slice_copy_bytes,
                         o.summed_gradient_bytes, o.whole_gradient_bytes - o.summed_gradient_bytes});
    const auto [least, most] = std::minmax({o.forward_ps, o.recompute_ps, o.backward_ps});
    if (least < 0 || most > kLargestSum || o.parts < 1) {
      throw InvalidProblem("operator '" + o.name + "': a time that is none, or no parts");
    }
    if (o.block >= 0 && !within(o.block, step.blocks.size())) {
      throw InvalidProblem("operator '" + o.name + "' is in an unknown block");
    }
  }
  std::vector<int64_t> slices(step.operators.size());
  for (const StepUnit& u : step.units) {
    check_members(u.name, u.members);
    check_time(u.name, u.gather);
    check_time(u.name, u.reduce);
    check_time(u.name, u.average);
    check_time(u.name, u.gather_again);
    if (u.further_ps < 0 || u.further_ps > kLargestSum)
      throw InvalidProblem("unit '" + u.name + "': a copy's time that is none");
    check_bytes(u.name, {u.full_bytes, u.gradient_bytes, u.kept_gradient_bytes, u.copied_bytes,
                         u.packed_bytes, u.mean_bytes, u.cast_bytes, u.host_gradient_bytes, u.brought_bytes,
                         u.second_bytes, u.of_host_bytes});
    for (const Span& s : u.calls) {
      if (!within(s.first, step.operators.size()) || !within(s.last, step.operators.size()) ||
          s.first > s.last) {
        throw InvalidProblem("unit '" + u.name + "' is gathered at an unknown operator");
      }
    }
    for (const int at : u.slice ? acquired_at(u) : std::vector<int>())
      if (++slices[at] > step.operators[at].parts)
        throw InvalidProblem("operator '" + step.operators[at].name + "' has more slices than parts");
    if (u.calls.empty() && !u.slice) throw InvalidProblem("unit '" + u.name + "' is gathered nowhere");
    if (u.repeats < 1 || u.repeats > 1000000) throw InvalidProblem("unit '" + u.name + "': repeats");
  }
  for (const StepBucket& b : step.buckets) {
    check_members(b.name, b.members);
    check_time(b.name, b.reduce);
    check_bytes(b.name, {b.buffer_bytes, b.cast_bytes, b.mean_bytes, b.further_bytes});
  }
  if (step.accumulation < 1 || step.prefetch < 0 || step.optimizer_ps < 0)
    throw InvalidProblem("accumulation, prefetch or optimizer of a step");
  // Upper estimate of the program's length.
  int128 instructions = 12 * static_cast<int128>(step.operators.size()) + 2 * step.buckets.size();
  for (const StepUnit& u : step.units)
    instructions += 12 + 8 * static_cast<int128>(u.calls.size()) * u.repeats;
  if (instructions * step.accumulation > kMostInstructions)
    throw InvalidProblem("a step of " + std::to_string(step.accumulation) +
                         " micro-batches is too long to be played");
}

// Lists of units or buckets by operator, in one allocation, since many steps are generated.
class ByOperator {
 public:
  struct Entry {
    int op, order, what;
  };
  // For each operator sorted by `order`, then in the given order.
  ByOperator(size_t operators, std::vector<Entry> entries) : first_(operators + 1) {
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.op != b.op ? a.op < b.op : a.order < b.order;
    });
    for (const Entry& e : entries) ++first_[e.op + 1], what_.push_back(e.what);
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
  }
  std::span<const int> operator[](int op) const {
    return {what_.data() + first_[op], what_.data() + first_[op + 1]};
  }

 private:
  std::vector<size_t> first_;
  std::vector<int> what_;
};

class Writer {
 public:
  Writer(const Step& step, Recomputation when)
      : step_(step),
        recomputation_(when),
        // Enclosing calls begin before and end after those inside them.
        begins_(step.operators.size(),
                calls([](const Span& s, int reach) { return Entry{s.first, -reach, 0}; })),
        ends_(step.operators.size(), calls([](const Span& s, int reach) { return Entry{s.last, reach, 0}; })),
        slices_(step.operators.size(), slice_uses()),
        rounds_(step.operators.size(), 1),
        completes_(step.operators.size(), units([](const StepUnit& u) { return !u.slice; })),
        fills_(step.operators.size(), buckets()),
        block_end_(step.blocks.size(), -1),
        block_begin_(step.blocks.size(), -1) {
    for (const StepUnit& u : step.units)
      for (const int at : u.slice ? acquired_at(u) : std::vector<int>())
        rounds_[at] = std::max(rounds_[at], u.repeats);
    for (int i = 0; i < static_cast<int>(step.operators.size()); ++i) {
      const int block = step.operators[i].block;
      if (block < 0) continue;
      if (block_begin_[block] < 0) block_begin_[block] = i;
      block_end_[block] = i;
    }
  }

  Program write() {
    program_.instructions.reserve(12 * step_.operators.size() * static_cast<size_t>(step_.accumulation));
    for (int64_t micro = 0; micro < step_.accumulation; ++micro) {
      accumulates_ = micro > 0, last_ = micro + 1 == step_.accumulation;
      forward();
      backward();
    }
    phase_ = StepPhase::Optimizer;
    compute(-1, step_.optimizer_ps);
    return std::move(program_);
  }

 private:
  using Entry = ByOperator::Entry;

  template <typename At>
  std::vector<Entry> calls(const At& at) const {
    std::vector<Entry> entries;
    for (int u = 0; u < static_cast<int>(step_.units.size()); ++u) {
      const StepUnit& unit = step_.units[u];
      if (unit.slice) continue;
      const int reach = unit.calls.back().last - unit.calls.front().first;
      for (const Span& s : unit.calls) entries.push_back(at(s, reach)), entries.back().what = u;
    }
    return entries;
  }
  template <typename Which>
  std::vector<Entry> units(const Which& which) const {
    std::vector<Entry> entries;
    for (int u = 0; u < static_cast<int>(step_.units.size()); ++u)
      if (which(step_.units[u])) entries.push_back({step_.units[u].members.front(), 0, u});
    return entries;
  }
  // By operator: calls one after the other, each with all slices.
  std::vector<Entry> slice_uses() {
    std::vector<Entry> entries;
    for (int u = 0; u < static_cast<int>(step_.units.size()); ++u) {
      const StepUnit& unit = step_.units[u];
      if (!unit.slice) continue;
      int order = 0;
      for (const int at : acquired_at(unit)) {
        uses_.push_back({u, order >= unit.look_ups});
        for (int64_t n = 0; n < unit.repeats; ++n)
          entries.push_back(
              {at, static_cast<int>(order * unit.repeats + n), static_cast<int>(uses_.size()) - 1});
        ++order;
      }
    }
    return entries;
  }
  std::vector<Entry> buckets() const {
    std::vector<Entry> entries;
    for (int b = 0; b < static_cast<int>(step_.buckets.size()); ++b)
      entries.push_back({step_.buckets[b].members.front(), 0, b});
    return entries;
  }

  Instruction& add(Kind kind, int what) {
    Instruction& i = program_.instructions.emplace_back();
    i.kind = kind, i.phase = phase_, i.what = what;
    return i;
  }
  void memory(int64_t bytes) {
    if (bytes != 0) add(Kind::Memory, -1).bytes = bytes;
  }
  void use(int unit) {
    if (step_.units[unit].once && accumulates_) return;  // it has stayed
    if (released_ < program_.instructions.size()) {
      const bool next = program_.instructions[released_].what == unit;
      if (next &&
          (phase_ == StepPhase::Recompute || (phase_ == StepPhase::Backward && step_.units[unit].slice)))
        program_.instructions.erase(program_.instructions.begin() + static_cast<std::ptrdiff_t>(released_));
      released_ = kNone;
    }
    // A unit of several modules is requested by each of them.
    if (program_.order.empty() || program_.order.back() != unit) program_.order.push_back(unit);
    add(Kind::Use, unit).position = program_.order.size() - 1;
  }
  void release(int unit) {
    const bool last = phase_ == StepPhase::Recompute && program_.order.back() == unit;
    released_ = last ? program_.instructions.size() : kNone;
    add(Kind::Release, unit);
  }
  void compute(int i, int64_t ps) {
    if (ps > 0) add(Kind::Compute, i).ps = ps;
  }

  bool kept_in_forward(int u) const { return step_.units[u].keeps || u == ends_forward_; }

  // The part of `ps` that one slice takes in a call at `i`; unsharded slices are computed together in the
  // remainder.
  int64_t slice_ps(int i, int64_t ps) const { return ps / step_.operators[i].parts / rounds_[i]; }

  // In forward or in recomputation.
  void forward_of(int i) {
    const StepOperator& o = step_.operators[i];
    const bool again = phase_ == StepPhase::Recompute;
    const int64_t ps = again ? o.recompute_ps : o.forward_ps;
    const int64_t work = again ? o.recompute_work_bytes : o.forward_work_bytes;
    const int64_t each = slice_ps(i, ps);
    memory(work);
    memory(o.slice_copy_bytes);
    compute(i, ps - each * static_cast<int64_t>(slices_[i].size()));
    memory(-o.slice_copy_bytes);
    for (int n : slices_[i]) {
      use(uses_[n].unit);
      compute(i, each);
      release(uses_[n].unit);
    }
    memory(-work);
  }

  void forward() {
    phase_ = StepPhase::Forward;
    // The unit requested last stays gathered.
    ends_forward_ = -1;
    for (int i = static_cast<int>(step_.operators.size()) - 1; i >= 0 && ends_forward_ < 0; --i) {
      if (!slices_[i].empty()) break;
      if (!begins_[i].empty()) ends_forward_ = begins_[i].back();
    }
    std::vector<size_t> seen(step_.units.size());
    for (int i = 0; i < static_cast<int>(step_.operators.size()); ++i) {
      const StepOperator& o = step_.operators[i];
      if (o.block >= 0 && block_begin_[o.block] == i) memory(step_.blocks[o.block].input_bytes);
      for (int u : begins_[i]) {
        use(u);
        // Further calls of the same module: the unit is released in between.
        for (int64_t n = 1; n < step_.units[u].repeats; ++n) {
          if (!kept_in_forward(u) && step_.units[u].calls.size() == 1) add(Kind::Release, u);
          use(u);
        }
      }
      if (o.block < 0) memory(o.saved_bytes);
      forward_of(i);
      for (int u : ends_[i]) {
        if (++seen[u] == step_.units[u].calls.size() && !kept_in_forward(u)) add(Kind::Release, u);
      }
    }
    program_.order.push_back(-1);
  }

  void recompute(int block) {
    phase_ = StepPhase::Recompute;
    for (int i = block_begin_[block]; i <= block_end_[block]; ++i) {
      if (step_.operators[i].block != block) continue;
      for (int u : begins_[i]) use(u);
      memory(step_.operators[i].saved_bytes);
      forward_of(i);
      for (int u : ends_[i]) {
        const bool in_backward = recomputation_ == Recomputation::AfterUse && ends_at(u, block_end_[block]);
        if (!step_.blocks[block].hold && !step_.units[u].keeps && !in_backward) release(u);
      }
    }
    phase_ = StepPhase::Backward;
  }

  bool before_use(int block) const {
    return recomputation_ == Recomputation::BeforeUse && step_.blocks[block].bare_end;
  }

  bool ends_at(int u, int i) const {
    const std::span<const int> ends = ends_[i];
    return std::find(ends.begin(), ends.end(), u) != ends.end();
  }

  void backward() {
    phase_ = StepPhase::Backward;
    for (int i = static_cast<int>(step_.operators.size()) - 1; i >= 0; --i) {
      const StepOperator& o = step_.operators[i];
      const std::span<const int> ends = ends_[i];
      const bool recomputes = o.block >= 0 && block_end_[o.block] == i;
      if (recomputes && before_use(o.block)) recompute(o.block);
      for (auto u = ends.rbegin(); u != ends.rend(); ++u) use(*u);
      if (recomputes && !before_use(o.block)) recompute(o.block);
      const int64_t summed = accumulates_ ? o.summed_gradient_bytes : 0;
      memory(o.whole_gradient_bytes - summed + o.cast_gradient_bytes + o.work_bytes);
      backward_of(i);
      memory(-o.work_bytes);
      for (int u : completes_[i]) complete(u);
      if (accumulates_)
        memory(packed_by_buckets(i) + summed - o.whole_gradient_bytes);  // the rest is in the sum
      for (int b : fills_[i]) {
        if (last_ || !step_.buckets_once)
          add(Kind::ReduceBucket, b).adds = accumulates_;
        else
          add_up(step_.buckets[b]);
      }
      memory(-o.saved_bytes);
      if (o.block >= 0 && block_begin_[o.block] == i) memory(-step_.blocks[o.block].input_bytes);
    }
    add(Kind::AwaitCommunication, -1);
    program_.order.push_back(-1);
    if (accumulates_ || last_) return;
    // Beside a sum, `.grad` is this rank's part from now on: Note [Gradients kept under no_sync] in
    // runtime/step/unit_scheduler.cpp.
    for (const StepUnit& u : step_.units)
      if (u.once) memory(u.kept_gradient_bytes);
  }

  // The part of its gradient in a further micro-batch that is freed once a bucket has packed it.
  int64_t packed_by_buckets(int i) const {
    int64_t bytes = 0;
    for (int b : fills_[i]) bytes += step_.buckets[b].further_bytes;
    return bytes;
  }

  void backward_of(int i) {
    const int64_t ps = step_.operators[i].backward_ps, each = slice_ps(i, ps);
    const std::span<const int> slices = slices_[i];
    for (auto at = slices.rbegin(); at != slices.rend(); ++at) {
      const auto [u, multiplies] = uses_[*at];
      const int64_t of_input = multiplies ? each / 2 : 0;
      if (multiplies) {
        use(u);
        compute(i, of_input);  // the gradient of the input
        add(Kind::Release, u);
      }
      memory(step_.units[u].gradient_bytes);
      compute(i, each - of_input);  // the gradient of the slice
      add(Kind::AwaitReduction, -1);
      reduce(u);
    }
    memory(step_.operators[i].full_gradient_bytes);
    // A slice's copy is released before its gradient is computed.
    const int64_t slice =
        std::max(step_.operators[i].slice_gradient_bytes, step_.operators[i].slice_copy_bytes);
    memory(slice);
    compute(i, ps - each * static_cast<int64_t>(slices_[i].size()));
    memory(-slice);
  }

  void reduce(int u) {
    if (step_.units[u].kept_gradient_bytes > 0) {  // else it is frozen
      if (step_.lanes.enqueue) add(Kind::AwaitReduction, -1);
      add(Kind::Reduce, u).adds = accumulates_;
    } else {
      memory(-step_.units[u].gradient_bytes);
    }
  }

  // Under mixed precision a bucket's gradients are freed once they are in the sum.
  void add_up(const StepBucket& b) {
    if (!accumulates_) memory(b.mean_bytes);
    memory(-b.cast_bytes - (accumulates_ ? b.further_bytes : 0));
  }

  // All gradients of the unit are complete.
  void complete(int u) {
    if (step_.units[u].once) {
      if (accumulates_) memory(-step_.units[u].gradient_bytes);  // they are in the sum
      if (!last_) return;
    }
    if (!step_.units[u].frozen_part) add(Kind::Release, u);
    reduce(u);
    if (step_.units[u].frozen_part) add(Kind::Release, u);
  }

  const Step& step_;
  const Recomputation recomputation_;
  const ByOperator begins_, ends_;  // units whose calls begin and end at an operator
  struct SliceUse {
    int unit;
    bool multiplies;  // else it looks up
  };
  std::vector<SliceUse> uses_;
  const ByOperator slices_;      // uses of slices at an operator
  std::vector<int64_t> rounds_;  // calls of the module there, of which each acquires them
  const ByOperator completes_;   // units whose last gradient is an operator's
  const ByOperator fills_;       // buckets whose last gradient is an operator's
  std::vector<int> block_end_, block_begin_;
  static constexpr size_t kNone = ~size_t{0};
  Program program_;
  // The release, in a recomputation, of the unit that was requested last.
  size_t released_ = kNone;
  StepPhase phase_ = StepPhase::Forward;
  int ends_forward_ = -1;
  bool accumulates_ = false, last_ = true;  // not the first micro-batch; the last one
};

}  // namespace

Program make_program(const Step& step, Recomputation when) {
  check(step);
  return Writer(step, when).write();
}

}  // namespace osdp::search
