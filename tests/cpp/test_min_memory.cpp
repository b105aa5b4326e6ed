// The least memory, to the byte, against every plan of every batch asked for.
#include "check.hpp"
#include "random_model.hpp"
#include "search/branch/schedule.hpp"
#include "search/labels/min_memory_bound.hpp"

using namespace osdp::search;

int main() {
  Random r(16);
  int64_t searched = 0;
  for (int64_t turn = 0; turn < 1500; ++turn) {
    const Model model = random_model(r, 7);
    Request request = random_request(r);
    const EquivalenceClasses classes = find_equivalence_classes(model, request);
    if (count_plans(model, classes, 3001) > 3000) continue;
    if (r() % 2 == 0) request.batches = {{draw(r, 1, 3), 2}, {draw(r, 1, 3), 1}};
    auto batches = request.batches;
    if (batches.empty()) batches = {{1, 1}};
    int64_t least = kLargestSum;
    every_plan(model, classes, [&](const Decision& d) {
      for (const Batch& batch : batches) {
        const auto phases = plain_phases(model, request, classes, d, batch);
        least = std::min(least, *std::max_element(phases.begin(), phases.end()));
      }
    });
    const Budget budget;
    Stopwatch watch(budget);
    const MinMemory found = min_memory(model, request, classes, -1, watch);
    CHECK_EQ(found.peak_bytes, least);
    CHECK_EQ(found.bound_bytes, least);
    const auto phases = plain_phases(model, request, classes, found.decision, found.batch);
    CHECK(*std::max_element(phases.begin(), phases.end()) <= least);
    // A byte less is infeasible, and the search says what would do.
    request.limit_bytes = least - 1;
    const Schedule s = schedule(model, request);
    CHECK(!s.feasible);
    CHECK_EQ(s.smallest_limit_bytes, least);
    request.limit_bytes = least;
    const Schedule t = schedule(model, request);
    CHECK(t.feasible);
    CHECK(t.optimal);
    ++searched;
  }
  CHECK(searched > 300);
  return report("test_min_memory");
}
