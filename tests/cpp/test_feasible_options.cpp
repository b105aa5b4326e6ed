// No plan that fits has an option that was left out, against every plan; and most options that no plan has
// are.
#include "check.hpp"
#include "random_model.hpp"
#include "search/labels/feasible_options.hpp"

using namespace osdp::search;

namespace {

int64_t options(const EquivalenceClasses& classes) {
  int64_t count = 0;
  for (const EquivalenceClass& cls : classes.classes)
    for (const Slot& slot : cls.slots)
      for (const auto& list : slot.candidates) count += static_cast<int64_t>(list.size());
  return count;
}

}  // namespace

int main() {
  Random r(23);
  int64_t searched = 0, all = 0, left = 0;
  for (int64_t turn = 0; turn < 1500; ++turn) {
    const Model model = random_model(r, 7);
    Request request = random_request(r);
    const EquivalenceClasses classes = find_equivalence_classes(model, request);
    if (count_plans(model, classes, 2001) > 2000) continue;
    if (r() % 2 == 0) request.batches = {{draw(r, 1, 3), 2}, {draw(r, 1, 3), 1}};
    auto batches = request.batches;
    if (batches.empty()) batches = {{1, 1}};
    struct Plan {
      Decision decision;
      int64_t peak;
    };
    std::vector<Plan> plans;
    int64_t least = kLargestSum;
    every_plan(model, classes, [&](const Decision& d) {
      int64_t peak = kLargestSum;
      for (const Batch& batch : batches) {
        const auto phases = plain_phases(model, request, classes, d, batch);
        peak = std::min(peak, *std::max_element(phases.begin(), phases.end()));
      }
      plans.push_back({d, peak}), least = std::min(least, peak);
    });
    request.limit_bytes = least + draw(r, 0, 1 + least / 4);
    const FeasibleOptions feasible(model, request, classes);
    for (const Plan& plan : plans) {
      Decision narrow = plan.decision;
      const bool has = feasible.narrow(narrow);
      if (plan.peak <= request.limit_bytes) CHECK(has);
      if (!has) continue;
      feasible.widen(narrow);
      CHECK(narrow == plan.decision);
    }
    all += options(classes), left += options(feasible.classes());
    request.limit_bytes = -1;  // nothing fits: then all stay
    CHECK_EQ(options(FeasibleOptions(model, request, classes).classes()), options(classes));
    ++searched;
  }
  CHECK(searched > 300);
  CHECK(left < all * 3 / 4);
  return report("test_feasible_options");
}
