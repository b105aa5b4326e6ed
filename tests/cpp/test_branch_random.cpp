// solve_exact and solve_dfs against brute force on many small random problems: ties, equal operators,
// collinear options, limits on an exact sum, limits nothing fits. Also with lists so short that they are cut
// into chunks, and with groups in the middle list wherever that may be.
//
//   test_branch_random [problems]     60,000 without the argument
#include <chrono>
#include <cstdlib>
#include <random>

#include "check.hpp"
#include "search/certificate/knapsack_certificate.hpp"
#include "search/knapsack/solve.hpp"

using namespace osdp::search;

namespace {

// The least time within the limit over every plan; -1 where none fits.
int64_t brute_force(const Problem& p, size_t i = 0, int64_t time = 0, int64_t memory = 0) {
  if (memory > p.limit_bytes) return -1;
  if (i == p.operators.size()) return time;
  int64_t best = -1;
  for (const auto& o : p.operators[i]) {
    const int64_t t = brute_force(p, i + 1, time + o.time_ps, memory + o.memory_bytes);
    if (t >= 0 && (best < 0 || t < best)) best = t;
  }
  return best;
}

using Random = std::mt19937_64;
int64_t draw(Random& r, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(r() % (high - low + 1));
}

Problem random_problem(Random& r) {
  static const int64_t scales[] = {3, 10, 100, 1000000, int64_t{1} << 40};
  Problem p;
  const int64_t scale = scales[r() % 5], unit = draw(r, 1, 7);
  const int kinds = static_cast<int>(draw(r, 1, 5));
  const int shape = static_cast<int>(r() % 6);
  const int64_t start = draw(r, 1, 30) * unit;  // a collective's latency
  std::vector<std::vector<Option>> lists(kinds);
  for (auto& list : lists) {
    const int64_t options = draw(r, 1, shape == 5 ? 3 : 4), size = draw(r, 1, scale);
    for (int64_t k = 0; k < options; ++k) {
      switch (shape) {
        case 0:
          list.push_back({draw(r, 0, scale), draw(r, 0, scale)});
          break;
        case 1:
          list.push_back({unit * draw(r, 0, 9), unit * draw(r, 0, 9)});
          break;
        case 2:
          list.push_back({unit * (9 - k), unit * k + draw(r, 0, 1)});
          break;  // nearly collinear
        case 4:
        case 5:  // the paper's: messages and bytes, few lines of a lattice
          list.push_back({start * (1 + k * k) + 3 * (size % 997) * k, 5 * (size % 997) * (3 - k)});
          break;
        default:
          list.push_back({size * (8 + 4 * k) + 50 * unit * k, size * (16 - 5 * k)});
          break;  // like the paper's
      }
      if (list.back().memory_bytes < 0) list.back().memory_bytes = 0;
    }
  }
  int64_t low = 0, high = 0, exact = 0;
  // At most 10,000 plans.
  size_t plans = 1;
  const int64_t n = shape == 5 ? draw(r, 6, 9) : draw(r, 1, 6);
  for (int64_t i = 0; i < n; ++i) {
    const auto& list = lists[r() % lists.size()];
    if (i > 0 && plans * list.size() > 10000) break;
    plans *= list.size();
    p.operators.push_back(list);
    int64_t least = p.operators.back()[0].memory_bytes, most = least;
    for (const auto& o : p.operators.back()) {
      least = std::min(least, o.memory_bytes), most = std::max(most, o.memory_bytes);
    }
    low += least, high += most;
    exact += p.operators.back()[r() % p.operators.back().size()].memory_bytes;
  }
  p.limit_bytes = r() % 3 == 0 ? draw(r, low, high) : exact - static_cast<int64_t>(r() % 16 == 0);
  if (p.limit_bytes < 0) p.limit_bytes = 0;
  return p;
}

}  // namespace

int main(int argc, char** argv) {
  Random r(20230501);
  const int64_t problems = argc > 1 ? std::atoll(argv[1]) : 60000;
  int64_t infeasible = 0, tight = 0, wrong = 0, in_middle = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < problems && wrong < 5; ++i) {
    const Problem p = random_problem(r);
    const int failed_before = failures;
    const int64_t best = brute_force(p);
    const Solution exact = solve_exact(p), dfs = solve_dfs(p), cramped = solve_exact(p, {}, {2, 2});
    const Solution middle = solve_exact(p, {}, {1, size_t{1} << 20, 1});
    for (const Solution* s : {&exact, &dfs, &cramped, &middle}) {
      CHECK_EQ(static_cast<int>(s->status),
               static_cast<int>(best < 0 ? Status::Infeasible : Status::Optimal));
      if (best < 0) {
        CHECK(s->smallest_limit_bytes > p.limit_bytes);
        continue;
      }
      CHECK_EQ(s->time_ps, best);
      CHECK_EQ(s->lower_bound_ps, best);
    }
    if (best < 0) {
      ++infeasible;
      continue;
    }
    const int64_t bound = proven_lower_bound(p, exact.multiplier);
    CHECK(bound <= best);
    CHECK_EQ(check(p, exact.choices, {exact.time_ps, exact.memory_bytes, bound, exact.multiplier}), "");
    tight += exact.memory_bytes == p.limit_bytes;
    in_middle += middle.statistics.matched > 0;
    for (const Solution* s : {&cramped, &middle}) {
      CHECK_EQ(check(p, s->choices, {best, s->memory_bytes, bound, exact.multiplier}), "");
    }
    if (failures > failed_before) {
      ++wrong;
      std::cerr << "problem " << i << ": limit " << p.limit_bytes << "\n";
      for (const auto& list : p.operators) {
        for (const auto& o : list) std::cerr << " (" << o.time_ps << "," << o.memory_bytes << ")";
        std::cerr << "\n";
      }
    }
  }
  CHECK(infeasible > problems / 1000);
  CHECK(tight > problems / 100);
  CHECK(in_middle > problems / 100);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "%lld problems, %lld infeasible, %lld with no byte left, %lld with groups in the middle, %lld "
      "disagreements, "
      "%.1f s\n",
      static_cast<long long>(problems), static_cast<long long>(infeasible), static_cast<long long>(tight),
      static_cast<long long>(in_middle), static_cast<long long>(wrong), seconds);
  return report("test_branch_random");
}
