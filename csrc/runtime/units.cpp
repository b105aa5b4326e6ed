// Gather, release and reduce: what happens to a unit's memory.
#include <ATen/Functions.h>

#include "runtime/arithmetic.hpp"
#include "runtime/graph_task.hpp"
#include "runtime/runtime.hpp"

namespace osdp::runtime {
namespace {

// Note [Small tensors travel together]
// A collective of a few KiB is all latency. The small tensors of a unit share one: their rows are packed
// behind each other, and the result is copied out, which costs less than another collective would.
constexpr size_t kSmallBytes = 64 * 1024;

struct Transfer {
  Slot* slot;
  at::Tensor rows;  // flat: this rank's rows, `chunk` rows long where it is padded
};

int64_t chunk_elements(const Slot& slot) { return slot.range().chunk * slot.range().row_elements; }

// This rank's rows, padded to a whole chunk (the last ranks have fewer).
at::Tensor padded_chunk(const at::Tensor& rows, int64_t elements) {
  if (rows.numel() == elements) return rows;
  at::Tensor padded = at::zeros({elements}, rows.options());
  padded.narrow(0, 0, rows.numel()).copy_(rows);
  return padded;
}

bool is_small(const Slot& slot) { return slot.bytes() <= kSmallBytes; }

void gather_now(Collectives& collectives, const std::vector<Transfer>& transfers) {
  const int64_t world = collectives.world();
  std::vector<at::Tensor> outputs, inputs, packed;
  std::vector<const Slot*> small;
  int64_t small_elements = 0;
  for (const Transfer& t : transfers) {
    at::Tensor chunk = padded_chunk(t.rows, chunk_elements(*t.slot));
    if (is_small(*t.slot) && transfers.size() > 1) {
      small.push_back(t.slot);
      packed.push_back(std::move(chunk));
      small_elements += chunk_elements(*t.slot);
    } else {
      outputs.push_back(t.slot->padded());
      inputs.push_back(std::move(chunk));
    }
  }
  at::Tensor all;
  if (!small.empty()) {
    inputs.push_back(at::cat(packed));
    all = at::empty({world, small_elements}, packed[0].options());
    outputs.push_back(all.view({-1}));
  }
  collectives.all_gather(outputs, inputs);
  int64_t at = 0;
  for (const Slot* slot : small) {
    const int64_t n = chunk_elements(*slot);
    slot->padded().view({world, n}).copy_(all.narrow(1, at, n));
    at += n;
  }
}

// The full local gradient as the reduce-scatter wants it: flat, world chunks long.
at::Tensor padded_gradient(const Slot& slot, const at::Tensor& gradient) {
  at::Tensor flat = gradient.contiguous().view({-1});
  if (flat.numel() == slot.padded().numel()) return flat;
  at::Tensor padded = at::zeros({slot.padded().numel()}, flat.options());
  padded.narrow(0, 0, flat.numel()).copy_(flat);
  return padded;
}

struct Reduction {
  Slot* slot;
  at::Tensor gradient;  // full, local; let go as soon as it has been sent
  at::Tensor target;    // of a slice: its rows of the split weight's local gradient; else undefined
};

// Means over the ranks, this rank's rows of each, flat.
std::vector<at::Tensor> reduce_now(const Sharing& sharing, std::vector<Reduction>& reductions) {
  const int64_t world = sharing.world();
  std::vector<at::Tensor> outputs(reductions.size()), sent_outputs, sent_inputs, packed;
  std::vector<size_t> small;
  for (size_t i = 0; i < reductions.size(); ++i) {
    Reduction& r = reductions[i];
    at::Tensor input = padded_gradient(*r.slot, r.gradient);
    r.gradient.reset();
    if (is_small(*r.slot) && reductions.size() > 1) {
      small.push_back(i);
      packed.push_back(input.view({world, -1}));
    } else {
      outputs[i] = at::empty({chunk_elements(*r.slot)}, input.options());
      sent_outputs.push_back(outputs[i]);
      sent_inputs.push_back(std::move(input));
    }
  }
  at::Tensor own;
  if (!small.empty()) {
    at::Tensor all = at::cat(packed, 1);
    own = at::empty({all.size(1)}, all.options());
    sent_outputs.push_back(own);
    sent_inputs.push_back(all.view({-1}));
  }
  sharing.shard->reduce_scatter_mean(sent_outputs, sent_inputs);
  sent_inputs.clear();
  sharing.mean_over_replicas(sent_outputs);
  int64_t at = 0;
  for (size_t i : small) {
    const int64_t n = chunk_elements(*reductions[i].slot);
    outputs[i] = own.narrow(0, at, n);
    at += n;
  }
  return outputs;
}

}  // namespace

void Runtime::gather(Unit& unit) {
  std::vector<Transfer> transfers;
  for (Slot& slot : unit.slots) transfers.push_back({&slot, slot.rows_of(slot.owner().local())});
  unit.gathering = lane_->submit(unit.name + " all-gather",
                                 [this, &sharing = *unit.sharing, transfers = std::move(transfers)] {
                                   for (const Transfer& t : transfers)
                                     if (!t.slot->attached())
                                       t.slot->attach(arena_.allocate(t.slot->bytes()));
                                   gather_now(*sharing.shard, transfers);
                                 });
  unit.state = Unit::State::Gathering;
  unit.epoch = epoch_;
  unit.calls_seen = 0;
  for (Call* call : unit.calls)
    for (size_t i = 0; i < call->units.size(); ++i)
      if (call->units[i] == &unit) call->seen[i] = 0;
  ++statistics_.gathers;
  statistics_.gathered_bytes += static_cast<int64_t>(unit.bytes());
}

void Runtime::ready(Unit& unit) {
  unit.gathering.wait();
  unit.gathering = Ticket();
  unit.state = Unit::State::Gathered;
}

void Runtime::use(Unit& unit) {
  // Backward reads what its forward read; a new forward must not: the optimizer may have stepped since.
  const bool stale = !backward_ && unit.running == 0 && unit.epoch != epoch_;
  if (unit.state == Unit::State::Gathering && stale) ready(unit);
  if (unit.state == Unit::State::Sharded || stale) gather(unit);
  Unit* next = nullptr;
  if (backward_)
    next = backward_order_.advance(&unit);
  else if (root_forward_)
    next = forward_order_.advance(&unit);
  if (next && next->state == Unit::State::Sharded) {
    gather(*next);
    ++statistics_.prefetches;
  }
  if (unit.state == Unit::State::Gathering) ready(unit);
}

void Runtime::release(Unit& unit) noexcept {
  if (unit.state == Unit::State::Gathering) {
    try {
      ready(unit);
    } catch (...) {  // the lane tells the same error to whoever waits next; here the memory must go
      unit.gathering = Ticket();
    }
  }
  for (Slot& slot : unit.slots)
    if (slot.attached()) slot.detach();
  unit.state = Unit::State::Sharded;
  unit.keep = unit.held = false;
}

void Runtime::add_pending(Slot& slot, at::Tensor gradient) {
  OSDP_CHECK(gradient.layout() == at::kStrided, Sharding, "OSDP: parameter '", slot.name(),
             "' got a sparse gradient, which cannot be sharded. Use sparse=False, or NO_SHARD for it.");
  if (slot.unsynced.defined()) {
    gradient = gradient.add_(slot.unsynced);
    slot.unsynced.reset();
  }
  slot.pending = slot.pending.defined() ? slot.pending.add_(gradient) : std::move(gradient);
}

bool Runtime::all_arrived(Unit& unit) {
  if (const int task = current_graph_task(); unit.task != task) {
    unit.task = task;
    unit.arrived = 0;
    unit.expected = 0;
    for (const Slot& slot : unit.slots) unit.expected += in_graph_task(slot.owner().accumulator.get());
  }
  return ++unit.arrived >= unit.expected;
}

void Runtime::keep_unreduced(Unit& unit) {
  for (Slot& slot : unit.slots)
    if (slot.pending.defined()) slot.unsynced = std::move(slot.pending), slot.pending = at::Tensor();
}

void Runtime::reduce(Unit& unit) {
  auto reductions = std::make_shared<std::vector<Reduction>>();
  for (Slot& slot : unit.slots) {
    if (!slot.pending.defined()) continue;
    at::Tensor target;
    if (slot.owner().split()) target = slot.rows_of(slot.owner().ensure_local_grad());
    statistics_.reduced_bytes += static_cast<int64_t>(slot.bytes());
    reductions->push_back({&slot, std::move(slot.pending), std::move(target)});
    slot.pending = at::Tensor();
  }
  if (reductions->empty()) return;
  ++statistics_.reductions;
  arena_.trim();  // see Note [Blocks that come and go]
  reductions_.push_back(lane_->submit(unit.name + " reduce-scatter", [sharing = *unit.sharing, reductions] {
    std::vector<at::Tensor> means = reduce_now(sharing, *reductions);
    for (size_t i = 0; i < means.size(); ++i) {
      Slot& slot = *(*reductions)[i].slot;
      at::Tensor mean = means[i].narrow(0, 0, slot.range().count * slot.range().row_elements);
      if (slot.owner().split()) {
        add_into((*reductions)[i].target, mean);
        continue;
      }
      // Between the first reduction of a backward and leave(), this gradient is touched by the lane
      // alone.
      at::Tensor& gradient = slot.owner().local_grad();
      at::Tensor shaped = mean.view(slot.owner().local().sizes());
      if (gradient.defined())
        add_into(gradient, shaped);
      else
        gradient = shaped;
    }
  }));
}

size_t Runtime::gathered_bytes() const {
  size_t sum = 0;
  for (const auto& unit : units_)
    for (const Slot& slot : unit->slots)
      if (slot.attached()) sum += slot.bytes();
  return sum;
}

}  // namespace osdp::runtime
