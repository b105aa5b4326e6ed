#include "search/branch/runners_up.hpp"

#include <algorithm>

#include "search/problem/problem.hpp"

namespace osdp::search {

bool faster(int64_t step_ps, Batch batch, int64_t other_ps, Batch other) {
  return static_cast<int128>(step_ps) * other.samples() < static_cast<int128>(other_ps) * batch.samples();
}

bool Found::faster_than(const Found& other) const {
  return faster(step_ps, batch, other.step_ps, other.batch);
}

RunnersUp::Key RunnersUp::key_of(const Found& plan) {
  Key key{plan.batch.size, plan.batch.accumulation, 0, 0, 0};
  for (Recompute way : plan.decision.ways) ++key[2 + static_cast<size_t>(way)];
  return key;
}

void RunnersUp::offer(const Found& plan) {
  const auto [at, fresh] = found_.try_emplace(key_of(plan), plan);
  if (!fresh && plan.faster_than(at->second)) at->second = plan;
}

std::vector<Found> RunnersUp::beside(const Found& best) const {
  const auto per_sample = [](const Found& f) {
    return static_cast<double>(f.step_ps) / static_cast<double>(f.batch.samples());
  };
  std::vector<const Found*> order;
  for (const auto& [key, plan] : found_) {
    if (key != key_of(best) && per_sample(plan) <= kWithin * per_sample(best)) order.push_back(&plan);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Found* a, const Found* b) { return a->faster_than(*b); });
  if (order.size() > kMost) order.resize(kMost);
  std::vector<Found> plans;
  for (const Found* f : order) plans.push_back(*f);
  return plans;
}

}  // namespace osdp::search
