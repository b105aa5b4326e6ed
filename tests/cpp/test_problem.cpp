// Problems that mean nothing are refused with the operator's name; small facts about groups, hulls and costs.
#include <cmath>
#include <limits>

#include "check.hpp"
#include "search/branch/schedule.hpp"
#include "search/certificate/plan_certificate.hpp"
#include "search/knapsack/hull_bound.hpp"
#include "search/knapsack/solve.hpp"

using namespace osdp::search;

int main() {
  CHECK_THROWS(solve_exact(Problem{{}, 1, {}}), InvalidProblem, "no operators");
  CHECK_THROWS(solve_exact(Problem{{{{1, 1}}, {}}, 1, {"a", "b"}}), InvalidProblem,
               "operator 'b' has no options");
  CHECK_THROWS(solve_exact(Problem{{{{1, 1}}, {{1, -1}}}, 1, {}}), InvalidProblem,
               "operator 1, option 0: negative memory");
  CHECK_THROWS(solve_dfs(Problem{{{{-1, 1}}}, 1, {"a"}}), InvalidProblem,
               "operator 'a', option 0: negative time");
  CHECK_THROWS(solve_dfs(Problem{{{{1, 1}}}, -1, {}}), InvalidProblem, "limit is negative");
  const int64_t max = std::numeric_limits<int64_t>::max();
  CHECK_THROWS(solve_exact(Problem{{{{max, 1}}}, 1, {}}), InvalidProblem, "total time overflows");
  CHECK_THROWS(solve_exact(Problem{{{{1, 1}}, {{1, max}}}, 1, {}}), InvalidProblem,
               "operator 1: the total memory overflows");

  // The largest numbers that are allowed.
  const int64_t half = int64_t{1} << 60;
  const Solution s = solve_exact(Problem{{{{half, 0}, {0, half}}, {{half, 0}, {0, half}}}, half, {}});
  CHECK_EQ(s.time_ps, half);
  CHECK(s.status == Status::Optimal);

  const std::vector<Option> options{{5, 5}, {9, 1}, {5, 5}, {6, 5}, {4, 9}, {7, 2}, {4, 9}};
  const auto kept = undominated(options);
  CHECK(kept == (std::vector<int>{1, 5, 0, 4}));
  CHECK(lower_hull({{9, 1}, {7, 2}, {5, 5}, {4, 9}}) == (std::vector<int>{0, 1, 2, 3}));
  CHECK(lower_hull({{9, 1}, {8, 2}, {7, 3}, {6, 9}}) == (std::vector<int>{0, 2, 3}));  // collinear points go

  // Equal options in another order, or with dominated ones between, are one group.
  const Problem alike{{{{9, 1}, {5, 5}}, {{5, 5}, {9, 1}}, {{9, 1}, {10, 4}, {5, 5}}}, 7, {}};
  const auto groups = make_groups(alike);
  CHECK_EQ(groups.size(), 1u);
  CHECK_EQ(groups[0].count, 3);
  const Solution mixed = solve_exact(alike);
  CHECK(mixed.choices == (std::vector<int>{0, 1, 2}));

  CHECK_EQ(picoseconds(1.5e-12, "x"), 2);
  for (double bad : {std::nan(""), -1e-9, std::numeric_limits<double>::infinity(), 2e6}) {
    CHECK_THROWS(picoseconds(bad, "operator 'x'"), InvalidProblem, "operator 'x'");
  }
  Operator op;
  op.name = "wide";
  op.tensors = {{int64_t{1} << 40, int64_t{1} << 40}};
  Device device;
  device.ranks = 2;
  Space space;
  space.modes = {Mode::NoShard};
  CHECK_THROWS(candidates(op, device, space, Recompute::None), InvalidProblem,
               "operator 'wide': a parameter of more");
  op.tensors = {{4, 4}};
  device.all_reduce.beta_s_per_byte = std::nan("");
  CHECK_THROWS(candidates(op, device, space, Recompute::None), InvalidProblem, "operator 'wide': a time");
  op.calls = 0;
  CHECK_THROWS(candidates(op, device, space, Recompute::None), InvalidProblem, "operator 'wide': calls");

  Model model;
  Request request;
  request.recompute = {Recompute::None};
  request.space.modes = {Mode::NoShard};
  CHECK_THROWS(schedule(model, request), InvalidProblem, "no operators");
  model.operators.emplace_back();
  model.operators[0].name = "act";
  model.operators[0].saved_bytes_per_sample = 10;
  model.operators[0].compute_s_per_sample = 1e-6;
  model.operators[0].compute_s_fixed = 1e-6;
  request.limit_bytes = 55;
  const Schedule plain = schedule(model, request);  // nothing to shard: the largest batch that fits
  CHECK(plain.feasible && plain.optimal);
  CHECK_EQ(plain.batch.size, 5);
  CHECK_EQ(plain.step_ps, 6'000'000);
  request.limit_bytes = 9;
  const Schedule none = schedule(model, request);
  CHECK(!none.feasible);
  CHECK_EQ(none.smallest_limit_bytes, 10);
  model.operators[0].compute_s_per_sample = 1e5;
  model.operators[0].saved_bytes_per_sample = 0;
  const Schedule slow = schedule(model, request);  // no batch is looked at whose times would overflow
  CHECK(slow.feasible && slow.step_ps <= int64_t{1} << 61);
  CHECK_EQ(slow.batch.size,
           23);  // the best of those that are looked at, and 24 of 1e17 ps are more than 2^61
  request.batches = {{24, 1}};
  CHECK_THROWS(schedule(model, request), InvalidProblem, "overflows 2^61");

  // A bound's shares and weights, as a plan file states them, and what a transfer takes from computation.
  request.batches.clear();
  const auto refused = [&](const std::string& why) {
    CHECK_THROWS(schedule(model, request), InvalidProblem, why);
    CHECK_THROWS(bound_of_plan_ps(model, request, {{1, 1}, {{}}, {}}), InvalidProblem, why);
  };
  for (const int64_t share : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{1025}}) {
    request.space.shares = StepShares{share, 392};
    refused("the bound's share of forward");
    request.space.shares = StepShares{392, share};
    refused("the bound's share of backward");
    request.space.shares = StepShares{392, 1024 - 392, share};
    refused("the bound's share of the link between hosts");
    request.space.shares.reset();
    request.space.pairs = {{1, 1, share}};
    refused("a pair's weight");
    request.space.pairs.clear();
  }
  for (const double stolen : {std::nan(""), -1.0, std::numeric_limits<double>::infinity()}) {
    request.device.stolen = stolen;
    refused("computation lost beside a transfer");
  }
  return report("test_problem");
}
