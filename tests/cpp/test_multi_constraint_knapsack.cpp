// The knapsack with several memory limits against brute force: random prices, cutoffs, equal operators, ties.
#include "check.hpp"
#include "random_model.hpp"
#include "search/knapsack/multi_constraint_knapsack.hpp"

using namespace osdp::search;

namespace {

// One operator at a time.
struct Flat {
  std::vector<const std::vector<MultiConstraintKnapsack::Choice>*> operators;
  const MultiConstraintKnapsack& problem;
  int64_t best = -1;

  void search(size_t i, int64_t time, std::vector<int64_t> bytes) {
    for (size_t j = 0; j < bytes.size(); ++j) {
      if (bytes[j] > problem.limits[j]) return;
    }
    if (i == operators.size()) {
      if (best < 0 || time < best) best = time;
      return;
    }
    for (const auto& c : *operators[i]) {
      auto more = bytes;
      for (size_t j = 0; j < more.size(); ++j) more[j] += c.bytes[j];
      search(i + 1, time + c.time, std::move(more));
    }
  }
};

}  // namespace

int main() {
  Random r(3);
  int64_t infeasible = 0, tight = 0;
  for (int64_t turn = 0; turn < 20000; ++turn) {
    MultiConstraintKnapsack problem;
    const auto rows = static_cast<size_t>(draw(r, 1, 4));
    Flat flat{{}, problem, -1};
    problem.limits.assign(rows, 0);
    const int64_t scale = r() % 2 == 0 ? 5 : 1000;
    double plans = 1;
    for (int64_t k = draw(r, 1, 3); k-- > 0;) {
      MultiConstraintKnapsack::Kind kind;
      kind.count = draw(r, 1, 3);
      for (int64_t c = draw(r, 1, 4); c-- > 0;) {
        auto& choice = kind.choices.emplace_back();
        choice.time = draw(r, 0, scale);
        for (size_t j = 0; j < rows; ++j) choice.bytes.push_back(draw(r, 0, scale));
      }
      for (int64_t n = 0; n < kind.count; ++n) plans *= static_cast<double>(kind.choices.size());
      if (plans > 5000) break;
      problem.kinds.push_back(std::move(kind));
    }
    if (problem.kinds.empty()) continue;
    for (const auto& kind : problem.kinds) {
      for (int64_t n = 0; n < kind.count; ++n) {
        flat.operators.push_back(&kind.choices);
        const auto& some = kind.choices[r() % kind.choices.size()];
        for (size_t j = 0; j < rows; ++j) problem.limits[j] += some.bytes[j];
      }
    }
    if (r() % 4 == 0)
      problem.limits[r() % rows] = std::max<int64_t>(0, problem.limits[0] - draw(r, 1, scale));
    flat.search(0, 0, std::vector<int64_t>(rows, 0));
    std::vector<double> prices;
    for (size_t j = 0; j < rows; ++j)
      prices.push_back(r() % 3 == 0 ? 0 : static_cast<double>(draw(r, 0, 300)) / 100);
    const Budget budget;
    Stopwatch watch(budget);
    const int64_t cutoff = r() % 3 == 0 ? draw(r, 0, 12 * scale) : kLargestSum;
    const MultiConstraintSolution s = solve_multi_constraint(problem, prices, cutoff, watch);
    const bool there = flat.best >= 0 && flat.best < cutoff;
    CHECK_EQ(static_cast<int>(s.status), static_cast<int>(there ? Status::Optimal : Status::Infeasible));
    infeasible += !there;
    if (!there || s.status != Status::Optimal) continue;
    CHECK_EQ(s.time_ps, flat.best);
    CHECK_EQ(s.lower_bound_ps, flat.best);
    int64_t time = 0;
    std::vector<int64_t> bytes(rows, 0);
    for (size_t k = 0; k < problem.kinds.size(); ++k) {
      int64_t count = 0;
      for (size_t c = 0; c < s.counts[k].size(); ++c) {
        count += s.counts[k][c];
        time += s.counts[k][c] * problem.kinds[k].choices[c].time;
        for (size_t j = 0; j < rows; ++j) bytes[j] += s.counts[k][c] * problem.kinds[k].choices[c].bytes[j];
      }
      CHECK_EQ(count, problem.kinds[k].count);
    }
    CHECK_EQ(time, flat.best);
    for (size_t j = 0; j < rows; ++j) {
      CHECK(bytes[j] <= problem.limits[j]);
      tight += bytes[j] == problem.limits[j];
    }
  }
  CHECK(infeasible > 500);
  CHECK(tight > 5000);
  return report("test_multi_constraint_knapsack");
}
