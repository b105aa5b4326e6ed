// Note [Search over batches]
// With recomputation and the largest transient fixed, a step's time is a constant that is linear in the batch
// size, plus the time of a knapsack whose options do not depend on the batch size; only its limit does. So
// the relaxation's optimum f(limit) is prepared once per (recomputation, transient), and gives for a whole
// interval of batch sizes
//   time per sample >= (f(limit at its smallest size) + fixed) / largest size + time per sample of
//   computation.
// Intervals wait in a heap by that bound; the lowest is halved, or, when it is one batch size, solved
// exactly. The search ends when the lowest bound is not below the best plan: every batch size has then been
// solved or excluded.
#include "search/schedule.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <queue>
#include <tuple>

#include "search/bound.hpp"

namespace osdp::search {
namespace {

// A time for so many samples; compared per sample, in integers.
struct PerSample {
  int64_t time_ps = 0, samples = 1;
  bool operator<(const PerSample& o) const {
    return static_cast<int128>(time_ps) * o.samples < static_cast<int128>(o.time_ps) * samples;
  }
};

int64_t narrow(int128 v, const char* what) {
  if (v < 0 || v > kLargestSum) throw InvalidProblem(std::string(what) + " of one step overflows 2^61");
  return static_cast<int64_t>(v);
}

Recompute recompute_of(const Model& model, const Operator& op, const std::vector<Recompute>& by_kind) {
  return op.block < 0 ? Recompute::None : by_kind.at(model.blocks.at(op.block).kind);
}

// What no choice of a mode changes, under one recomputation: the time of a step and the memory but for the
// transient's reserve, as functions of the batch. Both rise with the batch size.
class Constants {
 public:
  Constants(const Model& model, const Request& request, const std::vector<Recompute>& recompute) {
    const bool paper = request.space.cost == Cost::Paper;
    blocks_.resize(model.blocks.size());
    for (const Operator& op : model.operators) {
      const std::string where = "operator '" + op.name + "'";
      time_per_sample_ += picoseconds(op.compute_s_per_sample, where);
      time_fixed_ += picoseconds(op.compute_s_fixed, where);
      const Recompute r = recompute_of(model, op, recompute);
      Linear& saved = r == Recompute::None ? always_ : blocks_[op.block].saved;
      saved.per_sample += op.saved_bytes_per_sample;
      saved.fixed += op.saved_bytes_fixed;
      if (r != Recompute::None) time_per_sample_ += picoseconds(op.recompute_s_per_sample, where);
      for (const Tensor& t : op.tensors) {
        if (t.trainable) trainable_ += t.bytes();
        if (r == Recompute::Hold && t.shardable && request.device.ranks > 1)
          blocks_[op.block].held += t.bytes();
      }
    }
    if (paper) return;
    for (size_t i = 0; i < model.blocks.size(); ++i) {
      if (recompute[model.blocks[i].kind] != Recompute::None) {
        always_.per_sample += model.blocks[i].input_bytes_per_sample;
      }
      held_ = std::max(held_, blocks_[i].held);
    }
    always_.per_sample += model.input_bytes_per_sample;
    always_.fixed += held_;
    if (request.device.ranks > 1) always_.fixed += std::min<int128>(request.space.bucket_bytes, trainable_);
    // Of equal blocks one is enough.
    std::sort(blocks_.begin(), blocks_.end(), [](const Recomputed& a, const Recomputed& b) {
      return std::tie(a.saved.per_sample, a.saved.fixed) < std::tie(b.saved.per_sample, b.saved.fixed);
    });
    blocks_.erase(std::unique(blocks_.begin(), blocks_.end(),
                              [](const Recomputed& a, const Recomputed& b) {
                                return a.saved.per_sample == b.saved.per_sample &&
                                       a.saved.fixed == b.saved.fixed;
                              }),
                  blocks_.end());
  }

  int64_t time_ps(Batch batch) const {
    return narrow(batch.accumulation * (batch.size * time_per_sample_ + time_fixed_), "the computing time");
  }
  int64_t memory_bytes(int64_t b) const {
    int128 recomputed = 0;  // the largest block, while it is recomputed
    for (const Recomputed& block : blocks_) recomputed = std::max(recomputed, block.saved(b));
    return narrow(always_(b) + recomputed, "the memory");
  }

 private:
  struct Linear {
    int128 per_sample = 0, fixed = 0;
    int128 operator()(int64_t b) const { return b * per_sample + fixed; }
  };
  struct Recomputed {
    Linear saved;
    int128 held = 0;
  };
  int128 time_per_sample_ = 0, time_fixed_ = 0, trainable_ = 0, held_ = 0;
  Linear always_;
  std::vector<Recomputed> blocks_;
};

// The candidates of every operator under each recomputation, made when first asked for.
class CandidateTable {
 public:
  CandidateTable(const Model& model, const Request& request) : model_(model), request_(request) {
    for (auto& row : rows_) row.resize(model.operators.size());
  }
  const std::vector<Candidate>& operator()(size_t op, Recompute recompute) {
    auto& slot = rows_[static_cast<size_t>(recompute)][op];
    if (slot.empty()) slot = candidates(model_.operators[op], request_.device, request_.space, recompute);
    return slot;
  }

 private:
  const Model& model_;
  const Request& request_;
  std::vector<std::vector<Candidate>> rows_[3];
};

int64_t reserve(const Request& request, int64_t transient) {
  if (request.space.cost == Cost::Paper || request.device.ranks == 1) return 0;
  return 3 * std::max(transient, request.least_transient_bytes);
}

// f(limit) of one (recomputation, transient, accumulation).
class Relaxed {
 public:
  Relaxed(const std::vector<Group>& groups) {
    for (const Group& g : groups) {
      least_memory_ += g.count * g.options[0].memory_bytes;
      slowest_ += g.count * g.options[0].time_ps;
    }
    for (const Edge& e : hull_edges(groups)) {
      const int64_t n = groups[e.group].count;
      const int64_t memory = steps_.empty() ? 0 : steps_.back().memory,
                    gain = steps_.empty() ? 0 : steps_.back().gain;
      steps_.push_back({memory + n * e.memory_bytes, gain + n * e.gain_ps, e});
    }
  }
  int64_t least_memory() const { return least_memory_; }
  // Rounded up; limit >= least_memory().
  int64_t operator()(int64_t limit) const {
    const int64_t room = limit - least_memory_;
    const auto it = std::upper_bound(steps_.begin(), steps_.end(), room,
                                     [](int64_t r, const Step& s) { return r < s.memory; });
    const int64_t gain = it == steps_.begin() ? 0 : std::prev(it)->gain;
    const int64_t memory = it == steps_.begin() ? 0 : std::prev(it)->memory;
    if (it == steps_.end()) return slowest_ - gain;
    return slowest_ - gain -
           static_cast<int64_t>(static_cast<int128>(room - memory) * it->edge.gain_ps /
                                it->edge.memory_bytes);
  }

 private:
  struct Step {
    int64_t memory, gain;  // of all edges so far
    Edge edge;
  };
  int64_t least_memory_ = 0, slowest_ = 0;
  std::vector<Step> steps_;
};

// With `keep`, the candidates beside their options.
Knapsack fill_knapsack(const Model& model, const Request& request, const Fixed& fixed,
                       const Constants& constants, CandidateTable& table, bool keep) {
  Knapsack k;
  k.constant_ps = constants.time_ps(fixed.batch);
  k.constant_bytes = constants.memory_bytes(fixed.batch.size);
  if (fixed.transient_bytes != kAnyTransient) k.constant_bytes += reserve(request, fixed.transient_bytes);
  for (size_t i = 0; i < model.operators.size(); ++i) {
    const Operator& op = model.operators[i];
    if (op.tensors.empty()) continue;
    auto& options = k.problem.operators.emplace_back();
    std::vector<Candidate> kept;
    const auto& all = table(i, recompute_of(model, op, fixed.recompute));
    options.reserve(all.size());
    for (const Candidate& c : all) {
      if (c.transient_bytes > fixed.transient_bytes) continue;
      const int128 time = static_cast<int128>(fixed.batch.accumulation) * c.communication_ps + c.optimizer_ps;
      options.push_back({narrow(time, "the time"), c.state_bytes});
      if (keep) kept.push_back(c);
    }
    if (keep) k.candidates.push_back(std::move(kept));
    k.problem.names.push_back(op.name);
    k.operators.push_back(static_cast<int>(i));
  }
  k.problem.limit_bytes = request.limit_bytes - k.constant_bytes;
  return k;
}

class Scheduler {
 public:
  Scheduler(const Model& model, const Request& request, const Budget& budget)
      : model_(model), request_(request), budget_(budget), watch_(budget), table_(model, request) {}

  Schedule run();

 private:
  // What is left to look at: batch sizes lo..hi (accumulation equal) of one variant and transient.
  struct Interval {
    PerSample bound;
    size_t variant;
    int64_t transient;
    int64_t lo, hi, accumulation;
    bool operator<(const Interval& o) const {  // std::priority_queue: the lowest bound on top, ties by value
      if (o.bound < bound) return true;
      if (bound < o.bound) return false;
      return std::tie(variant, transient, lo) > std::tie(o.variant, o.transient, o.lo);
    }
  };

  void list_variants();
  void begin(size_t variant, int64_t transient);
  void upward(size_t variant, int64_t transient);
  bool bound(Interval& interval);
  void solve(const Interval& interval);
  void settle_transient();
  const Relaxed* relaxed(size_t variant, int64_t transient, int64_t accumulation);
  Budget rest() const;

  const Model& model_;
  const Request& request_;
  const Budget& budget_;
  Stopwatch watch_;
  CandidateTable table_;
  std::vector<std::vector<Recompute>> variants_;
  std::vector<Constants> constants_;  // of each variant
  std::map<std::tuple<size_t, int64_t, int64_t>, std::unique_ptr<Relaxed>> relaxed_;
  std::priority_queue<Interval> waiting_;
  Schedule best_;
  PerSample best_time_;
  PerSample unproven_;  // lowest bound among batch sizes that were given up
  bool gave_up_ = false;
};

void Scheduler::list_variants() {
  const auto& choices = request_.recompute;
  double number = 1;
  for (int k = 0; k < model_.kinds; ++k) number *= static_cast<double>(choices.size());
  if (number > 81) {  // all kinds alike
    for (Recompute r : choices) variants_.emplace_back(model_.kinds, r);
    return;
  }
  variants_.emplace_back();
  for (int k = 0; k < model_.kinds; ++k) {
    std::vector<std::vector<Recompute>> longer;
    for (const auto& v : variants_) {
      for (Recompute r : choices) {
        longer.push_back(v);
        longer.back().push_back(r);
      }
    }
    variants_.swap(longer);
  }
}

Budget Scheduler::rest() const {
  Budget b = budget_;
  if (b.time_limit_s > 0) b.time_limit_s = std::max(1e-3, b.time_limit_s - watch_.seconds());
  return b;
}

const Relaxed* Scheduler::relaxed(size_t variant, int64_t transient, int64_t accumulation) {
  auto& slot = relaxed_[{variant, transient, accumulation}];
  if (!slot) {
    const Knapsack k = fill_knapsack(model_, request_, {{1, accumulation}, variants_[variant], transient},
                                     constants_[variant], table_, false);
    if (!k.problem.operators.empty()) validate({k.problem.operators, 0, k.problem.names});
    slot = std::make_unique<Relaxed>(make_groups(k.problem));
  }
  return slot.get();
}

// Sets the interval's bound; false where not even its smallest batch fits.
bool Scheduler::bound(Interval& i) {
  const Relaxed& f = *relaxed(i.variant, i.transient, i.accumulation);
  const Constants& constants = constants_[i.variant];
  const int64_t left = request_.limit_bytes - reserve(request_, i.transient) - constants.memory_bytes(i.lo);
  if (left < f.least_memory()) return false;
  // (f + fixed) / hi + per sample, times hi: constant_time at hi.
  i.bound = {narrow(static_cast<int128>(f(left)) + constants.time_ps({i.hi, i.accumulation}), "the time"),
             i.hi * i.accumulation};
  return true;
}

void Scheduler::begin(size_t variant, int64_t transient) {
  const auto& recompute = variants_[variant];
  const auto needs = [&](int64_t b, int64_t accumulation) {
    return relaxed(variant, transient, accumulation)->least_memory() + reserve(request_, transient) +
           constants_[variant].memory_bytes(b);
  };
  const auto start = [&](int64_t lo, int64_t hi, int64_t accumulation) {
    Interval i{{}, variant, transient, lo, hi, accumulation};
    if (bound(i)) waiting_.push(i);
  };
  const auto note_need = [&](Batch batch) {
    const int64_t need = needs(batch.size, batch.accumulation);
    if (best_.smallest_limit_bytes != 0 && need >= best_.smallest_limit_bytes) return;
    best_.smallest_limit_bytes = need;
    best_.fixed = {batch, recompute, transient};
  };
  if (!request_.batches.empty()) {
    for (const Batch& batch : request_.batches) {
      note_need(batch);
      start(batch.size, batch.size, batch.accumulation);
    }
    return;
  }
  note_need({1, 1});
  if (needs(1, 1) > request_.limit_bytes) return;
  if (request_.depth_first) return upward(variant, transient);
  int64_t fits = 1, beyond = kMostBatch + 1;
  while (beyond - fits > 1) {
    const int64_t middle = fits + (beyond - fits) / 2;
    (needs(middle, 1) <= request_.limit_bytes ? fits : beyond) = middle;
  }
  start(1, fits, 1);
}

// The paper's loop as it is printed: every batch size from 1 until nothing fits.
void Scheduler::upward(size_t variant, int64_t transient) {
  for (int64_t b = 1; b <= kMostBatch && !watch_.stopped(); ++b) {
    Interval i{{}, variant, transient, b, b, 1};
    if (!bound(i)) return;
    solve(i);
    watch_.spent(kLargestSum);
  }
}

void Scheduler::solve(const Interval& interval) {
  const Fixed fixed{{interval.lo, interval.accumulation}, variants_[interval.variant], interval.transient};
  Knapsack k = fill_knapsack(model_, request_, fixed, constants_[interval.variant], table_, true);
  Solution s;
  if (k.problem.operators.empty()) {
    s.status = Status::Optimal;
  } else {
    s = request_.depth_first ? solve_dfs(k.problem, rest()) : solve_exact(k.problem, rest());
  }
  best_.knapsacks++;
  best_.nodes += s.statistics.nodes;
  if (s.status != Status::Optimal) {
    if (!gave_up_ || interval.bound < unproven_) unproven_ = interval.bound;
    gave_up_ = true;
    if (s.choices.empty()) return;
  }
  const PerSample time{k.constant_ps + s.time_ps, interval.lo * interval.accumulation};
  if (best_.feasible && !(time < best_time_)) return;
  best_.feasible = true;
  best_time_ = time;
  best_.fixed = fixed;
  best_.step_ps = time.time_ps;
  best_.peak_bytes = k.constant_bytes + s.memory_bytes;
  best_.knapsack = std::move(k);
  best_.solution = std::move(s);
}

// A tie may leave the transient's reserve larger than the choices need.
void Scheduler::settle_transient() {
  for (;;) {
    int64_t used = 0;
    for (size_t i = 0; i < best_.solution.choices.size(); ++i) {
      used = std::max(used, best_.knapsack.candidates[i][best_.solution.choices[i]].transient_bytes);
    }
    if (used >= best_.fixed.transient_bytes || request_.depth_first) return;
    Fixed fixed = best_.fixed;
    fixed.transient_bytes = used;
    Knapsack k = make_knapsack(model_, request_, fixed);
    Solution s = solve_exact(k.problem, rest());
    if (s.choices.empty()) return;
    best_.fixed = fixed;
    best_.step_ps = k.constant_ps + s.time_ps;
    best_.peak_bytes = k.constant_bytes + s.memory_bytes;
    best_time_.time_ps = best_.step_ps;
    best_.knapsack = std::move(k);
    best_.solution = std::move(s);
  }
}

Schedule Scheduler::run() {
  list_variants();
  for (size_t v = 0; v < variants_.size(); ++v) {
    // Every size that a transient may have: what a larger one allows must be worth its reserve.
    constants_.emplace_back(model_, request_, variants_[v]);
    const Knapsack all =
        fill_knapsack(model_, request_, {{1, 1}, variants_[v], kAnyTransient}, constants_[v], table_, true);
    std::vector<int64_t> transients{0};
    for (const auto& list : all.candidates) {
      for (const Candidate& c : list) transients.push_back(c.transient_bytes);
    }
    std::sort(transients.begin(), transients.end());
    transients.erase(std::unique(transients.begin(), transients.end()), transients.end());
    int64_t needed = 0;  // an operator without a smaller candidate
    for (const auto& list : all.candidates) {
      int64_t least = kLargestSum;
      for (const Candidate& c : list) least = std::min(least, c.transient_bytes);
      needed = std::max(needed, least);
    }
    for (size_t t = 0; t < transients.size(); ++t) {
      if (transients[t] < needed) continue;
      // Below the least reserve, a larger transient costs nothing.
      if (t + 1 < transients.size() && transients[t + 1] <= request_.least_transient_bytes) continue;
      if (watch_.spent(1000)) break;
      begin(v, transients[t]);
    }
  }
  while (!waiting_.empty() && !watch_.stopped()) {
    const Interval top = waiting_.top();
    if (best_.feasible && !(top.bound < best_time_)) break;
    waiting_.pop();
    if (top.lo == top.hi) {
      solve(top);
      watch_.spent(kLargestSum);
      continue;
    }
    const int64_t middle = top.lo + (top.hi - top.lo) / 2;
    for (auto [lo, hi] : {std::pair{top.lo, middle}, std::pair{middle + 1, top.hi}}) {
      Interval half = top;
      half.lo = lo, half.hi = hi;
      if (bound(half)) waiting_.push(half);
    }
    watch_.spent(10000);
  }
  if (best_.feasible) {
    settle_transient();
    PerSample lowest = best_time_;
    if (!waiting_.empty() && waiting_.top().bound < lowest) lowest = waiting_.top().bound;
    if (gave_up_ && unproven_ < lowest) lowest = unproven_;
    best_.optimal = !(lowest < best_time_);
    best_.lower_bound_s_per_sample =
        static_cast<double>(lowest.time_ps) / static_cast<double>(lowest.samples) * 1e-12;
  } else if (best_.smallest_limit_bytes != 0) {
    best_.knapsack = make_knapsack(model_, request_, best_.fixed);  // to say what the smallest plan is
    for (const auto& options : best_.knapsack.problem.operators) {
      best_.solution.choices.push_back(undominated(options)[0]);
    }
  }
  best_.seconds = watch_.seconds();
  return std::move(best_);
}

}  // namespace

Knapsack make_knapsack(const Model& model, const Request& request, const Fixed& fixed) {
  CandidateTable table(model, request);
  return fill_knapsack(model, request, fixed, Constants(model, request, fixed.recompute), table, true);
}

Schedule schedule(const Model& model, const Request& request, const Budget& budget) {
  if (model.operators.empty()) throw InvalidProblem("the model has no operators");
  if (request.device.ranks < 1 || request.device.ranks > (int64_t{1} << 24)) {
    throw InvalidProblem("world size " + std::to_string(request.device.ranks) + ": it must be at least 1");
  }
  if (request.limit_bytes < 0 || request.limit_bytes > kLargestSum)
    throw InvalidProblem("the memory limit is not a size");
  if (request.recompute.empty()) throw InvalidProblem("no way to treat blocks is allowed");
  if (request.space.modes.empty()) throw InvalidProblem("no mode is allowed");
  for (const Batch& b : request.batches) {
    if (b.size < 1 || b.accumulation < 1) throw InvalidProblem("a batch must have at least one sample");
  }
  for (const Operator& op : model.operators) {
    if (op.block >= static_cast<int>(model.blocks.size()))
      throw InvalidProblem("operator '" + op.name + "': no such block");
  }
  return Scheduler(model, request, budget).run();
}

}  // namespace osdp::search
