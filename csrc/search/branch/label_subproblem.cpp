#include <algorithm>
#include <cmath>
#include <utility>

#include "search/branch/branch_and_bound.hpp"

namespace osdp::search {

// Note [Label subproblems]
// One batch size is solved exactly in one of two ways. If row after row was violated, by label setting
// (labels/label_setting.hpp) at the rows' prices: plans are searched up to some distance above the bound; if
// there are none, the bound rises by that distance, and the subproblem returns to the heap like any region,
// to be searched further later. Otherwise it is branched on its
// recomputation (branch/branch_and_bound.cpp) until a leaf is left, of which one row is kept
// (branch/fixed_node.hpp). The second way is also the fallback if lists of labels grow too long; and where a
// leaf's plan violates another row, the first one is.

bool BranchAndBound::make_subproblem(const BranchNode& w) {
  ChainResources chain(model_, request_, classes_, w.lo);
  if (!chain.possible()) return false;
  subproblems_.erase(key_of(w));
  subproblems_.try_emplace(key_of(w), std::move(chain), phase_prices(w));
  return true;
}

// If row after row was violated.
void BranchAndBound::begin_subproblem(const BranchNode& w) {
  if (rows_.size() < first_rows_ + 2 || !priced_.insert(key_of(w)).second) return;
  make_subproblem(w);
}

// The prices of a region's rows, indexed by phase.
std::vector<double> BranchAndBound::phase_prices(const BranchNode& w) const {
  std::vector<double> prices(request_.paper() ? 1 : model_.operators.size(), 0);
  for (size_t j = 0; j < rows_.size(); ++j) prices[static_cast<size_t>(std::max(rows_[j], 0))] += w.prices[j];
  return prices;
}

// False if this region is not searched by label setting.
bool BranchAndBound::go_on_in_subproblem(BranchNode w) {
  constexpr size_t kLongest = 100000;
  constexpr double kWider = 2.25;
  const auto at = subproblems_.find(key_of(w));
  if (at == subproblems_.end()) return false;
  LabelSubproblem& subproblem = at->second;
  int64_t most = cutoff(w) - 1;
  const double bound = subproblem.labels.bound_ps();  // of a step bound it may be 0 or less
  const double target = bound + subproblem.allowance * std::max(1.0, std::abs(bound));
  if (target < static_cast<double>(most)) most = static_cast<int64_t>(target);
  if (const double enough = enough_ps() * static_cast<double>(w.samples); enough < static_cast<double>(most))
    most = static_cast<int64_t>(std::ceil(enough));
  subproblem.allowance *= kWider;
  const LabelSettingResult found = subproblem.labels.look(most, cutoff(w), kLongest, watch_);
  if (!found.seen.choices.empty()) accept({Status::Feasible, found.seen_ps, 0, found.seen, 0}, w.lo);
  best_.leaves++;
  best_.nodes += found.nodes;
  if (!found.complete) {
    w.bound = std::max(w.bound, subproblem.labels.proven_ps());
    subproblems_.erase(at);
    open_.push(std::move(w));
    return true;
  }
  if (found.found) {
    if (accept({Status::Optimal, found.time_ps, 0, found.decision, 0}, w.lo)) return true;
    give_up(w, w.bound);
    return true;
  }
  w.bound = std::max(w.bound, static_cast<double>(most) + 1);
  w.number = number_++;
  // Integers decide it: above 2^53 ps a bound in floating point may stay below the incumbent.
  if (most < cutoff(w) - 1 && !useless(w)) open_.push(std::move(w));
  return true;
}

void BranchAndBound::give_up(BranchNode w, double bound) {
  w.bound = std::max(w.bound, bound);
  given_up_.push_back(std::move(w));
}

void BranchAndBound::solve(const BranchNode& w) {
  const ColumnPool& t = pool(w.lo.accumulation);
  Cheapest& choices = cheapest(w.lo.accumulation);
  const Bounded bounded = relax(classes_, t, request_, region(w), choices, w.prices, 1e300);
  if (!bounded.feasible) return;
  const int64_t cutoff = this->cutoff(w);
  const FixedNode leaf =
      solve_fixed_node(classes_, t, request_, region(w), bounded, model_, cutoff, rest_of_budget());
  best_.leaves++;
  best_.nodes += leaf.nodes;
  watch_.ask();
  const auto bound = static_cast<double>(leaf.lower_bound_ps);
  if (leaf.decision.choices.empty() || accept(leaf, w.lo)) {
    if (leaf.status == Status::Feasible) give_up(w, bound);
    return;
  }
  if (std::find(rows_.begin(), rows_.end(), broken_) != rows_.end()) {
    if (!broken_rows_.insert(key_of(w)).second || !make_subproblem(w)) return give_up(w, bound);
    BranchNode again = w;
    again.bound = std::max(w.bound, bound);
    open_.push(std::move(again));
    return;
  }
  give_up(w, bound);
  if (rows_.size() == kMostRows) return;
  rows_.push_back(broken_);
  rebuild_tree();
}

}  // namespace osdp::search
