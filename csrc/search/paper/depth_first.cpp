#include "search/knapsack/solve.hpp"

#include <algorithm>
#include <numeric>

namespace osdp::search {

// Explicit stack: models have more operators than a call stack has frames.
Solution solve_dfs(const ProblemView& problem, const Budget& budget, bool smallest_first) {
  validate(problem);
  Stopwatch watch(budget);
  Solution best;
  const size_t n = problem.operators.size();
  for (const auto options : problem.operators) {
    best.smallest_limit_bytes +=
        std::min_element(options.begin(), options.end(), [](const Option& a, const Option& b) {
          return a.memory_bytes < b.memory_bytes;
        })->memory_bytes;
  }
  std::vector<std::vector<int>> order(n);  // order in which options are tried
  for (size_t i = 0; i < n; ++i) {
    const auto options = problem.operators[i];
    order[i].resize(options.size());
    std::iota(order[i].begin(), order[i].end(), 0);
    if (!smallest_first) continue;
    std::stable_sort(order[i].begin(), order[i].end(), [&](int a, int b) {
      const Option &x = options[a], &y = options[b];
      return x.memory_bytes != y.memory_bytes ? x.memory_bytes < y.memory_bytes : x.time_ps < y.time_ps;
    });
  }
  std::vector<int> choice(n, -1);  // as indices into `order`
  std::vector<int64_t> time(n + 1, 0), memory(n + 1, 0);
  bool found = false;
  size_t depth = 0;
  for (;;) {
    if (watch.spent()) break;
    auto& k = choice[depth];
    if (++k == static_cast<int>(problem.operators[depth].size())) {
      k = -1;
      if (depth == 0) break;
      --depth;
      continue;
    }
    best.statistics.nodes++;
    const Option& o = problem.operators[depth][order[depth][k]];
    time[depth + 1] = time[depth] + o.time_ps;
    memory[depth + 1] = memory[depth] + o.memory_bytes;
    if (memory[depth + 1] > problem.limit_bytes) continue;
    if (found && time[depth + 1] >= best.time_ps) continue;
    if (depth + 1 < n) {
      ++depth;
      continue;
    }
    found = true;
    best.time_ps = time[n];
    best.memory_bytes = memory[n];
    best.choices.resize(n);
    for (size_t i = 0; i < n; ++i) best.choices[i] = order[i][choice[i]];
  }
  best.statistics.seconds = watch.seconds();
  if (!found) {
    // Stopped before any plan was found: infeasible only if the limit is below the smallest one.
    best.status = best.smallest_limit_bytes > problem.limit_bytes ? Status::Infeasible : Status::Feasible;
    return best;
  }
  best.status = watch.stopped() ? Status::Feasible : Status::Optimal;
  if (best.status == Status::Optimal) best.lower_bound_ps = best.time_ps;
  return best;
}

}  // namespace osdp::search
