// The branch-and-bound search over batches, recomputation and sharding.
// Note [Branch and bound over everything] in branch/branch_and_bound.cpp.
#pragma once

#include <array>
#include <map>
#include <queue>
#include <set>

#include "search/bounds/column_generation.hpp"
#include "search/bounds/pricing.hpp"
#include "search/branch/schedule.hpp"
#include "search/labels/label_setting.hpp"

namespace osdp::search {

// A bounded region that has not been branched yet.
struct BranchNode {
  double bound = 0;  // lower bound of the time for `samples`, rounded down safely
  int64_t samples = 1;
  Batch lo, hi;  // accumulation equal
  Box box;
  Mixture mixture;                             // the relaxation's optimum
  Prices prices{};                             // the parent's, as an initial guess
  size_t rows = 0;                             // number of rows it was bounded with
  int64_t number = 0;                          // breaks ties: first in, first out
  bool operator<(const BranchNode& o) const {  // std::priority_queue: the lowest bound on top
    const double a = bound / static_cast<double>(samples), b = o.bound / static_cast<double>(o.samples);
    return a != b ? a > b : number > o.number;
  }
};

// One batch, searched by label setting.
// Note [Label subproblems] in branch/label_subproblem.cpp.
struct LabelSubproblem {
  LabelSubproblem(ChainResources chain, const std::vector<double>& phase_prices)
      : labels(std::move(chain), phase_prices) {}
  LabelSetting labels;
  double allowance = 4e-3;  // relative distance above its bound up to which it is searched next
};
using SubproblemKey = std::array<int64_t, 2>;  // batch, accumulation
inline SubproblemKey key_of(const BranchNode& w) { return {w.lo.size, w.lo.accumulation}; }

class BranchAndBound {
 public:
  BranchAndBound(const Model& model, const Request& request, const Budget& budget,
                 const EquivalenceClasses& classes, Stopwatch& watch, const Known& known)
      : model_(model), request_(request), budget_(budget), watch_(watch), known_(known), classes_(classes) {}

  // An initial incumbent, if it fits.
  void offer(const Decision& decision, Batch batch) {
    accept({Status::Feasible, step_ps(classes_, decision, batch), 0, decision, 0}, batch);
  }
  Schedule run();

 private:
  void first_rows();
  void go_on();
  // False if a phase exceeds the limit; that phase is stored in broken_.
  bool accept(const FixedNode& leaf, Batch batch);
  void finish();
  Budget rest_of_budget() const;  // for a search of its own

  // Regions (branch/nodes.cpp); push() computes a region's bound.
  void begin();
  void push(BranchNode w);
  bool cut(const BranchNode& w);
  void cut_ways(const BranchNode& w);
  void rebuild_tree();
  const ColumnPool& pool(int64_t accumulation);
  Cheapest& cheapest(int64_t accumulation);
  Region region(const BranchNode& w) const;
  bool useless(const BranchNode& w) const;
  bool enough(const BranchNode& w) const { return w.bound >= enough_ps() * static_cast<double>(w.samples); }
  double enough_ps() const { return 1e12 * known_.enough_s_per_sample; }
  bool attained() const;
  double apart(const BranchNode& w) const;
  // The bound is so close that no better plan is sought before branching.
  bool near(const BranchNode& w) const { return apart(w) < 0.002; }
  int64_t cutoff(const BranchNode& w) const;

  // Exact search of one batch (branch/label_subproblem.cpp).
  void begin_subproblem(const BranchNode& w);
  bool make_subproblem(const BranchNode& w);
  bool go_on_in_subproblem(BranchNode w);
  void solve(const BranchNode& w);
  void give_up(BranchNode w, double bound);
  std::vector<double> phase_prices(const BranchNode& w) const;

  void round(const BranchNode& w);  // a heuristic for upper bounds (heuristics/rounding.cpp)
  void depth_first();               // Algorithm 1 of the paper (paper/algorithm_1.cpp)

  const Model& model_;
  const Request& request_;
  const Budget& budget_;
  Stopwatch& watch_;
  const Known known_;
  const EquivalenceClasses& classes_;
  std::set<SubproblemKey> rounded_, priced_;
  std::set<SubproblemKey> broken_rows_;  // of leaves whose plan violated a row
  size_t first_rows_ = 0;
  std::vector<int> rows_;
  std::map<int64_t, ColumnPool> pools_;   // by accumulation
  std::map<int64_t, Cheapest> cheapest_;  // by accumulation
  std::priority_queue<BranchNode> open_;
  Schedule best_;
  RunnersUp found_;
  int64_t number_ = 0;
  int broken_ = 0;  // the phase over the limit in the last plan that accept() refused
  std::map<SubproblemKey, LabelSubproblem> subproblems_;
  std::vector<BranchNode> given_up_;  // leaves that were not solved exactly
  bool gave_up_ = false;              // the depth-first search stopped early
};

}  // namespace osdp::search
