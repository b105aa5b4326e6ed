// Random machines and ways to carry out plans, with everything that the step bound has to bear.
#pragma once

#include "random_manner.hpp"
#include "random_model.hpp"

namespace osdp::search {

// Shares of the step bound.
inline StepShares random_shares(Random& dice, int64_t hosts) {
  StepShares s{draw(dice, 0, StepShares::kWhole), draw(dice, 0, StepShares::kWhole), 0};
  if (dice() % 4 == 0) s.forward = s.backward = StepShares::kWhole;
  if (dice() % 4 == 0) s.forward = s.backward = 0;
  if (dice() % 4 != 0) return s;
  const int64_t left = StepShares::kWhole - s.backward, drawn = draw(dice, 0, left);
  s.link = drawn % 2 == 0 ? left : drawn;
  if (hosts == 1 || dice() % 3 == 0) {
    std::swap(s.link, s.reductions);
    if (hosts > 1) s.link = draw(dice, 0, left - s.reductions);
    return s;
  }
  if (hosts > 1 && drawn % 3 == 0) std::swap(s.link, s.averages);
  if (hosts > 1 && drawn % 3 == 1) s.averages = left - s.link;
  return s;
}

inline Manner random_steps(Random& dice, const Model& model) {
  Manner m = manner(model);
  m.small_unit_bytes = draw(dice, 0, 200);
  m.stolen_permille = dice() % 3 == 0 ? 0 : draw(dice, 0, 1200);
  m.lanes.separate_reductions = dice() % 4 == 0;
  m.lanes.enqueue = m.lanes.separate_reductions || dice() % 4 == 0;
  if (dice() % 6 == 0)
    m.delay = {1e-9 * static_cast<double>(draw(dice, 0, 60)), 1e-10 * static_cast<double>(draw(dice, 0, 60))};
  const int n = static_cast<int>(model.operators.size());
  for (int i = 0; i < n; ++i) {
    Place& place = m.places[i];
    place.mixed = dice() % 12 == 0;
    place.dtype = dice() % 8 == 0 ? 1 : 0;
    if (dice() % 6 == 0) place.repeats = draw(dice, 2, 3);
    const bool split = model.operators[i].split_tensor >= 0;
    if (split && model.operators[i].places == 1) continue;
    if (split || dice() % 8 == 0) {  // tied
      place.modules = 2;
      const auto last = static_cast<int>(draw(dice, i, n - 1));
      place.calls.push_back({last, last});
      if (last == i) place.calls.pop_back(), place.modules = 1;
    } else if (dice() % 8 == 0) {  // of a module around others
      place.calls = {{i, static_cast<int>(draw(dice, i, n - 1))}};
    } else if (dice() % 10 == 0) {
      place.traced = false, place.gathered_at = 1000;
    }
  }
  return m;
}

inline Request random_machine(Random& dice) {
  Request request = random_request(dice);
  if (dice() % 3 == 0) {
    request.device.hosts = 2, request.device.ranks = 4;
    request.device.between_hosts = {1e-9 * static_cast<double>(draw(dice, 0, 60)),
                                    1e-10 * static_cast<double>(draw(dice, 1, 60))};
    allow_hosts(dice, request);
  }
  if (dice() % 2 == 0) request.device.protocols = random_protocols(dice);
  if (dice() % 6 == 0) allow_offload(dice, request);
  return request;
}

inline PlainPlan plain_plan(const Decision& decision, const std::vector<Where>& where, Batch batch) {
  PlainPlan plan{batch, {}, decision.ways};
  for (size_t i = 0; i < decision.choices.size(); ++i) {
    PlainPlan::Choice& choice = plan.choices.emplace_back();
    if (const Candidate* c = choice_of(where[i], decision, i))
      choice = {c->mode, c->granularity, c->sharded_slices, c->split};
  }
  return plan;
}

}  // namespace osdp::search
