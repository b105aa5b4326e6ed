// Prices and weights of all phases, and what is done to plans, on every plan of small random models.
#include "check.hpp"
#include "random_model.hpp"
#include "search/bounds/pricing.hpp"

using namespace osdp::search;

int main() {
  Random r(5);
  int64_t faster = 0, repaired = 0;
  for (int64_t turn = 0; turn < 1500; ++turn) {
    const Model model = random_model(r, 6);
    Request request = random_request(r);
    const EquivalenceClasses classes = find_equivalence_classes(model, request);
    if (count_plans(model, classes, 2001) > 2000) continue;
    const Batch batch{draw(r, 1, 3), draw(r, 1, 2)};
    const size_t n = model.operators.size();
    std::vector<double> prices(n), weights(n);
    for (size_t j = 0; j < n; ++j) prices[j] = static_cast<double>(draw(r, 0, 2) * draw(r, 0, 900));
    for (size_t j = 0; j < n; ++j) weights[j] = static_cast<double>(draw(r, 0, 2));
    const auto priced = [&](const std::vector<double>& at, const Decision& d) {
      const auto phases = plain_phases(model, request, classes, d, batch);
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += at[j] * static_cast<double>(phases[j]);
      return sum;
    };
    const auto cost = [&](const Decision& d) {
      return static_cast<double>(plain_time(model, classes, d, batch)) + priced(prices, d);
    };
    double least = 1e300, lightest = 1e300;
    std::vector<Decision> plans;
    every_plan(model, classes, [&](const Decision& d) {
      least = std::min(least, cost(d));
      lightest = std::min(lightest, priced(weights, d));
      plans.push_back(d);
    });
    const Pricing pricing(model, request, classes, batch, false);
    const Pricing memory(model, request, classes, batch, true);
    CHECK_EQ(pricing.possible(), !plans.empty());
    if (plans.empty()) continue;
    CHECK_EQ(pricing.phases(), n);
    CHECK(std::abs(cost(pricing.cheapest(prices)) - least) <= 1e-9 * (1 + std::abs(least)));
    CHECK(priced(weights, memory.cheapest(weights)) == lightest);

    // improve: no slower, within the limit, phases kept up to date.
    Decision plan = plans[r() % plans.size()];
    auto phases = plain_phases(model, request, classes, plan, batch);
    const int64_t before = plain_time(model, classes, plan, batch);
    const int64_t room = *std::max_element(phases.begin(), phases.end()) + draw(r, 0, 400);
    pricing.improve(plan, phases, room, prices);
    CHECK(phases == plain_phases(model, request, classes, plan, batch));
    CHECK(*std::max_element(phases.begin(), phases.end()) <= room);
    CHECK(plain_time(model, classes, plan, batch) <= before);
    faster += plain_time(model, classes, plan, batch) < before;

    // repair: true only where every phase fits.
    plan = plans[r() % plans.size()];
    phases = plain_phases(model, request, classes, plan, batch);
    const int64_t tight = *std::max_element(phases.begin(), phases.end()) - draw(r, 0, 400);
    const bool fits = pricing.repair(plan, phases, tight);
    CHECK(phases == plain_phases(model, request, classes, plan, batch));
    CHECK_EQ(fits, *std::max_element(phases.begin(), phases.end()) <= tight);
    repaired += fits;
  }
  CHECK(faster > 100);
  CHECK(repaired > 100);
  return report("test_pricing");
}
