// The two searches for the plan of least time within the memory limit.
#pragma once

#include "search/problem/problem.hpp"

namespace osdp::search {

// The paper's Algorithm 1 for one batch size: depth-first over the operators and their options in the order
// given, with its two prunings only (a partial plan over the memory limit; a partial plan not faster than the
// best one). Exponential in the number of operators. lower_bound_ps is 0 until it ends. `smallest_first`: of
// each operator the options of least memory first (and of these the fastest), so that the first plan it comes
// to is the smallest one; in the order given it may try very many that do not fit before one that does.
Solution solve_dfs(const ProblemView& problem, const Budget& budget = {}, bool smallest_first = false);

// How long the exact search lets its lists grow. Results do not depend on it, only time and memory do.
struct Tuning {
  size_t beam = 500;               // partial sums kept by the first pass, which only looks for good plans
  size_t chunk = size_t{1} << 20;  // partial sums searched together, of 32 bytes each
  size_t long_list = 1000;         // partial sums from which on groups may go to the middle
};

// The proven optimum, usually in well under a millisecond; see Note [Exact search] in
// knapsack/solve_exact.cpp. Stopped early it returns the best plan so far with a valid lower bound.
Solution solve_exact(const ProblemView& problem, const Budget& budget = {}, const Tuning& tuning = {});

}  // namespace osdp::search
