// Prices and weights of all phases, and what is done to plans, on every plan of small random models.
#include "check.hpp"
#include "random_model.hpp"
#include "search/bounds/pricing.hpp"

using namespace osdp::search;

namespace {

std::vector<int64_t> all_of(const PhaseMaxima& phases) {
  std::vector<int64_t> bytes;
  for (size_t j = 0; j < phases.size(); ++j) bytes.push_back(phases.at(j));
  return bytes;
}

// Beside plain sums, with up to a few blocks.
void check_maxima(Random& r) {
  const auto n = static_cast<size_t>(draw(r, 1, 150));
  std::vector<int64_t> plain(n);
  for (int64_t& bytes : plain) bytes = draw(r, -50, 50);
  PhaseMaxima phases(plain);
  for (int turn = 0; turn < 20; ++turn) {
    const auto first = static_cast<size_t>(draw(r, 0, static_cast<int64_t>(n) - 1));
    const auto end = static_cast<size_t>(draw(r, static_cast<int64_t>(first), static_cast<int64_t>(n)));
    const int64_t bytes = draw(r, -20, 20), most = draw(r, -60, 120);
    phases.add(first, end, bytes);
    for (size_t j = first; j < end; ++j) plain[j] += bytes;
    const auto above = [&](int64_t other) { return other > most; };
    const auto at = plain.begin() + static_cast<std::ptrdiff_t>(first);
    CHECK(all_of(phases) == plain);
    CHECK_EQ(phases.before_exceeds(first, most), std::any_of(plain.begin(), at, above));
    CHECK_EQ(phases.from_exceeds(first, most), std::any_of(at, plain.end(), above));
    CHECK(phases.largest_phase() ==
          static_cast<size_t>(std::max_element(plain.begin(), plain.end()) - plain.begin()));
  }
}

}  // namespace

int main() {
  Random r(5);
  for (int turn = 0; turn < 300; ++turn) check_maxima(r);
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
    PhaseMaxima phases(plain_phases(model, request, classes, plan, batch));
    const auto as_said = [&] { return all_of(phases) == plain_phases(model, request, classes, plan, batch); };
    const auto most = [&] { return phases.at(phases.largest_phase()); };
    const int64_t before = plain_time(model, classes, plan, batch);
    const int64_t room = most() + draw(r, 0, 400);
    pricing.improve(plan, phases, room, prices);
    CHECK(as_said());
    CHECK(most() <= room);
    CHECK(plain_time(model, classes, plan, batch) <= before);
    faster += plain_time(model, classes, plan, batch) < before;

    // repair: true only where every phase fits.
    plan = plans[r() % plans.size()];
    phases = PhaseMaxima(plain_phases(model, request, classes, plan, batch));
    const int64_t tight = most() - draw(r, 0, 400);
    const bool fits = pricing.repair(plan, phases, tight);
    CHECK(as_said());
    CHECK_EQ(fits, most() <= tight);
    repaired += fits;
  }
  CHECK(faster > 100);
  CHECK(repaired > 100);
  return report("test_pricing");
}
