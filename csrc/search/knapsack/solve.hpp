// The two solvers for the plan of least time within the memory limit: depth-first and exact.
#pragma once

#include "search/problem/problem.hpp"

namespace osdp::search {

// The paper's Algorithm 1 for one batch size: depth-first over the operators and their options in the order
// given, with its two pruning rules only (a partial plan over the memory limit; a partial plan not faster
// than the best one). Exponential in the number of operators. lower_bound_ps is 0 unless the search is
// completed. `smallest_first`: tries each operator's options by ascending memory (ties: by time), so that the
// first plan found is the one of least memory; the given order may visit very many infeasible plans first.
Solution solve_dfs(const ProblemView& problem, const Budget& budget = {}, bool smallest_first = false);

// Limits of the exact search's lists. They affect its running time and memory, not its result.
struct Tuning {
  size_t beam = 500;               // partial sums kept by the first beam search, which only finds good plans
  size_t chunk = size_t{1} << 20;  // partial sums per chunk, of 32 bytes each
  size_t long_list = 1000;         // length of head and tail from which on groups may go to the middle
};

// The proven optimum, usually in well under a millisecond; see Note [Exact search] in
// knapsack/solve_exact.cpp. If stopped early it returns the best plan so far with a valid lower bound.
Solution solve_exact(const ProblemView& problem, const Budget& budget = {}, const Tuning& tuning = {});

}  // namespace osdp::search
