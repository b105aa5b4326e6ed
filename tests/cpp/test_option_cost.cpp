// Two computations of what an option costs, the search's and the checker's: they agree on every figure, and
// where the search's is wrong by the least amount its plan does not check.
#include <array>

#include "check.hpp"
#include "random_model.hpp"
#include "search/bounds/pricing.hpp"
#include "search/branch/schedule.hpp"
#include "search/certificate/option_cost.hpp"
#include "search/certificate/plan_certificate.hpp"

using namespace osdp::search;

namespace {

Request any_request(Random& r) {
  Request request = random_request(r);
  Device& device = request.device;
  if (r() % 2 == 0) {
    device.hosts = draw(r, 1, 3), device.ranks = device.hosts * draw(r, 1, 4);
    device.between_hosts = {1e-9 * static_cast<double>(draw(r, 0, 90)),
                            1e-10 * static_cast<double>(draw(r, 1, 90))};
    if (r() % 2 == 0) request.space.modes.push_back(Mode::HybridShard);
  }
  if (r() % 2 == 0) device.protocols = random_protocols(r);
  device.exposed = 0.1 * static_cast<double>(draw(r, 0, 20));
  if (r() % 2 == 0) request.space.granularities = {2, 3, 4};
  if (r() % 4 == 0) request.space.modes.erase(request.space.modes.begin());
  if (r() % 3 == 0) request.space.cost_version = draw(r, 1, kCostVersion);
  if (r() % 5 == 0) request.space.cost = Cost::Paper, request.recompute = {Recompute::None};
  return request;
}

void check_agree(const Candidate& c, const OptionCost& o) {
  CHECK(o.choice == (PlainPlan::Choice{c.mode, c.granularity, c.sharded_slices, c.split}));
  CHECK_EQ(o.state_bytes, c.state_bytes);
  CHECK_EQ(o.gradient_bytes, c.gradient_bytes);
  CHECK_EQ(o.own_phase_bytes, c.own_bytes);
  CHECK_EQ(o.kept_bytes, c.gathered_bytes);
  CHECK_EQ(o.held_bytes, c.held_bytes);
  CHECK_EQ(o.transient_bytes, c.transient_bytes);
  CHECK_EQ(o.communication_ps, c.communication_ps);
  CHECK_EQ(o.optimizer_ps, c.optimizer_ps);
}

void test_agree() {
  Random r(5);
  for (int n = 0; n < 3000; ++n) {
    const Model model = random_model(r, 6);
    const Request request = any_request(r);
    for (const Recompute way : request.recompute) {
      for (const Operator& op : model.operators) {
        const auto of_search = candidates(op, request.device, request.space, way);
        const auto of_checker = option_costs(op, request, way);
        CHECK_EQ(of_search.size(), of_checker.size());
        for (size_t k = 0; k < std::min(of_search.size(), of_checker.size()); ++k)
          check_agree(of_search[k], of_checker[k]);
      }
    }
    for (const bool accumulates : {false, true})
      CHECK_EQ(averaging_bytes(model.operators, request.device, request.space, accumulates),
               static_cast<int64_t>(averaging_cost_bytes(model, request, accumulates)));
  }
}

// Every figure that the search reads of a candidate.
constexpr std::array kFigures{&Candidate::state_bytes,  &Candidate::gradient_bytes,
                              &Candidate::own_bytes,    &Candidate::gathered_bytes,
                              &Candidate::held_bytes,   &Candidate::transient_bytes,
                              &Candidate::optimizer_ps, &Candidate::communication_ps};

PlanClaims claims_of(const Model& model, const Request& request, const Kinds& kinds, const Schedule& s) {
  const auto phases = phase_bytes(model, request, kinds, s.decision, s.batch);
  const int64_t reserve = request.reserve_bytes(largest_transient(kinds, s.decision));
  return {step_ps(kinds, s.decision, s.batch),
          *std::max_element(phases.begin(), phases.end()) + reserve,
          0,
          {},
          1};
}

PlainPlan plan_of(const Model& model, const Kinds& kinds, const Schedule& s) {
  const auto where = find_places(model, kinds);
  PlainPlan plan{s.batch, {}, s.decision.ways};
  for (size_t i = 0; i < model.operators.size(); ++i) {
    const Candidate* c = choice_of(where[i], s.decision, i);
    plan.choices.push_back(c == nullptr
                               ? PlainPlan::Choice{}
                               : PlainPlan::Choice{c->mode, c->granularity, c->sharded_slices, c->split});
  }
  return plan;
}

void test_wrong_costs_are_caught() {
  Random r(6);
  std::array<int, kFigures.size()> caught{};
  for (int n = 0; n < 300; ++n) {
    const Model model = random_model(r, 5);
    Request request = any_request(r);
    request.space.cost = Cost::Osdp;
    request.limit_bytes = draw(r, 200, 5000);
    request.batches = {{draw(r, 1, 3), draw(r, 1, 2)}};
    const Schedule found = schedule(model, request, {});
    if (!found.feasible) continue;
    const Kinds kinds = find_kinds(model, request);
    const PlainPlan plan = plan_of(model, kinds, found);
    const PlanClaims right = claims_of(model, request, kinds, found);
    CHECK_EQ(check_plan(model, request, plan, right), "");
    for (size_t figure = 0; figure < kFigures.size(); ++figure) {
      Kinds wrong = kinds;
      for (Kind& kind : wrong.kinds)
        for (Slot& slot : kind.slots)
          for (auto& list : slot.candidates)
            for (Candidate& c : list) c.*kFigures[figure] += 1;
      const PlanClaims claims = claims_of(model, request, wrong, found);
      if (claims.time_ps == right.time_ps && claims.memory_bytes == right.memory_bytes) continue;
      CHECK(!check_plan(model, request, plan, claims).empty());
      ++caught[figure];
    }
  }
  for (const int times : caught) CHECK(times > 9);
}

}  // namespace

int main() {
  test_agree();
  test_wrong_costs_are_caught();
  return report("test_option_cost");
}
