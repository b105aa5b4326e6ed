// The lattice and its bound against enumeration.
#include <random>
#include <set>

#include "check.hpp"
#include "search/knapsack/hull_bound.hpp"
#include "search/knapsack/lattice_bound.hpp"

using namespace osdp::search;

namespace {

using Random = std::mt19937_64;
int64_t draw(Random& r, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(r() % (high - low + 1));
}

bool on_lattice(const Lattice& l, int64_t time, int64_t memory) {
  const int64_t t = time - l.base_time_ps;
  if (l.a == 0) return t == 0 && memory == l.base_memory_bytes;
  if (t % l.a != 0) return false;
  const int64_t m = memory - l.base_memory_bytes - t / l.a * l.b;
  return l.d == 0 ? m == 0 : m % l.d == 0;
}

// The least time on the lattice that is within the limit and not under the Lagrangian line, by trying times
// upward.
int64_t slow_bound(const Lattice& l, int64_t limit, int64_t bound, Multiplier lambda) {
  for (int64_t t = bound;; ++t) {
    if ((t - l.base_time_ps) % l.a != 0) continue;
    for (int64_t m = limit; (t - bound + 1) * lambda.denominator > lambda.numerator * (limit - m); --m) {
      if (on_lattice(l, t, m)) return t;
    }
  }
}

Problem random_problem(Random& r) {
  Problem p;
  const int64_t time_unit = draw(r, 1, 6), memory_unit = draw(r, 1, 6);
  for (int64_t n = draw(r, 2, 4), i = 0; i < n; ++i) {
    auto& list = p.operators.emplace_back();
    for (int64_t o = draw(r, 2, 3), k = 0; k < o; ++k) {
      list.push_back({time_unit * draw(r, 0, 12) + 5, memory_unit * draw(r, 0, 12) + 3});
    }
  }
  p.limit_bytes = draw(r, 10, 150);
  return p;
}

}  // namespace

int main() {
  Random r(7);
  int raised = 0, compared = 0;
  for (int n = 0; n < 20000 && failures < 5; ++n) {
    const Problem p = random_problem(r);
    const auto groups = make_groups(p);
    const Lattice l = make_lattice(groups);
    // Every plan that takes undominated options is a point of the lattice.
    for (int k = 0; k < 5; ++k) {
      int64_t time = 0, memory = 0;
      for (const auto& g : groups) {
        for (int64_t c = 0; c < g.count; ++c) {
          const auto& o = g.options[r() % g.options.size()];
          time += o.time_ps, memory += o.memory_bytes;
        }
      }
      CHECK(on_lattice(l, time, memory));
    }
    const auto relaxed = relax(groups, hull_edges(groups), p.limit_bytes);
    if (!relaxed.feasible || relaxed.multiplier.numerator == 0 || l.a == 0 || l.d == 0) continue;
    const int64_t fast = lattice_bound(l, p.limit_bytes, relaxed.lower_bound_ps, relaxed.multiplier);
    CHECK_EQ(fast, slow_bound(l, p.limit_bytes, relaxed.lower_bound_ps, relaxed.multiplier));
    raised += fast > relaxed.lower_bound_ps;
    ++compared;
  }
  CHECK(compared > 2000);
  CHECK(raised > 1000);
  std::printf("%d bounds compared, %d raised\n", compared, raised);

  // Numbers whose determinant needs more than 64 bits.
  Problem big;
  big.limit_bytes = (int64_t{1} << 59) + 12345;
  big.operators = {{{(int64_t{1} << 59) - 7, 1}, {3, (int64_t{1} << 59) - 1}},
                   {{(int64_t{1} << 58) + 3, 5}, {1, (int64_t{1} << 58) + 77}}};
  const auto groups = make_groups(big);
  const Lattice l = make_lattice(groups);
  CHECK(l.a >= 1);
  CHECK(l.d >= 1);
  return report("test_lattice");
}
