// A multiple-choice knapsack with several memory limits, for problems with several binding phases.
#pragma once

#include "search/problem/problem.hpp"

namespace osdp::search {

inline constexpr size_t kMostLimits = 24;

struct MultiConstraintKnapsack {
  struct Choice {
    int64_t time = 0;
    std::vector<int64_t> bytes;  // by row
  };
  struct Kind {
    int64_t count = 0;  // number of operators that choose from `choices`
    std::vector<Choice> choices;
  };
  std::vector<Kind> kinds;
  std::vector<int64_t> limits;  // by row
};

struct MultiConstraintSolution {
  Status status = Status::Infeasible;
  int64_t time_ps = 0, lower_bound_ps = 0;
  std::vector<std::vector<int64_t>> counts;  // [kind][choice]
};

// The least time within all limits. `prices` (ps per byte, by row) define the search's Lagrangian bound; the
// relaxation's optimal multipliers are best. Only plans faster than `cutoff_ps` are searched for; without one
// the status is Infeasible. See Note [Several limits] in knapsack/multi_constraint_knapsack.cpp.
MultiConstraintSolution solve_multi_constraint(const MultiConstraintKnapsack& problem,
                                               const std::vector<double>& prices, int64_t cutoff_ps,
                                               Stopwatch& watch);

}  // namespace osdp::search
