// Note [Branch and bound over everything]
// A region is an interval of batch sizes, an interval of largest transients, and a box of how many instances
// of each group of blocks are treated each way. Its relaxation, with time at the largest batch size and
// memory at the smallest, with the options of the largest transient and the reserve of the smallest, bounds
// the time per sample of every plan in it, since both rise with the batch size. Regions wait in a heap by
// that bound; the lowest is halved, or, when it is one batch and one transient, cut around the recomputation
// that its relaxation likes best, or, when that is fixed too, solved exactly (leaf.hpp). The search ends when
// the lowest bound is not below the best plan.
//
// Only some phases are rows. When a leaf's plan breaks another phase, that one becomes a row: with fewer rows
// a relaxation was searched, so all bounds hold. Which instances are alike changes with the rows, so the
// boxes of one batch and transient become one again, which is bounded anew when its turn comes.
#include "search/schedule.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <queue>
#include <set>

#include "search/chooser.hpp"
#include "search/least.hpp"
#include "search/sequence.hpp"

namespace osdp::search {
namespace {

// What is cut anyway need not be bounded as well as can be.
constexpr double kRough = 3e-4, kFine = 1e-11;

struct Waiting {
  double bound = 0;  // least time, safely rounded down; of `samples`
  int64_t samples = 1;
  Batch lo, hi;        // accumulation equal
  size_t lean, large;  // transients, as indices
  Box box;
  std::vector<int> ways;                    // whole numbers near the relaxation's optimum
  Prices prices{};                          // a guess, the parent's
  size_t rows = 0;                          // that it was bounded with
  int64_t number = 0;                       // ties: first come, first served
  bool operator<(const Waiting& o) const {  // std::priority_queue: the lowest bound on top
    const double a = bound / static_cast<double>(samples), b = o.bound / static_cast<double>(o.samples);
    return a != b ? a > b : number > o.number;
  }
};

// One batch and transient that is searched as a sequence.
struct Cell {
  Sequence sequence;
  double allowance = 1e-4;  // of its bound: how far above it plans are looked for next
};
using CellKey = std::array<int64_t, 3>;  // batch, accumulation, transient
CellKey key_of(const Waiting& w) { return {w.lo.size, w.lo.accumulation, static_cast<int64_t>(w.lean)}; }

class Scheduler {
 public:
  // `any`: the first plan that fits will do.
  Scheduler(const Model& model, const Request& request, const Budget& budget, const Kinds& kinds,
            Stopwatch& watch, bool any)
      : model_(model), request_(request), budget_(budget), watch_(watch), any_(any), kinds_(kinds) {}

  // A plan to begin with, if it fits.
  void offer(const Decision& decision, Batch batch) {
    accept({Status::Feasible, step_ps(kinds_, decision, batch), 0, decision, 0}, batch);
  }
  Schedule run();

 private:
  void first_rows();
  void begin();
  void go_on();
  void give_up(Waiting w, double bound);
  void push(Waiting w);
  void halve(const Waiting& w);
  void around(const Waiting& w);
  void solve(const Waiting& w);
  bool accept(const Leaf& leaf, Batch batch);
  bool near(const Waiting& w) const;
  void round(const Waiting& w);
  bool price_phases(Waiting& w);
  bool make_cell(const Waiting& w, const std::vector<double>& prices);
  bool go_on_in_cell(Waiting w);
  void shake(const Waiting& w, const Chooser& chooser, const std::vector<double>& prices, int64_t limit);
  void mend(Decision decision, const Waiting& w);
  bool add_rows(const std::vector<double>& prices);
  void gather();
  void depth_first();
  void finish();
  const Table& table(int64_t accumulation);
  Region region(const Waiting& w) const;
  bool useless(const Waiting& w) const;
  int64_t cutoff(const Waiting& w) const;

  const Model& model_;
  const Request& request_;
  const Budget& budget_;
  Stopwatch& watch_;
  const bool any_;
  const Kinds& kinds_;
  std::set<std::pair<std::pair<int64_t, int64_t>, size_t>> rounded_, priced_;  // batches, transients
  size_t first_rows_ = 0;
  std::vector<int> rows_;
  std::map<int64_t, Table> tables_;
  std::priority_queue<Waiting> waiting_;
  Schedule best_;
  RunnersUp found_;
  int64_t number_ = 0;
  int broken_ = 0;  // by the last plan that accept() refused
  int64_t excess_ = 0;
  std::map<CellKey, Cell> cells_;
  std::vector<Waiting> given_up_;  // leaves that were not solved
  bool gave_up_ = false;           // the depth-first search
};

void Scheduler::first_rows() {
  if (request_.paper()) {
    rows_ = {kWholeStep};
    return;
  }
  // The first and the last phase; the last phase of a block, where recomputation brings all of it back.
  std::set<int> rows{0, static_cast<int>(model_.operators.size()) - 1};
  int last = -1;
  for (const Kind& kind : kinds_.kinds) {
    if (kind.block) last = std::max(last, kind.instances.back().back());
  }
  if (last >= 0) rows.insert(last);
  rows_.assign(rows.rbegin(), rows.rend());
}

const Table& Scheduler::table(int64_t accumulation) {
  const auto it = tables_.find(accumulation);
  if (it != tables_.end()) return it->second;
  return tables_.emplace(accumulation, make_table(kinds_, rows_, accumulation)).first->second;
}

Region Scheduler::region(const Waiting& w) const {
  return {w.hi,
          w.lo,
          kinds_.transients[w.large],
          request_.reserve_bytes(kinds_.transients[w.lean]),
          w.box,
          w.lo.size < w.hi.size || w.lean < w.large ? kRough : kFine};
}

// Whether no plan in it can be better than the best one.
bool Scheduler::useless(const Waiting& w) const {
  if (!best_.feasible) return false;
  if (w.lo.size == w.hi.size) {  // times are whole
    const auto least = static_cast<int128>(std::ceil(std::max(0.0, w.bound)));
    return least * best_.batch.samples() >= static_cast<int128>(best_.step_ps) * w.samples;
  }
  return static_cast<long double>(w.bound) * best_.batch.samples() >=
         static_cast<long double>(best_.step_ps) * w.samples;
}

// Whether the best plan is so near to its bound that no better one need be sought before it is cut.
bool Scheduler::near(const Waiting& w) const {
  return best_.feasible &&
         w.bound / static_cast<double>(w.samples) >
             0.998 * static_cast<double>(best_.step_ps) / static_cast<double>(best_.batch.samples());
}

void Scheduler::push(Waiting w) {
  if (watch_.stopped()) {  // only the bound of what it is a part of is left
    w.bound *= (1 - 1e-12) * static_cast<double>(w.hi.samples()) / static_cast<double>(w.samples);
    w.samples = w.hi.samples();
    w.number = number_++;
    waiting_.push(std::move(w));
    return;
  }
  const double enough = best_.feasible
                            ? static_cast<double>(best_.step_ps) * static_cast<double>(w.hi.samples()) /
                                  static_cast<double>(best_.batch.samples())
                            : 1e300;
  const Bounded b = relax(kinds_, table(w.lo.accumulation), request_, region(w), w.prices, enough);
  best_.regions++;
  watch_.spent(20000);
  if (!b.feasible) return;
  const double known = w.samples == w.hi.samples() ? w.bound : 0;  // of a region that this one is a part of
  w.bound = std::max(known, b.time - b.error);
  w.samples = w.hi.samples();
  w.rows = rows_.size();
  w.prices = b.prices;
  w.ways = b.ways;
  w.number = number_++;
  if (!useless(w)) waiting_.push(std::move(w));
}

void Scheduler::halve(const Waiting& w) {
  Waiting low = w, high = w;
  double per_sample = 1;
  for (const Kind& kind : kinds_.kinds) {
    for (const Slot& slot : kind.slots) {
      per_sample += static_cast<double>(slot.saved.per_sample) * static_cast<double>(kind.instances.size());
    }
  }
  const double of_batch = per_sample * static_cast<double>(w.hi.size - w.lo.size);
  const double of_transient = static_cast<double>(request_.reserve_bytes(kinds_.transients[w.large]) -
                                                  request_.reserve_bytes(kinds_.transients[w.lean]));
  if (w.lo.size < w.hi.size && (w.lean == w.large || of_batch >= of_transient)) {
    auto middle =
        static_cast<int64_t>(std::sqrt(static_cast<double>(w.lo.size) * static_cast<double>(w.hi.size)));
    middle = std::clamp(middle, w.lo.size, w.hi.size - 1);
    low.hi.size = middle;
    high.lo.size = middle + 1;
  } else {
    const size_t middle = w.lean + (w.large - w.lean) / 2;
    low.large = middle;
    high.lean = middle + 1;
  }
  push(std::move(low));
  push(std::move(high));
}

// The box without `point`, as disjoint boxes, and the point itself.
void Scheduler::around(const Waiting& w) {
  const Table& t = table(w.lo.accumulation);
  Waiting rest = w;
  for (const auto& entry : t.entries) {
    for (size_t i = 0; i + 1 < entry.ways.size(); ++i) {  // the last way is what is left
      const size_t x = entry.first_way + i;
      const int at = w.ways[x];
      const auto tighten = [&](Waiting& part) {
        int lo = 0, hi = 0;
        for (size_t k = 0; k < entry.ways.size(); ++k) {
          lo += part.box.lo[entry.first_way + k];
          hi += part.box.hi[entry.first_way + k];
        }
        return lo <= entry.count && entry.count <= hi;
      };
      for (const bool below : {true, false}) {
        Waiting part = rest;
        (below ? part.box.hi[x] : part.box.lo[x]) = below ? at - 1 : at + 1;
        if (part.box.lo[x] <= part.box.hi[x] && tighten(part)) push(std::move(part));
      }
      rest.box.lo[x] = rest.box.hi[x] = at;
    }
    if (!entry.ways.empty()) {
      const size_t last = entry.first_way + entry.ways.size() - 1;
      rest.box.lo[last] = rest.box.hi[last] = w.ways[last];
    }
  }
  push(std::move(rest));
}

// False where a phase is over the limit: broken_, by excess_.
bool Scheduler::accept(const Leaf& leaf, Batch batch) {
  int64_t used = 0;
  for (const Kind& kind : kinds_.kinds) {
    for (size_t m = 0; m < kind.instances.size(); ++m) {
      for (size_t p = 0; p < kind.slots.size(); ++p) {
        const int choice = leaf.decision.choices[kind.instances[m][p]];
        if (choice < 0) continue;
        const Recompute way = kind.block ? leaf.decision.ways[kind.blocks[m]] : Recompute::None;
        used = std::max(used, kind.slots[p].candidates[static_cast<int>(way)][choice].transient_bytes);
      }
    }
  }
  std::vector<int64_t> phases = phase_bytes(model_, request_, kinds_, leaf.decision, batch);
  for (int64_t& bytes : phases) bytes = std::min(kLargestSum, bytes + request_.reserve_bytes(used));
  const auto worst = std::max_element(phases.begin(), phases.end());
  if (*worst > request_.limit_bytes) {
    broken_ = static_cast<int>(worst - phases.begin());
    excess_ = *worst - request_.limit_bytes;
    return false;
  }
  const Found found{batch, used, leaf.decision, leaf.time_ps, *worst};
  if (!any_) found_.offer(found);
  if (best_.feasible && !found.faster_than({best_.batch, 0, {}, best_.step_ps, 0})) return true;
  best_.feasible = true;
  best_.batch = batch;
  best_.transient_bytes = used;
  best_.decision = leaf.decision;
  best_.step_ps = leaf.time_ps;
  best_.peak_bytes = *worst;
  best_.phases = std::move(phases);
  return true;
}

// Note [Rounding]
// A good plan soon makes all bounds more useful. At the relaxation's prices the choices of everything are
// near the best plan, but often too large in a phase that has no price or not enough of one. So that phase's
// price rises, and where a plan fits, all prices fall, by smaller and smaller steps. What memory is left is
// spent on the operators that it speeds up most. Once for every batch and transient.
void Scheduler::round(const Waiting& w) {
  constexpr int kTurns = 40;
  if (any_ || near(w) || !rounded_.insert({{w.lo.size, w.lo.accumulation}, w.lean}).second) return;
  const int64_t transient = kinds_.transients[w.lean];
  const int64_t limit = request_.limit_bytes - request_.reserve_bytes(transient);
  const Chooser chooser(model_, request_, kinds_, w.lo, transient, false);
  if (!chooser.possible()) return;
  std::vector<double> prices(chooser.phases(), 0);
  double sum = 0;
  for (size_t j = 0; j < rows_.size(); ++j) sum += prices[std::max(rows_[j], 0)] += w.prices[j];
  if (sum == 0) sum = w.bound / static_cast<double>(std::max<int64_t>(limit, 1));
  double share = 0.25;
  int found = 0;
  for (int turn = 0; turn < kTurns && found < 4 && !watch_.stopped(); ++turn) {
    Decision decision;
    chooser.cheapest(prices, static_cast<double>(limit), decision);
    std::vector<int64_t> phases = phase_bytes(model_, request_, kinds_, decision, w.lo);
    watch_.spent(static_cast<int64_t>(200 * phases.size()));
    const auto worst = std::max_element(phases.begin(), phases.end());
    if (*worst <= limit) {
      chooser.quicken(decision, phases, limit, prices);
      offer(decision, w.lo);
      ++found;
      share /= 2;
      for (double& p : prices) p *= 1 - share;
      sum *= 1 - share;
    } else {
      prices[worst - phases.begin()] += share * sum;
      sum += share * sum;
    }
  }
}

// Note [All phases]
// Where many phases bind, rows that are found one by one raise the bound slowly. So before one batch and
// transient is cut any further, prices for all phases are sought together, by subgradients: what a plan that
// is cheapest at some prices has over the limit says where prices should rise. Directions are averages over
// turns (the volume algorithm of Barahona and Anbil), steps follow from the distance between bound and best
// plan. Every turn bounds the batch and transient; and its plan, where it fits, is made faster with the
// memory that it leaves, and offered. The dearest phases become rows.
//
// True where rows were added.
bool Scheduler::price_phases(Waiting& w) {
  constexpr int kTurns = 150;
  if (any_ || near(w) || rows_.size() < first_rows_ + 2 ||
      !priced_.insert({{w.lo.size, w.lo.accumulation}, w.lean}).second)
    return false;
  const auto samples = static_cast<double>(w.samples);
  const auto upper = [&] {
    if (!best_.feasible) return 1.05 * w.bound;
    return samples * static_cast<double>(best_.step_ps) / static_cast<double>(best_.batch.samples());
  };
  const int64_t transient = kinds_.transients[w.lean];
  const int64_t limit = request_.limit_bytes - request_.reserve_bytes(transient);
  const Chooser chooser(model_, request_, kinds_, w.lo, transient, false);
  if (!chooser.possible()) return false;
  const size_t n = chooser.phases();
  std::vector<double> best(n, 0), average;
  for (size_t j = 0; j < rows_.size(); ++j) best[static_cast<size_t>(std::max(rows_[j], 0))] += w.prices[j];
  std::vector<double> prices = best;
  double bound = 0, share = 0.02;
  int idle = 0;
  for (int turn = 0; turn < kTurns && !watch_.stopped(); ++turn) {
    Decision decision;
    const double value = chooser.cheapest(prices, static_cast<double>(limit), decision);
    std::vector<int64_t> phases = phase_bytes(model_, request_, kinds_, decision, w.lo);
    watch_.spent(static_cast<int64_t>(200 * n));
    if (average.empty()) average.assign(phases.begin(), phases.end());
    for (size_t j = 0; j < n; ++j) average[j] += 0.1 * (static_cast<double>(phases[j]) - average[j]);
    if (turn < 4 || value > bound) {  // plans at good prices are worth the effort
      auto mended = phases;
      if (chooser.repair(decision, mended, limit)) {
        chooser.quicken(decision, mended, limit, prices);
        offer(decision, w.lo);
      }
    }
    if (turn == 0 || value > bound) {
      bound = value;
      best = prices;
      share = std::min(2.0, 1.2 * share);
      idle = 0;
    } else if (++idle == 8) {
      share *= 0.6;
      idle = 0;
    }
    const double apart = std::min(upper() - bound, 0.05 * std::abs(bound));
    if (apart <= 1e-4 * bound) break;
    double norm = 0;
    for (size_t j = 0; j < n; ++j) {
      const double over = average[j] - static_cast<double>(limit);
      if (over > 0 || best[j] > 0) norm += over * over;
    }
    if (norm == 0) break;
    for (size_t j = 0; j < n; ++j) {
      const double over = average[j] - static_cast<double>(limit);
      prices[j] = std::max(0.0, best[j] + share * apart / norm * over);
    }
  }
  w.bound = std::max(w.bound, bound);
  if (make_cell(w, best)) return false;
  shake(w, chooser, best, limit);
  return add_rows(best);
}

// Changes the best plan at random, if it is of this batch: the recomputation of one or two blocks, or the
// choices of some operators, which are made small. What is too large then is repaired, what memory is free is
// used, and what is no slower is kept. The same numbers every time.
void Scheduler::shake(const Waiting& w, const Chooser& chooser, const std::vector<double>& prices,
                      int64_t limit) {
  constexpr int kTurns = 400, kPatience = 120;
  if (!best_.feasible || best_.batch.size != w.lo.size || best_.batch.accumulation != w.lo.accumulation ||
      best_.transient_bytes > kinds_.transients[w.lean]) {
    return;
  }
  uint64_t state = 88172645463325252;  // xorshift
  const auto random = [&](size_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<size_t>(state % n);
  };
  std::vector<std::pair<const Kind*, size_t>> blocks;
  for (const Kind& kind : kinds_.kinds) {
    for (size_t m = 0; kind.ways.size() > 1 && m < kind.instances.size(); ++m) blocks.push_back({&kind, m});
  }
  Decision now = best_.decision;
  int64_t time = best_.step_ps;
  int idle = 0;
  for (int turn = 0; turn < kTurns && idle < kPatience && !watch_.stopped(); ++turn, ++idle) {
    Decision next = now;
    if (!blocks.empty() && random(2) == 0) {
      for (size_t change = 1 + random(2); change-- > 0;) {
        const auto& [kind, m] = blocks[random(blocks.size())];
        next.ways[kind->blocks[m]] = kind->ways[random(kind->ways.size())];
      }
    } else {
      const size_t first = random(next.choices.size());
      chooser.shrink(next, first, std::min(next.choices.size(), first + 1 + random(24)));
    }
    std::vector<int64_t> phases = phase_bytes(model_, request_, kinds_, next, w.lo);
    watch_.spent(static_cast<int64_t>(1000 * phases.size()));
    if (!chooser.repair(next, phases, limit)) continue;
    std::vector<double> noisy = prices;
    for (double& p : noisy) p *= 0.5 + static_cast<double>(random(1000)) / 1000;
    chooser.quicken(next, phases, limit, noisy);
    const int64_t after = step_ps(kinds_, next, w.lo);
    if (after > time) continue;
    if (after < time) idle = 0;
    time = after;
    now = std::move(next);
  }
  offer(now, w.lo);
}

// The phases with the highest prices, at least a hundredth of all.
bool Scheduler::add_rows(const std::vector<double>& prices) {
  if (request_.paper()) return false;
  double sum = 0;
  for (double p : prices) sum += p;
  std::vector<int> order;
  for (size_t j = 0; j < prices.size(); ++j) {
    if (prices[j] > 0.01 * sum && std::find(rows_.begin(), rows_.end(), static_cast<int>(j)) == rows_.end()) {
      order.push_back(static_cast<int>(j));
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return prices[a] > prices[b]; });
  bool added = false;
  for (size_t k = 0; k < order.size() && rows_.size() + 3 < kMostRows; ++k) {  // leaves room for broken ones
    rows_.push_back(order[k]);
    added = true;
  }
  return added;
}

bool Scheduler::make_cell(const Waiting& w, const std::vector<double>& prices) {
  Series series(model_, request_, kinds_, w.lo, kinds_.transients[w.lean]);
  if (!series.possible()) return false;
  std::vector<std::vector<double>> others;
  for (double scale : {0.0, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5, 2.0, 4.0}) {
    others.push_back(prices);
    for (double& p : others.back()) p *= scale;
  }
  cells_.erase(key_of(w));
  cells_.emplace(key_of(w), Cell{Sequence(std::move(series), prices, others)});
  return true;
}

// False where this region is not searched so.
bool Scheduler::go_on_in_cell(Waiting w) {
  constexpr size_t kLongest = 100000;
  const auto at = cells_.find(key_of(w));
  if (at == cells_.end()) return false;
  Cell& cell = at->second;
  int64_t most = cutoff(w) - 1;
  const double target = cell.sequence.bound_ps() * (1 + cell.allowance);
  if (target < static_cast<double>(most)) most = static_cast<int64_t>(target);
  cell.allowance *= 2;
  const SequenceFound found = cell.sequence.look(most, kLongest, watch_);
  best_.leaves++;
  best_.nodes += found.nodes;
  if (!found.complete) {
    cells_.erase(at);
    waiting_.push(std::move(w));
    return true;
  }
  if (found.found) {
    if (!accept({Status::Optimal, found.time_ps, 0, found.decision, 0}, w.lo)) give_up(w, w.bound);
    return true;
  }
  w.bound = std::max(w.bound, static_cast<double>(most) + 1);
  w.number = number_++;
  if (!useless(w)) waiting_.push(std::move(w));
  return true;
}

// Of a step of this batch: plans that take less are better than the best one.
int64_t Scheduler::cutoff(const Waiting& w) const {
  if (!best_.feasible) return kLargestSum;
  const int128 least = static_cast<int128>(best_.step_ps) * w.samples, per = best_.batch.samples();
  return static_cast<int64_t>(std::min<int128>(kLargestSum, (least + per - 1) / per));
}

void Scheduler::give_up(Waiting w, double bound) {
  w.bound = std::max(w.bound, bound);
  given_up_.push_back(std::move(w));
}

// A plan that is too large in some phase, made to fit.
void Scheduler::mend(Decision decision, const Waiting& w) {
  if (any_ || near(w) || watch_.stopped()) return;
  const int64_t transient = kinds_.transients[w.lean];
  const int64_t limit = request_.limit_bytes - request_.reserve_bytes(transient);
  const Chooser chooser(model_, request_, kinds_, w.lo, transient, false);
  std::vector<int64_t> phases = phase_bytes(model_, request_, kinds_, decision, w.lo);
  if (!chooser.repair(decision, phases, limit)) return;
  std::vector<double> prices(chooser.phases(), 0);
  for (size_t j = 0; j < rows_.size(); ++j) prices[static_cast<size_t>(std::max(rows_[j], 0))] += w.prices[j];
  chooser.quicken(decision, phases, limit, prices);
  offer(decision, w.lo);
  shake(w, chooser, prices, limit);
}

void Scheduler::solve(const Waiting& w) {
  const Table& t = table(w.lo.accumulation);
  const Bounded bounded = relax(kinds_, t, request_, region(w), w.prices, 1e300);
  if (!bounded.feasible) return;
  const int64_t cutoff = this->cutoff(w);
  Budget rest = budget_;
  if (rest.time_limit_s > 0) rest.time_limit_s = std::max(1e-3, rest.time_limit_s - watch_.seconds());
  const Leaf leaf = solve_leaf(kinds_, t, request_, region(w), bounded, model_, cutoff, watch_, rest);
  best_.leaves++;
  best_.nodes += leaf.nodes;
  watch_.spent(kLargestSum);
  const auto bound = static_cast<double>(leaf.lower_bound_ps);
  if (leaf.decision.choices.empty() || accept(leaf, w.lo)) {
    if (leaf.status == Status::Feasible) give_up(w, bound);
    return;
  }
  const int row = broken_;
  give_up(w, bound);
  mend(leaf.decision, w);
  // A plan that fits, not always the best: the same under a limit that is lower by what was too much.
  Region tighter = region(w);
  for (int attempt = 0; attempt < 4 && !best_.feasible && !watch_.stopped(); ++attempt) {
    tighter.reserved_bytes += excess_;
    const Bounded again = relax(kinds_, t, request_, tighter, w.prices, 1e300);
    if (!again.feasible) break;
    const Leaf other = solve_leaf(kinds_, t, request_, tighter, again, model_, cutoff, watch_, rest);
    if (other.decision.choices.empty() || accept(other, w.lo)) break;
  }
  if (rows_.size() < kMostRows && std::find(rows_.begin(), rows_.end(), row) == rows_.end()) {
    rows_.push_back(row);
    gather();
  }
}

// After rows were added: what waits and what was given up is searched again.
void Scheduler::gather() {
  tables_.clear();
  std::map<std::array<int64_t, 5>, Waiting> regions;
  const auto add = [&](const Waiting& w) {
    const auto [it, fresh] =
        regions.try_emplace({w.lo.accumulation, w.lo.size, w.hi.size, static_cast<int64_t>(w.lean),
                             static_cast<int64_t>(w.large)},
                            w);
    if (!fresh && w.bound < it->second.bound) it->second = w;
  };
  for (; !waiting_.empty(); waiting_.pop()) add(waiting_.top());
  for (const Waiting& w : given_up_) add(w);
  given_up_.clear();
  for (auto& [key, w] : regions) waiting_.push(std::move(w));
}

void Scheduler::begin() {
  std::vector<std::pair<Batch, Batch>> ranges;
  for (const Batch& b : request_.batches) ranges.push_back({b, b});
  if (ranges.empty()) ranges.push_back({{1, 1}, {kMostBatch, 1}});
  for (const auto& [lo, hi] : ranges) {
    Waiting all;
    all.lo = lo, all.hi = hi;
    all.lean = 0, all.large = kinds_.transients.size() - 1;
    all.box = everything(table(lo.accumulation));
    push(std::move(all));
  }
}

void Scheduler::go_on() {
  while (!waiting_.empty() && !watch_.stopped()) {
    Waiting top = waiting_.top();
    if (useless(top) || (any_ && best_.feasible)) break;
    waiting_.pop();
    if (top.rows != rows_.size()) {
      top.box = everything(table(top.lo.accumulation));
      push(std::move(top));
    } else if (top.lo.size < top.hi.size || top.lean < top.large) {
      halve(top);
    } else {
      round(top);
      const bool added = price_phases(top);
      if (added) {
        waiting_.push(std::move(top));
        gather();
      } else if (useless(top) || go_on_in_cell(top)) {
        continue;
      } else if (top.box.lo == top.box.hi) {
        solve(top);
      } else {
        around(top);
      }
    }
  }
}

// The paper's Algorithm 1: every batch size from 1 until nothing fits, operators in the order given.
void Scheduler::depth_first() {
  std::vector<Batch> batches = request_.batches;
  for (int64_t b = 1; request_.batches.empty() && b <= kMostBatch; ++b) batches.push_back({b, 1});
  for (const Batch& batch : batches) {
    Problem problem;
    problem.limit_bytes = request_.limit_bytes;
    std::vector<int> operators(model_.operators.size(), -1);
    for (const Kind& kind : kinds_.kinds) {
      for (const auto& instance : kind.instances) {
        problem.limit_bytes -= kind.slots[0].saved(batch.size);
        if (!kind.slots[0].candidates[0].empty())
          operators[instance[0]] = static_cast<int>(&kind - &kinds_.kinds[0]);
      }
    }
    for (size_t i = 0; i < operators.size(); ++i) {
      if (operators[i] < 0) continue;
      auto& options = problem.operators.emplace_back();
      problem.names.push_back(model_.operators[i].name);
      for (const Candidate& c : kinds_.kinds[operators[i]].slots[0].candidates[0]) {
        options.push_back({batch.accumulation * c.communication_ps + c.optimizer_ps, c.state_bytes});
      }
    }
    Budget rest = budget_;
    if (rest.time_limit_s > 0) rest.time_limit_s = std::max(1e-3, rest.time_limit_s - watch_.seconds());
    Solution s;
    s.status = Status::Optimal;
    if (!problem.operators.empty()) s = solve_dfs(problem, rest);
    best_.leaves++;
    best_.nodes += s.statistics.nodes;
    watch_.spent(kLargestSum);
    if (s.status == Status::Feasible) gave_up_ = true;
    if (s.status == Status::Infeasible && request_.batches.empty()) return;
    if (s.choices.size() == problem.operators.size() && s.status != Status::Infeasible) {
      Leaf leaf;
      leaf.time_ps = batch.accumulation * kinds_.compute_ps(batch.size) + s.time_ps;
      leaf.decision.ways.assign(model_.blocks.size(), Recompute::None);
      leaf.decision.choices.assign(operators.size(), -1);
      size_t next = 0;
      for (size_t i = 0; i < operators.size(); ++i) {
        if (operators[i] >= 0) leaf.decision.choices[i] = s.choices[next++];
      }
      accept(leaf, batch);
    }
    if (watch_.stopped()) {
      gave_up_ = true;
      return;
    }
  }
}

void Scheduler::finish() {
  best_.rows = static_cast<int64_t>(rows_.size());
  if (best_.feasible) {
    double lowest = static_cast<double>(best_.step_ps) / static_cast<double>(best_.batch.samples());
    bool proven = !gave_up_;
    const auto open = [&](const Waiting& w) {
      if (useless(w)) return;
      proven = false;
      lowest = std::min(lowest, w.bound / static_cast<double>(w.samples));
    };
    if (!waiting_.empty()) open(waiting_.top());
    for (const Waiting& w : given_up_) open(w);
    if (gave_up_) lowest = 0;
    best_.optimal = proven;
    best_.lower_bound_s_per_sample = lowest * 1e-12;
    size_t transient = 0;
    while (transient + 1 < kinds_.transients.size() && kinds_.transients[transient] < best_.transient_bytes)
      ++transient;
    const Table& t = table(best_.batch.accumulation);
    const Bounded b = relax(kinds_, t, request_,
                            {best_.batch, best_.batch, best_.transient_bytes,
                             request_.reserve_bytes(best_.transient_bytes), everything(t)},
                            {}, 1e300);
    for (size_t j = 0; j < rows_.size(); ++j) {
      if (b.prices[j] > 1e-9) best_.prices.push_back({rows_[j], b.prices[j]});
    }
    best_.runners_up =
        found_.beside({best_.batch, best_.transient_bytes, best_.decision, best_.step_ps, best_.peak_bytes});
  }
  best_.seconds = watch_.seconds();
}

Schedule Scheduler::run() {
  first_rows();
  first_rows_ = rows_.size();
  if (request_.depth_first) {
    depth_first();
  } else {
    begin();
    go_on();
  }
  finish();
  return best_;
}

// The least limit under which a plan exists, by halving between what is known to be too little and enough.
// Where time runs out, a limit that works.
int64_t smallest_limit(const Model& model, Request request, const Kinds& kinds, const LeastMemory& least,
                       const Budget& budget, Stopwatch& watch) {
  request.depth_first = false;
  if (request.batches.empty()) request.batches = {{1, 1}};
  int64_t low = std::max(request.limit_bytes, least.bound_bytes - 1), high = least.peak_bytes;
  if (high >= kLargestSum) return 0;
  if (high - low <= 1 || watch.stopped()) return high;
  const bool once = std::all_of(request.batches.begin(), request.batches.end(),
                                [](const Batch& b) { return b.accumulation == 1; });
  const Kinds few = once ? leanest(kinds, 1) : kinds;
  while (high - low > 1 && !watch.spent(kLargestSum)) {
    request.limit_bytes = low + (high - low) / 2;
    const Schedule s = Scheduler(model, request, budget, few, watch, true).run();
    if (s.feasible) {
      high = std::max(low + 1, std::min(request.limit_bytes, s.peak_bytes));
    } else if (!watch.stopped()) {
      low = request.limit_bytes;
    }
  }
  return high;
}

}  // namespace

Schedule schedule(const Model& model, const Request& request, const Budget& budget) {
  if (model.operators.empty()) throw InvalidProblem("the model has no operators");
  if (request.device.ranks < 1 || request.device.ranks > (int64_t{1} << 24)) {
    throw InvalidProblem("world size " + std::to_string(request.device.ranks) + ": it must be at least 1");
  }
  if (request.device.hosts < 1 || request.device.ranks % request.device.hosts != 0) {
    throw InvalidProblem("hosts: " + std::to_string(request.device.hosts) +
                         " does not divide the world size");
  }
  if (request.limit_bytes < 0 || request.limit_bytes > kLargestSum) {
    throw InvalidProblem("the memory limit is not a size");
  }
  if (request.recompute.empty()) throw InvalidProblem("no way to treat blocks is allowed");
  if (request.space.modes.empty()) throw InvalidProblem("no mode is allowed");
  for (const Batch& b : request.batches) {
    if (b.size < 1 || b.accumulation < 1) throw InvalidProblem("a batch must have at least one sample");
  }
  for (const Operator& op : model.operators) {
    if (op.block >= static_cast<int>(model.blocks.size())) {
      throw InvalidProblem("operator '" + op.name + "': no such block");
    }
  }
  Stopwatch watch(budget);
  const Kinds kinds = find_kinds(model, request);
  const LeastMemory least = least_memory(model, request, kinds, request.limit_bytes, watch);
  Schedule s;
  if (request.depth_first || least.bound_bytes <= request.limit_bytes) {
    Scheduler scheduler(model, request, budget, kinds, watch, false);
    if (!request.depth_first && least.peak_bytes <= request.limit_bytes) {
      scheduler.offer(least.decision, least.batch);
    }
    s = scheduler.run();
  }
  // A search that was stopped does not know that nothing fits.
  if (!s.feasible && request.find_smallest && (!watch.stopped() || least.bound_bytes > request.limit_bytes)) {
    s.smallest_limit_bytes = smallest_limit(model, request, kinds, least, budget, watch);
  }
  s.seconds = watch.seconds();
  return s;
}

}  // namespace osdp::search
