#include <algorithm>
#include <utility>

#include "search/branch/branch_and_bound.hpp"

namespace osdp::search {

// Note [Cells]
// One batch size and largest transient is solved exactly in one of two ways. Where rows were broken one after
// another, as a sequence (labels/label_setting.hpp), at the prices of Note [All phases]: plans are looked for
// up to some distance above the bound; where there are none, the bound rises by that much, and the cell waits
// for its turn like any region, to look further then. Else it is cut around its relaxation's recomputation
// (branch/branch_and_bound.cpp) until a leaf is left (branch/fixed_node.hpp). So it is, too, where a
// sequence's lists grow too long.

bool Scheduler::make_cell(const Waiting& w, const std::vector<double>& prices) {
  Series series = this->series(w, false);
  if (!series.possible()) return false;
  cells_.erase(key_of(w));
  cells_.try_emplace(key_of(w), std::move(series), prices);
  return true;
}

// False where this region is not searched so.
bool Scheduler::go_on_in_cell(Waiting w) {
  constexpr size_t kLongest = 100000;
  constexpr double kWider = 2.25;
  const auto at = cells_.find(key_of(w));
  if (at == cells_.end()) return false;
  Cell& cell = at->second;
  if (!std::exchange(cell.begun, true) && apart(w) > 0.02 && !least_plan(w, cell.prices)) {
    cells_.erase(at);
    return true;
  }
  int64_t most = cutoff(w) - 1;
  const double target = cell.sequence.bound_ps() * (1 + cell.allowance);
  if (target < static_cast<double>(most)) most = static_cast<int64_t>(target);
  cell.allowance *= kWider;
  const SequenceFound found = cell.sequence.look(most, cutoff(w), kLongest, watch_);
  if (!found.seen.choices.empty()) accept({Status::Feasible, found.seen_ps, 0, found.seen, 0}, w.lo);
  best_.leaves++;
  best_.nodes += found.nodes;
  if (!found.complete) {
    const std::vector<double> prices = std::move(cell.prices);
    cells_.erase(at);
    const bool added = !watch_.stopped() && add_rows(prices);
    waiting_.push(std::move(w));
    if (added) gather();
    return true;
  }
  if (found.found) {
    if (accept({Status::Optimal, found.time_ps, 0, found.decision, 0}, w.lo)) return true;
    if (w.lean == w.large) {
      give_up(w, w.bound);
    } else {  // too large with what its own transient needs
      w.bound = std::max(w.bound, static_cast<double>(found.time_ps));
      cells_.erase(at);
      cut_transients(w);
    }
    return true;
  }
  w.bound = std::max(w.bound, static_cast<double>(most) + 1);
  w.number = number_++;
  if (!useless(w)) waiting_.push(std::move(w));
  return true;
}

void Scheduler::give_up(Waiting w, double bound) {
  w.bound = std::max(w.bound, bound);
  given_up_.push_back(std::move(w));
}

void Scheduler::solve(const Waiting& w) {
  const Table& t = table(w.lo.accumulation);
  Cheapest& choices = cheapest(w.lo.accumulation);
  const Bounded bounded = relax(kinds_, t, request_, region(w), choices, w.prices, 1e300);
  if (!bounded.feasible) return;
  const int64_t cutoff = this->cutoff(w);
  Budget rest = budget_;
  if (rest.time_limit_s > 0) rest.time_limit_s = std::max(1e-3, rest.time_limit_s - watch_.seconds());
  const Leaf leaf = solve_leaf(kinds_, t, request_, region(w), bounded, model_, cutoff, watch_, rest);
  best_.leaves++;
  best_.nodes += leaf.nodes;
  watch_.ask();
  const auto bound = static_cast<double>(leaf.lower_bound_ps);
  if (leaf.decision.choices.empty() || accept(leaf, w.lo)) {
    if (leaf.status == Status::Feasible) give_up(w, bound);
    return;
  }
  give_up(w, bound);
  if (rows_.size() < kMostRows && std::find(rows_.begin(), rows_.end(), broken_) == rows_.end()) {
    rows_.push_back(broken_);
    gather();
  }
}

}  // namespace osdp::search
