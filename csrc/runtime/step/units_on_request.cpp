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
// Parameters show this rank's rows meanwhile, since the optimizer's tensors are the same objects, except
// after unshard():
//
// Note [What unshard() shows]
// Scripts call unshard() and read module.weight, as FSDP2 allows. So once a gather that a script asked for
// has been awaited between passes, these parameters show the full tensors of their unit, until reshard() or
// anything that needs the rows: a call or a backward, an optimizer's step, a state dict, a checkpoint, a
// copy. Their .grad stays this rank's, so that zero_grad and clipping mean what they always mean. The full
// tensors are of this gather alone: a write to them would not reach this rank's rows (FSDP2 drops it without
// a word), so whatever ends this throws ShardingError if a parameter's version tells of one. The rows are
// shown and unchanged then.
#include <algorithm>
#include <utility>

#include "runtime/step/unit_scheduler.hpp"

namespace osdp::runtime {

using Phase = UnitState::Phase;

// The first of its parameters that was written to while it was shown read-only; null: none.
static const Parameter* written_in(const Unit& unit) {
  for (const Slot& slot : unit.slots)
    if (slot.owner().written_read_only()) return &slot.owner();
  return nullptr;
}

// Whether a call reads it, or a backward that runs or is to come.
static bool in_use(const UnitState& state) {
  return state.running > 0 || state.needs.has(Need::Gradients) || state.needs.has(Need::Graph);
}

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
    if (!used && state.phase != Phase::Sharded && state.version != unit->version()) {
      if (written_in(*unit)) end_read_only();
      reshard(*unit);
    }
    if (state.phase == Phase::Sharded) unshard(*unit, For::Script);
    need(*unit, Need::Script);
  }
}

void UnitScheduler::await_unsharded(const std::vector<int64_t>& params) {
  for (Unit* unit : units_with(params))
    if (state_of(*unit).phase == Phase::Unsharding) wait_unshard(*unit);
}

void UnitScheduler::show_read_only(const std::vector<int64_t>& params) {
  for (const int64_t i : params) {
    Parameter& p = shards_.parameter(i);
    const ModelShards::Place& place = shards_.place_of(p);
    if (!place.unit) continue;
    const UnitState& state = state_of(*place.unit);
    if (!state.needs.has(Need::Script) || state.phase != Phase::Unsharded) continue;
    p.show_read_only(place.slot->full());
    read_only_ = true;
  }
}

void UnitScheduler::end_read_only() {
  if (!std::exchange(read_only_, false)) return;
  const Parameter* written = nullptr;
  for (const auto& p : shards_.params()) {
    if (!written && p->written_read_only()) written = p.get();
    p->end_read_only();
  }
  refuse_lost_write(written);
}

void UnitScheduler::refuse_lost_write(const Parameter* written) const {
  OSDP_CHECK(
      !written, Sharding, "OSDP: ", step_.me(), ": parameter '", written->name(),
      "' was written to while unshard() showed its full value, which is this rank's copy for reading: the "
      "write is lost, as with FSDP2. Write inside osdp.summon_full_params(model), or to this rank's rows.");
}

void UnitScheduler::reshard(const std::vector<int64_t>& params) {
  const Parameter* written = nullptr;
  for (Unit* unit : units_with(params)) {
    UnitState& state = state_of(*unit);
    state.needs.drop(Need::Script);
    if (!written) written = written_in(*unit);
    if (!in_use(state)) reshard(*unit);
  }
  if (!step_.in_backward) give_back_idle_memory();
  refuse_lost_write(written);
}

void UnitScheduler::let_go(bool trained) {
  const Parameter* written = nullptr;
  for (const auto& unit : shards_.units()) {
    const UnitState& state = state_of(*unit);
    if (!state.needs.has(Need::Script) || in_use(state)) continue;
    const bool any = std::any_of(unit->slots.begin(), unit->slots.end(), [](const Slot& s) {
      // An optimizer also steps what was frozen after its backward.
      return s.owner().tensor().requires_grad() || s.owner().local_grad().defined();
    });
    if (!any && trained) continue;
    if (!written) written = written_in(*unit);
    reshard(*unit);
  }
  give_back_idle_memory();
  refuse_lost_write(written);
}

bool UnitScheduler::any_stays() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](const UnitState& s) { return s.needs.has(Need::Script); });
}

}  // namespace osdp::runtime
