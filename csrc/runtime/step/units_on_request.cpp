// What a script asks of units, by FSDP2's methods: osdp/fsdp/fsdp_module.py.
//
// Note [Units that stay gathered]
// FSDP2's reshard_after_forward=False, set_reshard_after_forward(False), set_reshard_after_backward(False)
// and unshard() leave a unit gathered when a pass ends, so that the next pass, or the next of many forwards,
// gathers nothing. It is resharded by the next forward or backward after which it may not stay, by reshard(),
// by an exception, and before anything that changes this rank's rows: a step of an optimizer that has one of
// its parameters, and a scope of full parameters. Other writes in place (load_state_dict, a script's own
// update) increment the parameters' versions: the next forward gathers again. All of that follows from the
// script, which all ranks run alike. FSDP2 would go on with the old values. Writes through p.data are not
// seen, there and here.
//   unshard() is a gather ahead of its use, no more: a forward after which its units do not stay reshards
//   them.
// Parameters show this rank's rows meanwhile, since the optimizer's tensors are the same objects.
#include <algorithm>

#include "runtime/step/unit_scheduler.hpp"

namespace osdp::runtime {

using Phase = UnitState::Phase;

// In the model's order, each once. Slices of split weights are gathered by their product alone.
std::vector<Unit*> UnitScheduler::units_with(const std::vector<int64_t>& params) const {
  std::vector<char> asked(states_.size());
  for (const int64_t i : params)
    if (const Unit* unit = shards_.place_of(shards_.parameter(i)).unit) asked[unit->index] = 1;
  std::vector<Unit*> units;
  for (const auto& unit : shards_.units())
    if (asked[unit->index]) units.push_back(unit.get());
  return units;
}

void UnitScheduler::set_stays_after_forward(const std::vector<int64_t>& params, bool stays) {
  for (const Unit* unit : units_with(params)) state_of(*unit).stays_after_forward = stays;
  set_prefetch(depth_.units, asked_bytes_);
}

void UnitScheduler::set_stays_if_kept(const std::vector<int64_t>& params, bool stays) {
  for (const Unit* unit : units_with(params)) state_of(*unit).stays_if_kept = stays;
}

void UnitScheduler::set_stays_after_backward(const std::vector<int64_t>& params, bool stays) {
  for (const Unit* unit : units_with(params)) state_of(*unit).stays_after_backward = stays;
}

void UnitScheduler::set_gathers_in_backward(const std::vector<int64_t>& params, bool gathers) {
  for (const Unit* unit : units_with(params)) state_of(*unit).gathers_in_backward = gathers;
}

void UnitScheduler::unshard(const std::vector<int64_t>& params) {
  for (Unit* unit : units_with(params)) {
    UnitState& state = state_of(*unit);
    const bool used = step_.in_backward || state.running > 0;
    if (!used && state.phase != Phase::Sharded && state.version != unit->version()) reshard(*unit);
    if (state.phase == Phase::Sharded) unshard(*unit);
    state.stays = true;
  }
}

void UnitScheduler::await_unsharded(const std::vector<int64_t>& params) {
  for (Unit* unit : units_with(params))
    if (state_of(*unit).phase == Phase::Unsharding) wait_unshard(*unit);
}

void UnitScheduler::reshard(const std::vector<int64_t>& params) noexcept {
  for (Unit* unit : units_with(params)) {
    UnitState& state = state_of(*unit);
    state.stays = false;
    if (state.running == 0 && !state.in_backward && !state.again) reshard(*unit);
  }
  if (!step_.in_backward) give_back_idle_memory();
}

void UnitScheduler::let_go(bool trained) noexcept {
  for (const auto& unit : shards_.units()) {
    const UnitState& state = state_of(*unit);
    if (!state.stays || state.running > 0 || state.in_backward || state.again) continue;
    const bool any = std::any_of(unit->slots.begin(), unit->slots.end(),
                                 [](const Slot& s) { return s.owner().tensor().requires_grad(); });
    if (any || !trained) reshard(*unit);
  }
  give_back_idle_memory();
}

bool UnitScheduler::any_stays() const {
  return std::any_of(states_.begin(), states_.end(), [](const UnitState& s) { return s.stays; });
}

}  // namespace osdp::runtime
