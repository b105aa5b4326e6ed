// Claims about a solution, true and broken at random: each break is caught.
#include <random>

#include "check.hpp"
#include "search/certificate/knapsack_certificate.hpp"
#include "search/knapsack/solve.hpp"

using namespace osdp::search;

int main() {
  std::mt19937_64 r(11);
  int caught = 0;
  for (int n = 0; n < 5000; ++n) {
    Problem p;
    int64_t least = 0, most = 0;
    for (int i = 0; i < 6; ++i) {
      auto& list = p.operators.emplace_back();
      const auto size = static_cast<int64_t>(r() % 1000000);
      for (int k = 0; k < 4; ++k) list.push_back({size * (10 + 3 * k) + 999 * k, size * (20 - 6 * k)});
      least += list.back().memory_bytes, most += list.front().memory_bytes;
    }
    p.limit_bytes = least + static_cast<int64_t>(r() % static_cast<uint64_t>(most - least + 1));
    const Solution s = solve_exact(p);
    const Certificate c{s.time_ps, s.memory_bytes, proven_lower_bound(p, s.multiplier), s.multiplier};
    CHECK_EQ(check(p, s.choices, c), "");
    CHECK(c.lower_bound_ps <= s.lower_bound_ps);

    auto claims = c;
    auto choices = s.choices;
    auto problem = p;
    const auto off = static_cast<int64_t>(1 + r() % 1000) * (r() % 2 ? 1 : -1);
    switch (r() % 8) {
      case 0:
        claims.time_ps += off;
        break;
      case 1:
        claims.memory_bytes += off;
        break;
      case 2:
        claims.lower_bound_ps += std::abs(off);
        break;
      case 3:
        claims.multiplier.denominator = 0;
        break;
      case 4:
        choices[r() % 6] = static_cast<int>(r() % 2 ? 4 : -1);
        break;
      case 5:
        choices.pop_back();
        break;
      case 6:
        problem.limit_bytes = s.memory_bytes - 1;
        break;
      case 7:
        claims.multiplier.numerator = -claims.multiplier.numerator - 1;
        break;
    }
    if (problem.limit_bytes < 0) continue;
    CHECK(!check(problem, choices, claims).empty());
    ++caught;
  }
  std::printf("%d broken claims caught\n", caught);

  // Any multiplier gives a valid bound, only a weaker one.
  Problem p{{{{3, 9}, {8, 1}}, {{3, 9}, {8, 1}}}, 12, {}};
  for (int64_t num = 0; num < 40; ++num) CHECK(proven_lower_bound(p, {num, 7}) <= 11);
  CHECK_EQ(proven_lower_bound(p, {5, 8}), 10);  // 2 x 8 + (5/8)(2 - 12), rounded up
  // Sums that need 128 bits.
  const int64_t huge = int64_t{1} << 59;
  Problem q{{{{huge, huge}}, {{huge, huge}}}, 2 * huge, {}};
  CHECK_EQ(check(q, {0, 0}, {2 * huge, 2 * huge, 2 * huge, {huge, 1}}), "");
  return report("test_certificate");
}
