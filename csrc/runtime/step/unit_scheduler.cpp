#include "runtime/step/unit_scheduler.hpp"

#include <algorithm>
#include <utility>

#include "comm/left_out.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/store/offload.hpp"
#include "runtime/store/precision.hpp"

namespace osdp::runtime {
namespace {

const char* name_of(Unit::State state) {
  switch (state) {
    case Unit::State::Sharded:
      return "sharded";
    case Unit::State::Unsharding:
      return "unsharding";
    case Unit::State::Unsharded:
      return "unsharded";
  }
  return "?";
}

}  // namespace

UnitScheduler::UnitScheduler(const ModelShards& shards, const StepState& step, Arena& arena,
                             GradientBuckets& buckets, std::shared_ptr<comm::Lane> gathers,
                             std::shared_ptr<comm::Lane> reductions, std::shared_ptr<HybridReducer> hybrid)
    : shards_(shards),
      step_(step),
      arena_(arena),
      buckets_(buckets),
      lane_(std::move(gathers)),
      reductions_lane_(std::move(reductions)),
      hybrid_(std::move(hybrid)) {
  set_prefetch(1);
}

void UnitScheduler::set_prefetch(size_t units) {
  size_t largest = 0;
  bool all_kept = true;
  for (const auto& unit : shards_.units()) {
    largest = std::max(largest, unit->bytes());
    all_kept &= traits(unit->mode).kept;
  }
  depth_ = {.units = units, .bytes = (1 + units) * largest};
  kept_depth_ = all_kept ? Depth{.units = units, .bytes = Depth::kNoLimit} : depth_;
}

void UnitScheduler::assert_state(const Unit& unit, bool holds, const char* transition) const {
  OSDP_CHECK(holds, Sharding, "OSDP: rank ", step_.rank, ": unit '", unit.name, "' cannot ", transition,
             " in ", step_.in_backward ? "backward" : "forward", " while it is ", name_of(unit.state_),
             ". This is an error of OSDP; please report it with the model and the plan.");
}

// Backward may read what its forward gathered; a new forward must not, since the optimizer may have stepped.
bool UnitScheduler::stale(const Unit& unit) const {
  return !step_.in_backward && unit.running_ == 0 && unit.epoch_ != step_.epoch;
}

void UnitScheduler::unshard(Unit& unit) {
  assert_state(unit,
               unit.state_ == Unit::State::Sharded || (unit.state_ == Unit::State::Unsharded && stale(unit)),
               "unshard");
  TransferPlan plan = TransferPlan::of_gather(unit.slots);
  comm::EarlySend early = unit.shard_groups->shard->early_send_of_gather(plan.sent_first());
  unit.unsharding_ = lane_->submit(
      unit.gathers.all(step_.accumulates),
      [&arena = arena_, &shard_groups = *unit.shard_groups, plan = std::move(plan)] {
        {
          const comm::Lane::SubmittersMemory here;
          for (const Transfer& t : plan.transfers)
            if (!t.slot->attached()) t.slot->attach(arena.allocate(t.slot->bytes()));
        }
        gather(*shard_groups.shard, plan);
      },
      std::move(early));
  unit.state_ = Unit::State::Unsharding;
  unit.epoch_ = step_.epoch;
  unit.calls_seen_ = 0;
  for (Call* call : unit.calls)
    for (size_t i = 0; i < call->units.size(); ++i)
      if (call->units[i] == &unit) call->seen[i] = 0;
  ++statistics_.gathers;
  statistics_.gathered_bytes += static_cast<int64_t>(unit.bytes());
}

void UnitScheduler::wait_unshard(Unit& unit) {
  assert_state(unit, unit.state_ == Unit::State::Unsharding, "be waited for");
  unit.unsharding_.wait();
  unit.unsharding_ = comm::Work();
  for (Slot& slot : unit.slots) slot.open();
  unit.state_ = Unit::State::Unsharded;
}

void UnitScheduler::use(Unit& unit) {
  const bool again = stale(unit);
  if (unit.state_ == Unit::State::Unsharding && again) wait_unshard(unit);
  if (unit.state_ == Unit::State::Sharded || again) unshard(unit);
  std::span<Unit* const> ahead;
  if (step_.in_backward)
    ahead = backward_order_.advance(&unit, depth_);
  else if (step_.root_forward)
    ahead = forward_order_.advance(&unit, step_.grad_forward ? kept_depth_ : depth_);
  for (Unit* next : ahead)
    if (next->state_ == Unit::State::Sharded) {
      unshard(*next);
      ++statistics_.prefetches;
    }
  if (unit.state_ == Unit::State::Unsharding) wait_unshard(unit);
}

void UnitScheduler::reshard(Unit& unit) noexcept {
  if (unit.state_ == Unit::State::Unsharding) {
    try {
      wait_unshard(unit);
    } catch (...) {  // the next wait on the lane throws the same error; here the memory must be freed
      unit.unsharding_ = comm::Work();
    }
  }
  for (Slot& slot : unit.slots)
    if (slot.attached()) slot.detach();
  unit.state_ = Unit::State::Sharded;
  unit.keep_ = unit.held_ = false;
}

void UnitScheduler::begin_forward() { forward_order_.begin(); }

void UnitScheduler::begin_call(Call& call) {
  for (Unit* unit : call.units) {
    use(*unit);
    ++unit->running_;
  }
}

void UnitScheduler::end_call(Call& call, bool failed) {
  for (Unit* unit : call.units)
    if (unit->running_ > 0) {
      --unit->running_;
      reshard_after_forward(call, *unit, failed);
    }
}

void UnitScheduler::keep_recomputed(const Call& call) {
  for (Unit* unit : call.units) unit->recomputed_ = true;
}

void UnitScheduler::reshard_after_forward(Call& call, Unit& unit, bool failed) {
  if (unit.running_ > 0 || unit.in_backward_ || unit.state_ != Unit::State::Unsharded) return;
  if (failed) return reshard(unit);
  if (unit.again_) {
    unit.keep_ = true;
    return;
  }
  if (step_.in_backward) {  // a recomputation
    if (call.hold)
      unit.held_ = true;
    else
      reshard(unit);
    return;
  }
  if (step_.grad_forward &&
      (traits(unit.mode).kept || (step_.root_forward && forward_order_.ends_with(&unit)))) {
    unit.keep_ = true;
    return;
  }
  if (call.method) return reshard(unit);
  const auto at = std::find(call.units.begin(), call.units.end(), &unit) - call.units.begin();
  if (!call.seen[at]) {
    call.seen[at] = 1;
    ++unit.calls_seen_;
  }
  if (unit.calls_seen_ == static_cast<int64_t>(unit.calls.size())) reshard(unit);
}

void UnitScheduler::end_forward(bool failed) {
  for (const auto& unit : shards_.units())
    if (failed || !unit->keep_) reshard(*unit);
  if (!failed && step_.root_forward) forward_order_.end();
}

void UnitScheduler::begin_backward() { backward_order_.begin(); }

void UnitScheduler::begin_call_backward(const Call& call, bool reads, bool again) {
  for (Unit* unit : call.units) {
    unit->in_backward_ = true;
    unit->readers_ += reads;
    unit->again_ |= again;
    use(*unit);
  }
}

void UnitScheduler::end_call_backward(const Call& call) {
  for (Unit* unit : call.units) {
    --unit->readers_;
    reshard_after_backward(*unit);
  }
}

// Reshards the unit once its calls in progress no longer read it and all gradients that this graph task
// produces for it are complete.
void UnitScheduler::reshard_after_backward(Unit& unit) {
  if (unit.readers_ > 0 || unit.running_ > 0 || unit.gradients_.incomplete(current_graph_task())) return;
  if (unit.again_ || unit.recomputed_) return;  // stays until the end of this backward, or longer
  unit.in_backward_ = false;
  reshard(unit);
}

void UnitScheduler::add_pending(Slot& slot, at::Tensor gradient) const {
  OSDP_CHECK(gradient.layout() == at::kStrided, Sharding, "OSDP: parameter '", slot.name(),
             "' got a sparse gradient, which cannot be sharded. Use sparse=False, or NO_SHARD for it.");
  const at::ScalarType own = slot.owner().own_dtype();
  if (slot.unsynced.defined()) {
    gradient = wide_sum(std::move(gradient), slot.unsynced, own);
    slot.unsynced.reset();
  }
  slot.pending = slot.pending.defined() ? wide_sum(slot.pending, gradient, own) : std::move(gradient);
}

void UnitScheduler::gradient_arrived(Unit& unit, Slot& slot, at::Tensor gradient) {
  if (gradient.defined()) add_pending(slot, std::move(gradient));
  const auto expected = [&] {
    int64_t count = 0;
    for (const Slot& each : unit.slots) count += in_graph_task(each.owner().accumulator.get());
    return count;
  };
  if (!unit.gradients_.add(current_graph_task(), expected)) return;
  reshard_after_backward(unit);
  reduce_or_keep(unit);
}

void UnitScheduler::reduce_or_keep(Unit& unit) {
  if (step_.sync) return reduce(unit);
  for (Slot& slot : unit.slots)
    if (slot.pending.defined()) slot.unsynced = std::move(slot.pending), slot.pending = at::Tensor();
}

// Note [Gradients that leave]
// On the CPU a gather waits on the lane for the reductions before it, and the computation waits for the
// gather, so gradients of FULL_SHARD units cannot pile up when the lane is late. SHARD_GRAD_OP gathers
// nothing in backward. So a gradient is submitted only if it, the gradients being reduced and the temporarily
// gathered units fit into what a plan reserves (Note [Reserve] in search/problem/request.hpp), or if no other
// is being reduced. On streams the computation waits for the previous reduction (Note [Memory that two
// streams use]).
void UnitScheduler::await_room(size_t bytes) {
  while (left_ < reductions_.size() && reductions_[left_].reduction.done()) ++left_;
  if (left_ == reductions_.size()) return;
  size_t held = bytes;
  for (size_t i = left_; i < reductions_.size(); ++i) held += reductions_[i].bytes;
  for (const auto& unit : shards_.units())
    if (unit->state_ != Unit::State::Sharded && !traits(unit->mode).kept) held += unit->bytes();
  for (; left_ < reductions_.size() && held > depth_.bytes; ++left_) {
    reductions_[left_].reduction.wait();
    held -= reductions_[left_].bytes;
  }
}

void UnitScheduler::reduce(Unit& unit) {
  auto plan = std::make_shared<TransferPlan>();
  const bool again = unit.reduced_ == step_.backwards;
  bool own_memory = again;  // the means need separate memory: they do not become the gradients
  parts_.assign(unit.slots.size(), faults::TaskNames::Part::None);
  for (size_t i = 0; i < unit.slots.size(); ++i) {
    Slot& slot = unit.slots[i];
    if (!slot.pending.defined()) continue;
    parts_[i] = faults::TaskNames::Part::Gradient;
    slot.owner().reduced = true;
    own_memory |=
        !again && (slot.owner().local_grad().defined() || c10::elementSize(slot.owner().reduce_dtype()) >
                                                              c10::elementSize(slot.owner().own_dtype()));
    at::Tensor target;
    if (slot.owner().split()) target = slot.rows_of(buckets_.split_gradient(slot.owner()));
    statistics_.reduced_bytes += static_cast<int64_t>(slot.reduced_bytes());
    plan->add(slot, std::exchange(slot.pending, at::Tensor()), std::move(target));
  }
  if (plan->empty()) return;
  const ShardGroups& shard_groups = *unit.shard_groups;
  plan->seal_reduction(shard_groups.total());
  unit.reduced_ = step_.backwards;
  ++statistics_.reductions;
  arena_.trim();  // see Note [Blocks that come and go]
  comm::EarlySend early = shard_groups.reduce->early_send_of_reduce_scatter(plan->sent_first());
  const std::shared_ptr<HybridReducer> hybrid = shard_groups.replicate ? hybrid_ : nullptr;
  if (reductions_lane_->keeps()) {
    if (!reductions_.empty()) reductions_.back().reduction.wait();
    if (hybrid && own_memory) hybrid->make_room();
    if (shard_groups.reduce->memory()) plan->bring_to(*shard_groups.reduce, shard_groups.total());
  } else {
    await_room(unit.bytes());
  }
  const faults::TaskNamePtr average = hybrid ? unit.averages.of(parts_, step_.accumulates) : nullptr;
  const auto task = [shard_groups, plan, hybrid, own_memory, average] {
    if (hybrid && own_memory) hybrid->make_room();
    Means means = reduce_scatter(shard_groups, *plan);
    if (!hybrid) return keep_means(shard_groups, *plan, means.each);
    hybrid->average(average, means.memory, own_memory,
                    [shard_groups, plan, each = means.each] { keep_means(shard_groups, *plan, each); });
  };
  comm::Work work =
      reductions_lane_->submit(unit.reductions.of(parts_, step_.accumulates), task, std::move(early));
  reductions_.push_back({std::move(work), unit.bytes()});
}

void UnitScheduler::finish_units(bool creates_graph) {
  for (const auto& unit : shards_.units()) {
    if (unit->again_ && !creates_graph) unit->again_ = unit->keep_ = false;
    const bool kept = unit->again_ || (unit->keep_ && !unit->in_backward_);
    if (unit->running_ == 0 && !kept) reshard(*unit);
    if (unit->again_) unit->keep_ = true;
    unit->in_backward_ = false;
    unit->readers_ = 0;
    if (step_.sync)
      for (Slot& slot : unit->slots)
        if (!slot.pending.defined()) slot.pending = std::exchange(slot.unsynced, at::Tensor());
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
// refused.
void UnitScheduler::end_backward() {
  backward_order_.end();
  for (const auto& unit : shards_.units())
    for (Slot& slot : unit->slots)
      if (slot.unsynced.defined()) slot.owner().note_gradient();
}

void UnitScheduler::abort() {
  for (const auto& unit : shards_.units()) {
    reshard(*unit);
    unit->in_backward_ = false;
    unit->readers_ = 0;
    unit->gradients_.forget();
    for (Slot& slot : unit->slots) slot.pending.reset();
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

const at::Tensor& UnitScheduler::begin_slice(Unit& slice) {
  use(slice);
  ++slice.running_;
  return slice.slots[0].full();
}

void UnitScheduler::end_slice(Unit& slice) noexcept {
  if (slice.running_ > 0 && --slice.running_ == 0) reshard(slice);
}

void UnitScheduler::slice_gradient_arrived(Unit& slice, at::Tensor gradient) {
  // At most one gradient is being reduced while the next is computed. If the input needs no gradient, no
  // slice is gathered in between, whose gather would wait for the reduction. (A stream's lane waits in
  // `reduce`.)
  if (!lane_->keeps() && !reductions_.empty()) reductions_.back().reduction.wait();
  add_pending(slice.slots[0], std::move(gradient));
  reduce_or_keep(slice);
}

Parameter* UnitScheduler::unreduced() const {
  for (const auto& unit : shards_.units())
    for (Slot& slot : unit->slots)
      if (slot.unsynced.defined() && !slot.owner().gradient_dropped()) return &slot.owner();
  return nullptr;
}

// See Note [Shards in host memory].
void UnitScheduler::await_host_memory() {
  if (!shards_.offloads() || comm::left_out("host wait")) return;
  reductions_lane_->synchronize();  // which copies gradients to the host
  if (hybrid_) hybrid_->lane().synchronize();
}

void UnitScheduler::give_back_idle_memory() {
  if (shards_.gathered_bytes() == 0) arena_.trim();
}

}  // namespace osdp::runtime
