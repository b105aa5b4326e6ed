// Two computations of what an option costs, the search's and the checker's: they agree on every figure, and
// what the checker proves of the step of every plan holds for all of them.
#include <array>

#include "check.hpp"
#include "random_manner.hpp"
#include "random_model.hpp"
#include "random_steps.hpp"
#include "search/bounds/pricing.hpp"
#include "search/certificate/bound_cost.hpp"
#include "search/certificate/option_cost.hpp"
#include "search/certificate/plan_certificate.hpp"
#include "search/planner/planner.hpp"

using namespace osdp::search;

namespace {

void check_agree(const Candidate& c, const OptionCost& o, const Request& request) {
  CHECK(o.choice == (PlainPlan::Choice{c.mode, c.granularity, c.sharded_slices, c.split}));
  CHECK_EQ(o.state_bytes, c.state_bytes);
  CHECK_EQ(o.optimizer_ps, c.optimizer_ps);
  if (request.paper()) {
    CHECK_EQ(static_cast<int64_t>(o.micro_batch), StepShares::kWhole * c.communication_ps);
    return;
  }
  CHECK_EQ(o.gradient_bytes, c.gradient_bytes);
  CHECK_EQ(o.own_phase_bytes, c.own_bytes);
  CHECK_EQ(o.summed_bytes, c.summed_bytes);
  CHECK_EQ(o.kept_bytes, c.gathered_bytes);
  CHECK_EQ(o.held_bytes, c.held_bytes);
  CHECK_EQ(o.left_bytes, c.left_bytes);
  CHECK_EQ(o.late_bytes, c.late_bytes);
}

void test_options_agree() {
  Random r(5);
  for (int n = 0; n < 3000; ++n) {
    const Model model = random_model(r, 6);
    Request request = random_machine(r);
    request.space.shares = random_shares(r, request.device.hosts);
    if (r() % 5 == 0) {
      request.space.cost = Cost::Paper, request.recompute = {Recompute::None};
      request.space.stage = {};
    } else if (n % 2 == 0) {
      request.space.stage.micro_batches = 1 + n % 5;
    }
    for (const Recompute way : request.recompute) {
      for (const Operator& op : model.operators) {
        const auto of_search = candidates(op, request.device, request.space, way);
        const auto of_checker = option_costs(op, request, way);
        CHECK_EQ(of_search.size(), of_checker.size());
        for (size_t k = 0; k < std::min(of_search.size(), of_checker.size()); ++k)
          check_agree(of_search[k], of_checker[k], request);
      }
    }
  }
}

// The bound of each plan, and prices of memory: what they prove of all plans is no more than the search finds
// at the same prices, and no step of a plan that fits is below it.
void test_the_bound_of_a_step() {
  Random r(7);
  int priced = 0, tight = 0;
  for (int n = 0; n < 600; ++n) {
    Model model = random_model(r, 4);
    Request request = random_machine(r);
    const Batch batch{draw(r, 1, 3), draw(r, 1, 3)};
    if (n % 2 == 0) request.space.stage.micro_batches = batch.accumulation;
    const Planner planner(model, request, random_steps(r, model));
    request = planner.request();
    request.space.shares = random_shares(r, request.device.hosts);
    request.batches = {batch};
    Request bounded = request;
    const EquivalenceClasses classes = find_equivalence_classes(planner.model(), bounded);
    if (count_plans(planner.model(), classes, 501) > 500) continue;
    const auto where = find_places(planner.model(), classes);
    int64_t fastest = kLargestSum, least = kLargestSum;
    request.limit_bytes = draw(r, 100, 4000);
    every_plan(planner.model(), classes, [&](const Decision& decision) {
      const PlainPlan plan = plain_plan(decision, where, batch);
      const int64_t of_search = step_ps(classes, decision, batch);
      const int64_t of_checker = bound_of_plan_ps(planner.model(), request, plan);
      const int64_t rounding = batch.accumulation * 36 * static_cast<int64_t>(model.operators.size() + 1);
      CHECK(std::abs(of_search - of_checker) <= rounding);
      const Step step = planner.player().step(plan, planner.units(plan));
      if (planner.player().largest_peak(step) > request.limit_bytes - request.limit_bytes / 100) return;
      fastest = std::min(fastest, planner.player().play(step).step_ps);
      least = std::min(least, of_checker);
    });
    for (int k = 0; k < 4; ++k) {
      BatchProof proof{batch, batch, {}};
      for (size_t j = 0; j < model.operators.size(); ++j)
        if (r() % 2 == 0) proof.prices.push_back({static_cast<int>(j), draw(r, 0, 20000)});
      if (k == 0) proof.prices.clear();
      const int64_t proven = proven_bound_ps(planner.model(), request, batch.samples(), {proof}, 1000);
      CHECK(proven <= fastest && proven <= std::max<int64_t>(0, least));
      priced += !proof.prices.empty() && proven > 0,
          tight += fastest < kLargestSum && proven * 20 > 19 * fastest;
    }
  }
  CHECK(priced > 300 && tight > 30);
}

template <typename Call>
bool refused(const Call& call) {
  try {
    call();
  } catch (const InvalidProblem&) {
    return true;
  }
  return false;
}

// Batch sizes without a proof, and prices of what the limit does not bound.
void test_what_is_no_proof() {
  Random r(8);
  const Model model = random_model(r, 4);
  Request request = random_request(r);
  request.space.shares = StepShares{};
  request.limit_bytes = 1000;
  const auto bound = [&](const std::vector<BatchProof>& proof, int64_t denominator = 1) {
    return proven_bound_ps(model, request, 1, proof, denominator);
  };
  request.batches = {{2, 3}, {3, 2}};
  CHECK(!refused([&] { bound({{{2, 3}, {2, 3}, {}}, {{3, 2}, {3, 2}, {}}}); }));
  CHECK(refused([&] { bound({{{2, 3}, {3, 3}, {}}}); }));
  CHECK(refused([&] { bound({}); }));
  request.batches = {};
  CHECK(!refused([&] { bound({{{1, 1}, {5, 1}, {}}, {{6, 1}, {kMostBatch, 1}, {}}}); }));
  CHECK(refused([&] { bound({{{1, 1}, {5, 1}, {}}, {{7, 1}, {kMostBatch, 1}, {}}}); }));
  CHECK(refused([&] { bound({{{1, 1}, {kMostBatch - 1, 1}, {}}}); }));
  CHECK(refused([&] { bound({{{1, 2}, {kMostBatch, 2}, {}}}); }));
  const auto priced = [&](int phase, int64_t numerator) {
    return std::vector<BatchProof>{{{1, 1}, {kMostBatch, 1}, {{phase, numerator}}}};
  };
  CHECK(!refused([&] { bound(priced(0, 1)); }));
  CHECK(refused([&] { bound(priced(-1, 1)); }) && refused([&] { bound(priced(0, -1)); }));
  CHECK(refused([&] { bound(priced(static_cast<int>(model.operators.size()), 1)); }));
  CHECK(refused([&] { bound(priced(0, int64_t{1} << 47)); }) && refused([&] { bound(priced(0, 1), 0); }));
}

}  // namespace

int main() {
  test_options_agree();
  test_the_bound_of_a_step();
  test_what_is_no_proof();
  return report("test_option_cost");
}
