#include "runtime/step/unit_scheduler.hpp"

#include <algorithm>
#include <utility>

#include "comm/left_out.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/store/offload.hpp"
#include "runtime/store/precision.hpp"

namespace osdp::runtime {
namespace {

using Phase = UnitState::Phase;

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::Sharded:
      return "sharded";
    case Phase::Unsharding:
      return "unsharding";
    case Phase::Unsharded:
      return "unsharded";
  }
  return "?";
}

// " (gathered for 'blocks.3')"; "" for a slice, which no module's call gathers.
std::string modules_of(const Unit& unit) {
  std::string modules;
  for (const Call* call : unit.calls)
    modules += (modules.empty() ? " (gathered for '" : ", '") + call->module + "'";
  return modules.empty() ? modules : modules + ")";
}

}  // namespace

UnitScheduler::UnitScheduler(const ModelShards& shards, const StepState& step, Arena& arena,
                             GradientBuckets& buckets, std::shared_ptr<comm::Lane> gathers,
                             std::shared_ptr<comm::Lane> reductions, std::shared_ptr<HybridReducer> hybrid)
    : shards_(shards),
      step_(step),
      states_(shards.units().size()),
      arena_(arena),
      buckets_(buckets),
      lane_(std::move(gathers)),
      reductions_lane_(std::move(reductions)),
      hybrid_(std::move(hybrid)) {
  set_prefetch(1, 0);
}

void UnitScheduler::set_prefetch(size_t units, size_t budget_bytes) {
  size_t largest = 0;
  bool all_kept = true;
  for (const auto& unit : shards_.units()) {
    largest = std::max(largest, unit->bytes());
    all_kept &= state_of(*unit).stays_after_forward.value_or(traits(unit->mode).kept);
  }
  asked_bytes_ = budget_bytes;
  const size_t most = (1 + units) * largest;
  depth_ = {.units = units, .bytes = budget_bytes > 0 ? std::min(budget_bytes, most) : most};
  kept_depth_ = all_kept ? Depth{.units = units, .bytes = Depth::kNoLimit} : depth_;
}

void UnitScheduler::regroup() {
  states_.assign(shards_.units().size(), {});
  forward_order_ = backward_order_ = {};
  set_prefetch(depth_.units, asked_bytes_);
}

void UnitScheduler::assert_state(const Unit& unit, bool holds, const char* transition) const {
  OSDP_CHECK(holds, Sharding, "OSDP: ", step_.me(), ": unit '", unit.name, "'", modules_of(unit), " cannot ",
             transition, " in ", step_.in_backward ? "backward" : "forward", " while it is ",
             name_of(state_of(unit).phase),
             ". This is a bug in OSDP; please report it with the model and the plan.");
}

// Backward may read what its forward gathered; a new forward must not, since the optimizer may have stepped.
bool UnitScheduler::stale(const Unit& unit) const {
  const UnitState& state = state_of(unit);
  if (step_.in_backward || state.running > 0 || state.epoch == step_.epoch) return false;
  return !state.needs.has(Need::Script) || state.version != unit.version();
}

// The shard that was gathered between hosts is read until the backward is over, as what SHARD_GRAD_OP keeps.
// A new forward gathers a new one. Between passes parameters may change: what a script asks for has none.
const std::shared_ptr<comm::Tensors>& UnitScheduler::second_of(const Unit& unit, For whom) {
  UnitState& state = state_of(unit);
  const bool kept = whom == For::Pass && traits(unit.mode).second && unit.shard_groups->levels;
  if (!kept || (!step_.in_backward && state.second_epoch != step_.epoch)) state.second.reset();
  if (kept && !state.second && (step_.in_backward || step_.grad_forward)) {
    state.second = std::make_shared<comm::Tensors>();
    state.second_epoch = step_.epoch;
  }
  return state.second;
}

void UnitScheduler::unshard(Unit& unit, For whom) {
  UnitState& state = state_of(unit);
  assert_state(unit, state.phase == Phase::Sharded || (state.phase == Phase::Unsharded && stale(unit)),
               "unshard");
  TransferPlan plan = TransferPlan::of_gather(unit.slots);
  const std::shared_ptr<comm::Tensors>& second = second_of(unit, whom);
  comm::EarlySend early = second && !second->empty()
                              ? unit.shard_groups->levels->early_send_inside(*second)
                              : unit.shard_groups->shard->early_send_of_gather(plan.sent_first());
  state.unsharding = lane_->submit(
      unit.gathers.all(step_.accumulates),
      [&arena = arena_, &shard_groups = *unit.shard_groups, plan = std::move(plan), second] {
        {
          const comm::Lane::SubmittersMemory here;
          std::vector<size_t> sizes;
          for (const Transfer& t : plan.transfers)
            if (!t.slot->attached()) sizes.push_back(t.slot->bytes());
          std::vector<at::DataPtr> blocks = arena.allocate(sizes);
          auto next = blocks.begin();
          for (const Transfer& t : plan.transfers)
            if (!t.slot->attached()) t.slot->attach(std::move(*next++));
        }
        gather(shard_groups, plan, second.get());
      },
      std::move(early));
  state.phase = Phase::Unsharding;
  state.epoch = step_.epoch;
  state.version = unit.version();
  state.used_by.clear();
  ++statistics_.gathers;
  statistics_.gathered_bytes += static_cast<int64_t>(unit.bytes());
}

void UnitScheduler::wait_unshard(Unit& unit) {
  UnitState& state = state_of(unit);
  assert_state(unit, state.phase == Phase::Unsharding, "be waited for");
  state.unsharding.wait();
  state.unsharding = comm::Work();
  for (Slot& slot : unit.slots) slot.open();
  state.phase = Phase::Unsharded;
}

void UnitScheduler::use(Unit& unit, bool again) {
  UnitState& state = state_of(unit);
  const bool old = stale(unit);
  const int64_t gathers = statistics_.gathers;
  if (state.phase == Phase::Unsharding && old) wait_unshard(unit);
  if (state.phase == Phase::Sharded || old) unshard(unit);
  if (!step_.in_backward && std::exchange(state.epoch, step_.epoch) != step_.epoch) state.used_by.clear();
  std::span<Unit* const> ahead;
  if (step_.in_backward)
    ahead = backward_order_.advance(&unit, depth_, again);
  else if (step_.root_forward)
    ahead = forward_order_.advance(&unit, step_.grad_forward ? kept_depth_ : depth_);
  for (Unit* next : ahead) {
    if (state_of(*next).phase != Phase::Sharded) continue;
    if (step_.in_backward && !state_of(*next).gathers_in_backward) continue;
    unshard(*next);
    ++statistics_.prefetches;
  }
  if (statistics_.gathers == gathers) arena_.trim();  // see Note [Blocks that come and go]
  if (state.phase == Phase::Unsharding) wait_unshard(unit);
}

void UnitScheduler::begin_use(Unit& unit, bool again) {
  use(unit, again);
  assert_state(unit, state_of(unit).phase == Phase::Unsharded, "be read");
  ++state_of(unit).running;
}

void UnitScheduler::need(Unit& unit, Need need) {
  UnitState& state = state_of(unit);
  const bool gathered = need == Need::Backward || need == Need::Script;
  assert_state(unit, !gathered || state.phase != Phase::Sharded, "be kept");
  state.needs.add(need);
}

void UnitScheduler::reshard(Unit& unit) {
  assert_state(unit, state_of(unit).running == 0, "be resharded while a call reads it,");
  release(unit);
}

void UnitScheduler::release(Unit& unit) noexcept {
  UnitState& state = state_of(unit);
  if (state.phase == Phase::Unsharding) {
    try {
      wait_unshard(unit);
    } catch (...) {  // the next wait on the lane throws the same error; here the memory must be freed
      state.unsharding = comm::Work();
    }
  }
  for (Slot& slot : unit.slots) {
    slot.owner().end_read_only();
    if (slot.attached()) slot.detach();
  }
  state.phase = Phase::Sharded;
  state.needs.drop(Need::Backward);
  state.needs.drop(Need::Script);
}

void UnitScheduler::begin_forward() { forward_order_.begin(); }

void UnitScheduler::begin_call(Call& call) {
  for (Unit* unit : call.units) begin_use(*unit, step_.in_backward);
}

void UnitScheduler::end_call(Call& call, bool failed) {
  for (Unit* unit : call.units)
    if (state_of(*unit).running > 0) {  // else begin_call has failed before it
      end_use(*unit);
      reshard_after_forward(call, *unit, failed);
    }
}

void UnitScheduler::keep_recomputed(const Call& call) {
  for (Unit* unit : call.units) need(*unit, Need::Recomputation);
}

void UnitScheduler::reshard_after_forward(Call& call, Unit& unit, bool failed) {
  UnitState& state = state_of(unit);
  if (state.running > 0 || state.needs.has(Need::Gradients) || state.phase != Phase::Unsharded) return;
  if (failed) return reshard(unit);
  if (state.needs.has(Need::Graph)) return need(unit, Need::Backward);
  const bool stays = state.stays_after_forward.value_or(state.stays_if_kept && traits(unit.mode).kept);
  if (step_.in_backward) {  // a recomputation
    if (!call.hold && !stays && !backward_order_.again_next(&unit)) reshard(unit);
    return;
  }
  if (stays) return need(unit, Need::Script);
  const bool backward_follows = step_.root_forward && !step_.part && forward_order_.ends_with(&unit);
  const bool kept = !state.stays_after_forward && (traits(unit.mode).kept || backward_follows);
  if (step_.grad_forward && kept) return need(unit, Need::Backward);
  if (call.method) return reshard(unit);
  std::vector<const Call*>& used_by = state.used_by;
  if (std::find(used_by.begin(), used_by.end(), &call) == used_by.end()) used_by.push_back(&call);
  if (used_by.size() == unit.calls.size()) reshard(unit);
}

void UnitScheduler::end_forward(bool failed) {
  for (const auto& unit : shards_.units()) {
    const Needs& needs = state_of(*unit).needs;
    if (failed)
      release(*unit), state_of(*unit).second.reset();
    else if (!needs.has(Need::Backward) && !needs.has(Need::Script))
      reshard(*unit);
  }
  if (!failed && step_.root_forward) forward_order_.end();
}

void UnitScheduler::begin_backward() { backward_order_.begin(); }

void UnitScheduler::begin_call_backward(const Call& call, bool reads, bool again) {
  for (Unit* unit : call.units) {
    UnitState& state = state_of(*unit);
    need(*unit, Need::Gradients);
    if (again) need(*unit, Need::Graph);
    state.readers += reads;
    if (state.gathers_in_backward) use(*unit);
  }
}

void UnitScheduler::end_call_backward(const Call& call) {
  for (Unit* unit : call.units) {
    assert_state(*unit, state_of(*unit).readers > 0, "end the backward of a call that has not begun");
    --state_of(*unit).readers;
    reshard_after_backward(*unit);
  }
}

// Reshards the unit once its calls in progress no longer read it and all gradients that this graph task
// produces for it are complete.
void UnitScheduler::reshard_after_backward(Unit& unit) {
  UnitState& state = state_of(unit);
  if (state.readers > 0 || state.running > 0 || state.gradients.incomplete(current_graph_task())) return;
  // It stays until the end of this backward, or longer.
  if (state.needs.has(Need::Graph) || state.needs.has(Need::Recomputation)) return;
  state.needs.drop(Need::Gradients);
  state.second.reset();
  if (state.stays_after_backward && state.phase != Phase::Sharded)
    need(unit, Need::Script);
  else
    reshard(unit);
}

void UnitScheduler::add_pending(Slot& slot, at::Tensor gradient) const {
  OSDP_CHECK(gradient.layout() == at::kStrided, Sharding, "OSDP: parameter '", slot.name(),
             "' got a sparse gradient, which cannot be sharded. Use sparse=False, or NO_SHARD for it.");
  slot.gradient.add(std::move(gradient), slot.owner().own_dtype());
}

void UnitScheduler::gradient_arrived(Unit& unit, Slot& slot, at::Tensor gradient) {
  if (gradient.defined()) add_pending(slot, std::move(gradient));
  const auto expected = [&] {
    int64_t count = 0;
    for (const Slot& each : unit.slots) count += in_graph_task(each.owner().accumulator().get());
    return count;
  };
  if (!state_of(unit).gradients.add(current_graph_task(), expected)) return;
  reshard_after_backward(unit);
  reduce_or_keep(unit);
}

void UnitScheduler::reduce_or_keep(Unit& unit) {
  for (Slot& slot : unit.slots)
    if (!step_.syncs(slot.owner())) slot.gradient.keep();
  if (step_.sync) reduce(unit);
}

// Note [Gradients that leave]
// On the CPU a gather waits on the lane for the reductions before it, and the computation waits for the
// gather, so gradients of FULL_SHARD units cannot pile up when the lane is late. SHARD_GRAD_OP gathers
// nothing in backward. So a gradient is submitted only if it, the gradients being reduced and the temporarily
// gathered units fit into the plan's budget for gathering (Note [Budget for gathering] in
// search/simulate/gather_budget.hpp), or if no other is being reduced. On streams the computation waits for
// the previous reduction (Note [Memory that two streams use]).
void UnitScheduler::await_room(size_t bytes) {
  while (left_ < reductions_.size() && reductions_[left_].reduction.done()) ++left_;
  if (left_ == reductions_.size()) return;
  size_t held = bytes;
  for (size_t i = left_; i < reductions_.size(); ++i) held += reductions_[i].bytes;
  for (const auto& unit : shards_.units())
    if (const UnitState& state = state_of(*unit);
        state.phase != Phase::Sharded && !traits(unit->mode).kept && !state.needs.has(Need::Script))
      held += unit->bytes();
  for (; left_ < reductions_.size() && held > depth_.bytes; ++left_) {
    reductions_[left_].reduction.wait();
    held -= reductions_[left_].bytes;
  }
}

void UnitScheduler::reduce(Unit& unit) {
  UnitState& state = state_of(unit);
  auto plan = std::make_shared<TransferPlan>();
  const bool again = state.reduced == step_.backwards;
  const ShardGroups& shard_groups = *unit.shard_groups;
  // The means need separate memory: they do not become the gradients.
  bool own_memory = again || shard_groups.levels;
  parts_.assign(unit.slots.size(), faults::TaskNames::Part::None);
  for (size_t i = 0; i < unit.slots.size(); ++i) {
    Slot& slot = unit.slots[i];
    if (!slot.gradient.pending()) continue;
    parts_[i] = faults::TaskNames::Part::Gradient;
    slot.owner().note_reduced();
    own_memory |= slot.owner().away();
    own_memory |=
        !again && (slot.owner().local_grad().defined() || c10::elementSize(slot.owner().reduce_dtype()) >
                                                              c10::elementSize(slot.owner().own_dtype()));
    at::Tensor target;
    bool first = false;
    if (slot.owner().split()) {
      if (!slot.owner().local_grad().defined()) slot.owner().begin_gradient();
      target = slot.rows_of(buckets_.split_gradient(slot.owner()));
      first = slot.first_of_gradient();
    }
    statistics_.reduced_bytes += static_cast<int64_t>(slot.reduced_bytes());
    plan->add(slot, slot.gradient.take(), std::move(target), first);
  }
  if (plan->empty()) return;
  plan->seal_reduction(shard_groups.total());
  state.reduced = step_.backwards;
  ++statistics_.reductions;
  arena_.trim();  // see Note [Blocks that come and go]
  // Only the lane may hold gradients from here on: it may free them before this thread has gone on.
  comm::EarlySend early = [&] {
    const comm::Tensors sent = plan->sent_first();
    return shard_groups.reduce->early_send_of_reduce_scatter(
        shard_groups.levels ? comm::parts_of(sent, shard_groups.levels->hosts()) : sent);
  }();
  const std::shared_ptr<HybridReducer> hybrid =
      shard_groups.replicate || shard_groups.levels ? hybrid_ : nullptr;
  if (reductions_lane_->keeps()) {
    if (!reductions_.empty()) reductions_.back().reduction.wait();
    if (hybrid && own_memory) hybrid->make_room();
    if (shard_groups.reduce->memory()) plan->bring_to(*shard_groups.reduce, shard_groups.total());
  } else {
    await_room(unit.bytes());
  }
  const faults::TaskNamePtr average = hybrid ? unit.averages.of(parts_, step_.accumulates) : nullptr;
  auto task = [shard_groups, plan, hybrid, own_memory, average] {
    if (hybrid && own_memory) hybrid->make_room();
    Means means = reduce_scatter(shard_groups, *plan);
    if (!hybrid) return keep_means(shard_groups, *plan, means.each);
    hybrid->average(
        average, std::move(means.memory), std::move(means.of_host), own_memory,
        [shard_groups, plan, each = std::move(means.each)] { keep_means(shard_groups, *plan, each); });
  };
  comm::Work work = reductions_lane_->submit(unit.reductions.of(parts_, step_.accumulates), std::move(task),
                                             std::move(early));
  reductions_.push_back({std::move(work), unit.bytes()});
}

void UnitScheduler::finish_units(bool creates_graph) {
  for (const auto& unit : shards_.units()) {
    UnitState& state = state_of(*unit);
    Needs& needs = state.needs;
    state.second.reset();
    if (needs.has(Need::Graph) && !creates_graph) needs.drop(Need::Graph), needs.drop(Need::Backward);
    if (needs.has(Need::Gradients)) {
      needs.drop(Need::Gradients), needs.drop(Need::Backward);
      if (!state.stays_after_backward)
        needs.drop(Need::Script);
      else if (state.phase != Phase::Sharded)
        need(*unit, Need::Script);
    }
    const bool kept = needs.has(Need::Graph) || needs.has(Need::Script) || needs.has(Need::Backward);
    if (state.running == 0 && !kept) reshard(*unit);
    if (needs.has(Need::Graph) && state.phase != Phase::Sharded) need(*unit, Need::Backward);
    state.readers = 0;
    for (Slot& slot : unit->slots)
      if (step_.syncs(slot.owner())) slot.gradient.resume();
    reduce_or_keep(*unit);
  }
}

void UnitScheduler::wait_reductions() {
  for (const Leaving& each : reductions_) each.reduction.wait();
  reductions_.clear();
  left_ = 0;
  if (hybrid_) hybrid_->wait_all();
}

// Note [Gradients kept under no_sync]
// They are full, unlike the parameter's .grad, which has the shard's shape; yet zero_grad must drop them. So
// the parameter gets a .grad (zeros if it had none) as a placeholder, whose version is recorded. If the
// placeholder has been set to None or zeroed by the time the parameter shows its full shape again, the kept
// gradient is dropped too. Any other change would have to be applied to the kept gradient as well, and is
// refused. A placeholder of zeros that is scaled is zeros again: so they are -0.0, which zeroing alone makes
// 0.
void UnitScheduler::end_backward() {
  backward_order_.end();
  std::vector<Parameter*> kept;
  for (const auto& unit : shards_.units())
    for (Slot& slot : unit->slots)
      if (slot.gradient.kept()) kept.push_back(&slot.owner());
  for (Parameter* p : kept) p->mark_gradient();
  for (Parameter* p : kept) p->note_gradient();
}

void UnitScheduler::abort() {
  for (const auto& unit : shards_.units()) {
    UnitState& state = state_of(*unit);
    release(*unit);
    state.second.reset();
    state.needs.drop(Need::Gradients);
    state.readers = 0;
    state.gradients.forget();
    for (Slot& slot : unit->slots) slot.gradient.drop_pending(), slot.first_of_gradient();
  }
}

void UnitScheduler::forget_reductions() {
  for (const Leaving& each : reductions_) {
    try {
      each.reduction.wait();
    } catch (const std::exception&) {  // the lane failed because of the exception in flight, or caused it
    }
  }
  reductions_.clear();
  left_ = 0;
  if (hybrid_) hybrid_->forget();
}

const at::Tensor& UnitScheduler::begin_slice(Unit& slice, bool in_call) {
  begin_use(slice, in_call && step_.in_backward);
  return slice.slots[0].full();
}

void UnitScheduler::end_slice(Unit& slice) noexcept {
  if (state_of(slice).running == 0) return;  // begin_slice has failed
  end_use(slice);
  if (state_of(slice).running > 0 || (step_.in_backward && backward_order_.again_next(&slice))) return;
  release(slice);
}

void UnitScheduler::slice_gradient_arrived(Unit& slice, at::Tensor gradient) {
  // At most one gradient is being reduced while the next is computed. If the input needs no gradient, no
  // slice is gathered in between, whose gather would wait for the reduction. (A stream's lane waits in
  // `reduce`.)
  if (!lane_->keeps() && !reductions_.empty()) reductions_.back().reduction.wait();
  add_pending(slice.slots[0], std::move(gradient));
  reduce_or_keep(slice);
}

Parameter* UnitScheduler::unreduced(const std::vector<const Parameter*>& among) const {
  for (const auto& unit : shards_.units())
    for (Slot& slot : unit->slots)
      if (slot.gradient.kept() && std::ranges::find(among, &slot.owner()) != among.end() &&
          !slot.owner().gradient_dropped())
        return &slot.owner();
  return nullptr;
}

// See Note [Shards in host memory].
void UnitScheduler::await_host_memory() {
  if (!shards_.offloads() || comm::left_out("host wait")) return;
  lane_->synchronize();                                            // which copies rows to the device
  if (reductions_lane_ != lane_) reductions_lane_->synchronize();  // gradients to the host
  if (hybrid_) hybrid_->lane().synchronize();
}

void UnitScheduler::give_back_idle_memory() { arena_.trim(); }

}  // namespace osdp::runtime
