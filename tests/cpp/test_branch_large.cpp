// Models of the paper's shape with the paper's cost: many operators, 31 options each, checked by their
// certificate and by each other; and problems too large for anything but a bound.
#include <algorithm>
#include <random>

#include "check.hpp"
#include "search/certificate/knapsack_certificate.hpp"
#include "search/knapsack/solve.hpp"

using namespace osdp::search;

namespace {

std::vector<Option> paper_options(int64_t elements, int64_t ranks) {
  const auto dp = [&](int64_t bytes) { return 2 * (ranks - 1) * (20'000'000 + bytes / ranks * 100); };
  const auto zdp = [&](int64_t bytes) { return 3 * (ranks - 1) * (20'000'000 + bytes / ranks * 100); };
  const int64_t bytes = 4 * elements;
  std::vector<Option> list{{dp(bytes), 4 * bytes}};
  for (int64_t g : {1, 2, 4, 8, 16}) {
    for (int64_t k = 1; k <= g; ++k) {
      const int64_t whole = bytes / g * (g - k);
      list.push_back({(whole ? dp(whole) : 0) + k * zdp(bytes / g), 4 * whole + 4 * (bytes - whole) / ranks});
    }
  }
  return list;
}

Problem paper_model(const std::vector<int64_t>& widths, double tightness) {
  Problem p;
  int64_t least = 0, most = 0;
  const auto add = [&](int64_t elements) {
    p.operators.push_back(paper_options(elements, 8));
    least += p.operators.back()[1].memory_bytes, most += p.operators.back()[0].memory_bytes;
  };
  add(50257 * widths[0]);
  for (int64_t w : widths) add(4 * w * w), add(8 * w * w);
  p.limit_bytes = least + static_cast<int64_t>(static_cast<double>(most - least) * tightness);
  return p;
}

void check_solution(const Problem& p, const Solution& s) {
  CHECK(s.status == Status::Optimal);
  CHECK_EQ(s.time_ps, s.lower_bound_ps);
  const int64_t bound = proven_lower_bound(p, s.multiplier);
  CHECK_EQ(check(p, s.choices, {s.time_ps, s.memory_bytes, bound, s.multiplier}), "");
}

}  // namespace

int main() {
  std::mt19937_64 r(3);
  for (double tightness : {0.02, 0.25, 0.5, 0.75, 0.98}) {
    for (const auto& widths : {std::vector<int64_t>(96, 1024), std::vector<int64_t>(4, 8192),
                               std::vector<int64_t>{1024, 1024, 2048, 2048, 4096, 4096}}) {
      const Problem p = paper_model(widths, tightness);
      const Solution s = solve_exact(p);
      check_solution(p, s);
      const auto gap = s.time_ps - proven_lower_bound(p, s.multiplier);
      CHECK(static_cast<double>(gap) < 2e-3 * static_cast<double>(s.time_ps));
      // The order of operators does not matter.
      Problem shuffled = p;
      std::shuffle(shuffled.operators.begin(), shuffled.operators.end(), r);
      const Solution t = solve_exact(shuffled);
      CHECK_EQ(t.time_ps, s.time_ps);
      CHECK_EQ(t.statistics.nodes, s.statistics.nodes);
      // A byte less than the plan holds: no better plan, and that one no longer fits.
      Problem tighter = p;
      tighter.limit_bytes = s.memory_bytes - 1;
      CHECK(solve_exact(tighter).time_ps >= s.time_ps);
    }
  }

  // All options of all operators on one line, one group: C(96 + 30, 30) ways to split it, all of them ties
  // but for memory.
  Problem line;
  for (int i = 0; i < 96; ++i) {
    auto& list = line.operators.emplace_back();
    for (int64_t k = 0; k <= 30; ++k) list.push_back({(30 - k) * 7, k * 11});
  }
  line.limit_bytes = 96 * 15 * 11 + 5;
  const Solution s = solve_exact(line);
  check_solution(line, s);
  CHECK_EQ(s.time_ps, 96 * 15 * 7);

  // Irregular sizes, many partial sums: short lists, searched in chunks, and long ones agree.
  int64_t most_nodes = 0;
  for (int n = 0; n < 40; ++n) {
    Problem p;
    int64_t memory = 0;
    for (int i = 0; i < 28; ++i) {
      const auto size = static_cast<int64_t>(1000000 + r() % 1000000);
      p.operators.push_back({{0, size}, {size + 1000000 + static_cast<int64_t>(r() % 2000), 0}});
      memory += size;
    }
    p.limit_bytes = memory / 2 + 1;
    const Solution whole = solve_exact(p), cut = solve_exact(p, {}, {4, 64});
    check_solution(p, whole);
    check_solution(p, cut);
    CHECK_EQ(whole.time_ps, cut.time_ps);
    CHECK(cut.statistics.largest_list <= 64 * 4);
    most_nodes = std::max(most_nodes, cut.statistics.nodes);
  }
  CHECK(most_nodes > 10000);
  std::printf("up to %lld nodes in chunks\n", static_cast<long long>(most_nodes));

  // 20,000 operators of 500 kinds: a small gap at once, whatever is proven later.
  Problem large;
  std::vector<std::vector<Option>> kinds;
  for (int k = 0; k < 500; ++k)
    kinds.push_back(paper_options(16 * static_cast<int64_t>(1000 + r() % 5000000), 16));
  int64_t least = 0, most = 0;
  for (int i = 0; i < 20000; ++i) {
    large.operators.push_back(kinds[r() % 500]);
    least += large.operators.back()[1].memory_bytes, most += large.operators.back()[0].memory_bytes;
  }
  large.limit_bytes = least + (most - least) / 3;
  const Solution big = solve_exact(large, {0.5, {}});
  CHECK(big.status != Status::Infeasible);
  CHECK(static_cast<double>(big.time_ps - big.lower_bound_ps) < 1e-5 * static_cast<double>(big.time_ps));

  // An interrupt is obeyed, and what is returned holds.
  int asked = 0;
  const Solution stopped = solve_dfs(large, {0, [&] { return ++asked >= 3; }});
  CHECK(stopped.status == Status::Feasible);
  CHECK_EQ(asked, 3);
  return report("test_branch_large");
}
