#include "runtime/step/param_views.hpp"

#include <ATen/Functions.h>

#include <utility>

#include "comm/collectives.hpp"
#include "runtime/step/autograd_hooks.hpp"
#include "runtime/step/replicas.hpp"

namespace osdp::runtime {

void ParamViews::show(Unit& unit) {
  for (Slot& slot : unit.slots) {
    Parameter& p = slot.owner();
    if (!p.shows_unsharded() && !p.split()) {
      p.show_unsharded(slot.full());
      went_unsharded(p);
    }
    if (slot.gradient.kept() && p.gradient_dropped()) slot.gradient.drop_kept();
  }
}

void ParamViews::show(const std::vector<Unit*>& units) {
  for (Unit* unit : units) show(*unit);
}

template <typename Copies>
void ParamViews::show_copies(const Copies& copies, bool fresh) {
  comm::Tensors casts, own;
  for (const auto& copy : copies)
    if (copy->cast(fresh)) casts.push_back(copy->shown()), own.push_back(copy->owner().local());
  if (!casts.empty()) at::_foreach_copy_(casts, own);
  for (const auto& copy : copies) {
    if (copy->owner().shows_unsharded()) continue;
    copy->owner().show_unsharded(copy->shown());
    went_unsharded(copy->owner());
  }
}

void ParamViews::show_unsharded(const Call& call) {
  show(call.units);
  show(call.slices);
  show_copies(call.copies, true);
}

void ParamViews::show_all_units() {
  for (Parameter* p : shards_.split_params()) {
    if (p->shows_unsharded()) continue;
    p->show_split_unsharded();
    went_unsharded(*p);
  }
  for (const auto& unit : shards_.units()) show(*unit);
}

void ParamViews::show_all_copies(bool fresh) { show_copies(shards_.copies(), fresh); }

void ParamViews::went_unsharded(Parameter& p) {
  unsharded_.push_back(&p);
  // requires_grad may have been enabled after sharding; the node must expect full gradients.
  if (!p.accumulator() && p.tensor().requires_grad()) hook_gradient_(p);
  if (!step_.in_backward) follow_stream(p);
}

void ParamViews::show_sharded() {
  for (Parameter* p : unsharded_) p->show_sharded();
  unsharded_.clear();
  wrapped_.hide();
}

void ParamViews::drop_copies() {
  for (const auto& copy : shards_.copies())
    if (!copy->owner().shows_unsharded()) copy->drop();
}

// Note [Writes in forward]
// A gathered tensor is temporary: a write to it in forward (nn.Embedding's max_norm, weight.clamp_(), a
// moving average in a frozen parameter) would be lost at the reshard, and would never reach the ranks that
// hold the rows. Such a write is detected by the tensor's version counter, which only in-place operations
// increment, and refused; p.data = ... by the memory that the parameter has then. Writes through p.data do
// not change the counter: on CPUs, in the first forwards and in every 100th, each rank compares its rows with
// the gathered ones at the end of a call. (On a stream the host would have to wait for the gather, and would
// compare what a gather that failed has left.) Writes to parameters that every rank holds in full persist; if
// ranks write different values, the next digest of the replicas detects it.
void ParamViews::refuse_write(const Parameter& p, const std::string& where) const {
  faults::throw_error(
      faults::ErrorKind::Sharding,
      c10::str(
          "OSDP: ", step_.me(), ": parameter '", p.name(), "' was written to in ", where,
          " (nn.Embedding(max_norm=...), weight.clamp_(), a moving average?). Such a write to a sharded ",
          "parameter is lost and would not reach the other ranks. Write between steps, to this rank's part "
          "of it or inside osdp.summon_full_params(model); or choose NO_SHARD ",
          "for it in the plan and write the same values on every rank. If the write was between passes, "
          "through p.data or by a foreach function of DTensors, while a unit stayed gathered: call reshard() "
          "after it."));
}

void ParamViews::check_written(const Call& call) const {
  const auto refuse = [&](const Parameter& p) {
    refuse_write(p, call.module.empty() ? "the model's forward" : "forward of '" + call.module + "'");
  };
  const auto check = [&](const Parameter& p) {
    if (p.shows_unsharded() && p.written()) refuse(p);
  };
  for (const auto* units : {&call.units, &call.slices})
    for (const Unit* unit : *units)
      for (const Slot& slot : unit->slots) check(slot.owner());
  const bool compares = step_.epoch <= Replicas::kFirst || step_.epoch % Replicas::kEvery == 0;
  if (compares && !step_.in_backward)
    for (const Unit* unit : call.units)
      for (const Slot& slot : unit->slots)
        if (!slot.owner().split() && slot.overwritten()) refuse(slot.owner());
  for (const WholeCopy* copy : call.copies) check(copy->owner());
}

void ParamViews::check_written() const {
  for (const Parameter* p : unsharded_)
    if (p->written()) refuse_write(*p, step_.in_backward ? "backward" : "forward");
  for (const Parameter* p : shards_.whole_params())
    OSDP_CHECK(p->keeps_node(), Sharding, "OSDP: ", step_.me(), ": parameter '", p->name(),
               "' was given other memory in ", step_.in_backward ? "backward" : "forward",
               " (Tensor.set_, resize_, p.data of another dtype): its gradient would then be this rank's ",
               "own, not the average over the ranks. Write values with copy_, or do this between steps.");
}

void ParamViews::note_writes() {
  for (Parameter* p : shards_.whole_params())
    if (!p->shows_unsharded() && p->written()) {
      p->note_written_in_forward();
    }
}

// In reverse order of the parameters, which is about the order in one process.
void ParamViews::call_hooks() {
  const auto& params = shards_.params();
  for (size_t i = params.size(); i-- > 0;)
    if (params[i]->take_reduced()) params[i]->call_hooks();
}

}  // namespace osdp::runtime
