// Gather, release and reduce: what happens to a unit's memory.
#include <ATen/Functions.h>

#include <utility>

#include "runtime/arithmetic.hpp"
#include "runtime/graph_task.hpp"
#include "runtime/offload.hpp"
#include "runtime/precision.hpp"
#include "runtime/runtime.hpp"

namespace osdp::runtime {
namespace {

struct Transfer {
  Slot* slot;
  at::Tensor rows;  // flat: this rank's rows, `chunk` rows long where it is padded
};

int64_t chunk_elements(const Slot& slot) { return slot.range().chunk * slot.range().row_elements; }

// padded = `tensor`, flat and cast, and zeros behind it.
at::Tensor pad_into(at::Tensor padded, const at::Tensor& tensor) {
  const int64_t n = tensor.numel(), more = padded.numel() - n;
  cast_into(padded.narrow(0, 0, n).view(tensor.sizes()), tensor);
  if (more > 0) padded.narrow(0, n, more).zero_();
  return padded;
}

// Whether these rows can travel as they are.
bool is_chunk(const at::Tensor& rows, const Slot& slot) {
  return rows.numel() == chunk_elements(slot) && rows.scalar_type() == slot.padded().scalar_type();
}

// This rank's rows as they travel: in the compute dtype, padded to a whole chunk (the last ranks have fewer).
// Where that is another tensor than the rank's own, it is made in its place in the gathered one, or, of those
// that travel together, by itself.
at::Tensor chunk_of(const Transfer& t, bool in_place, int64_t rank) {
  const at::Tensor& full = t.slot->padded();
  const at::Tensor rows = brought(t.slot->owner(), t.rows);
  if (is_chunk(rows, *t.slot)) return rows;
  const int64_t elements = chunk_elements(*t.slot);
  return pad_into(
      in_place ? full.narrow(0, rank * elements, elements) : at::empty({elements}, full.options()), rows);
}

// Small tensors of one dtype, which travel in one.
template <class Member>
struct Packed {
  at::ScalarType dtype;
  std::vector<Member> members;
  std::vector<at::Tensor> parts;
  at::Tensor all;
};

template <class Member>
Packed<Member>& packed_as(std::vector<Packed<Member>>& packs, at::ScalarType dtype) {
  for (auto& pack : packs)
    if (pack.dtype == dtype) return pack;
  return packs.emplace_back(Packed<Member>{dtype, {}, {}, {}});
}

// Whether it travels with the other small ones of `together` tensors, behind the large ones.
bool is_packed(const Slot& slot, size_t together) { return together > 1 && slot.bytes() <= kSmallBytes; }

// Of what gather_now sends, the inputs before the first that it must make.
Tensors first_sent(const std::vector<Transfer>& transfers) {
  Tensors inputs;
  for (const Transfer& t : transfers) {
    if (is_packed(*t.slot, transfers.size())) continue;
    if (t.slot->owner().away() || !is_chunk(t.rows, *t.slot)) break;
    inputs.push_back(t.rows);
  }
  return inputs;
}

void gather_now(Collectives& collectives, const std::vector<Transfer>& transfers) {
  const int64_t world = collectives.world();
  std::vector<at::Tensor> outputs, inputs;
  std::vector<Packed<const Slot*>> packs;
  for (const Transfer& t : transfers) {
    const bool packed = is_packed(*t.slot, transfers.size());
    at::Tensor chunk = chunk_of(t, !packed, collectives.rank());
    if (packed) {
      auto& pack = packed_as(packs, chunk.scalar_type());
      pack.members.push_back(t.slot);
      pack.parts.push_back(std::move(chunk));
    } else {
      outputs.push_back(t.slot->padded());
      inputs.push_back(std::move(chunk));
    }
  }
  for (auto& pack : packs) {
    inputs.push_back(at::cat(pack.parts));
    pack.all = at::empty({world, inputs.back().numel()}, inputs.back().options());
    outputs.push_back(pack.all.view({-1}));
  }
  collectives.all_gather(outputs, inputs);
  for (const auto& pack : packs) {
    int64_t at = 0;
    for (const Slot* slot : pack.members) {
      const int64_t n = chunk_elements(*slot);
      slot->padded().view({world, n}).copy_(pack.all.narrow(1, at, n));
      at += n;
    }
  }
}

// The full local gradient as the reduce-scatter wants it: in the reduce dtype, flat, world chunks long, and
// with headroom (see headroom_of).
at::Tensor padded_gradient(const Slot& slot, const at::Tensor& gradient, double headroom) {
  const at::ScalarType dtype = slot.owner().reduce_dtype();
  const at::IntArrayRef sizes = slot.padded().sizes();
  at::Tensor flat;
  if (gradient.is_contiguous() && gradient.numel() == sizes[0] && gradient.scalar_type() == dtype) {
    flat = gradient.view({-1});
  } else {
    const auto options = gradient.options().dtype(dtype);
    flat = pad_into(slot.bytes() <= kSmallBytes ? at::empty(sizes, options) : Lane::empty(sizes, options),
                    gradient);
  }
  if (headroom != 1.0) scale_by(flat, headroom);
  return flat;
}

struct Reduction {
  Slot* slot;
  at::Tensor gradient;  // full, local; let go as soon as it has been sent
  at::Tensor target;    // of a slice: its rows of the split weight's local gradient; else undefined
};

// Of what reduce_now sends, the inputs before the first that it must make.
Tensors first_sent(const std::vector<Reduction>& reductions, int64_t total) {
  Tensors inputs;
  for (const Reduction& r : reductions) {
    if (is_packed(*r.slot, reductions.size())) continue;
    const at::ScalarType dtype = r.slot->owner().reduce_dtype();
    if (!r.gradient.is_contiguous() || r.gradient.scalar_type() != dtype ||
        r.gradient.numel() != r.slot->padded().numel() || headroom_of(dtype, total) != 1.0)
      break;
    inputs.push_back(r.gradient.view({-1}));
  }
  return inputs;
}

// Means over the ranks that share, this rank's rows, flat.
struct Means {
  Tensors memory;  // all of it, as it was made
  Tensors each;    // one per reduction, parts of it
};

Means reduce_now(const Sharing& sharing, std::vector<Reduction>& reductions) {
  const int64_t world = sharing.world();
  Tensors outputs(reductions.size()), sent_outputs, sent_inputs;
  std::vector<Packed<size_t>> packs;
  for (size_t i = 0; i < reductions.size(); ++i) {
    Reduction& r = reductions[i];
    at::Tensor input =
        padded_gradient(*r.slot, r.gradient, headroom_of(r.slot->owner().reduce_dtype(), sharing.total()));
    Lane::keep(std::exchange(r.gradient, at::Tensor()));
    if (is_packed(*r.slot, reductions.size())) {
      auto& pack = packed_as(packs, input.scalar_type());
      pack.members.push_back(i);
      pack.parts.push_back(input.view({world, -1}));
    } else {
      outputs[i] = Lane::empty({chunk_elements(*r.slot)}, input.options());
      sent_outputs.push_back(outputs[i]);
      sent_inputs.push_back(std::move(input));
    }
  }
  for (auto& pack : packs) {
    at::Tensor all = at::cat(pack.parts, 1);
    pack.all = Lane::empty({all.size(1)}, all.options());
    sent_outputs.push_back(pack.all);
    sent_inputs.push_back(all.view({-1}));
  }
  sharing.shard->reduce_scatter_mean(sent_outputs, sent_inputs);
  for (const auto& pack : packs) {
    int64_t at = 0;
    for (size_t i : pack.members) {
      const int64_t n = chunk_elements(*reductions[i].slot);
      outputs[i] = pack.all.narrow(0, at, n);
      at += n;
    }
  }
  return {std::move(sent_outputs), std::move(outputs)};
}

// Adds the means over all ranks to the gradients that this rank keeps.
void keep_means(const Sharing& sharing, const std::vector<Reduction>& reductions, const Tensors& means) {
  for (size_t i = 0; i < means.size(); ++i) {
    Slot& slot = *reductions[i].slot;
    const double headroom = headroom_of(slot.owner().reduce_dtype(), sharing.total());
    at::Tensor mean = means[i].narrow(0, 0, slot.range().count * slot.range().row_elements);
    if (slot.owner().split()) {
      add_into(reductions[i].target, mean, 1.0 / headroom);
      continue;
    }
    // Between the first reduction of a backward and leave(), this gradient is touched by one lane alone.
    at::Tensor& home = slot.owner().local_grad();
    at::Tensor gradient = brought(slot.owner(), home);
    add_mean(gradient, mean.view(slot.owner().local().sizes()), slot.owner().own_dtype(), headroom);
    send_home(slot.owner(), gradient, home);
  }
}

}  // namespace

void Runtime::gather(Unit& unit) {
  std::vector<Transfer> transfers;
  for (Slot& slot : unit.slots) transfers.push_back({&slot, slot.rows_of(slot.owner().local())});
  Head head = unit.sharing->shard->head_of_gather(first_sent(transfers));
  unit.gathering = lane_->submit(
      unit.gathers.all(accumulates_),
      [this, &sharing = *unit.sharing, transfers = std::move(transfers)] {
        {
          const Lane::SubmittersMemory here;
          for (const Transfer& t : transfers)
            if (!t.slot->attached()) t.slot->attach(arena_.allocate(t.slot->bytes()));
        }
        gather_now(*sharing.shard, transfers);
      },
      std::move(head));
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
  for (Slot& slot : unit.slots) slot.open();
  unit.state = Unit::State::Gathered;
}

void Runtime::use(Unit& unit) {
  // Backward reads what its forward read; a new forward must not: the optimizer may have stepped since.
  const bool stale = !backward_ && unit.running == 0 && unit.epoch != epoch_;
  if (unit.state == Unit::State::Gathering && stale) ready(unit);
  if (unit.state == Unit::State::Sharded || stale) gather(unit);
  std::span<Unit* const> ahead;
  if (backward_)
    ahead = backward_order_.advance(&unit, depth_);
  else if (root_forward_)
    ahead = forward_order_.advance(&unit, grad_forward_ ? kept_depth_ : depth_);
  for (Unit* next : ahead)
    if (next->state == Unit::State::Sharded) {
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
  const at::ScalarType own = slot.owner().own_dtype();
  if (slot.unsynced.defined()) {
    gradient = wide_sum(std::move(gradient), slot.unsynced, own);
    slot.unsynced.reset();
  }
  slot.pending = slot.pending.defined() ? wide_sum(slot.pending, gradient, own) : std::move(gradient);
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
  const bool again = unit.reduced == backward_count_;
  bool own_memory = again;  // of the means: they do not become the gradients
  unit.parts.assign(unit.slots.size(), TaskNames::Part::None);
  for (size_t i = 0; i < unit.slots.size(); ++i) {
    Slot& slot = unit.slots[i];
    if (!slot.pending.defined()) continue;
    unit.parts[i] = TaskNames::Part::Gradient;
    slot.owner().reduced = true;
    own_memory |=
        !again && (slot.owner().local_grad().defined() || c10::elementSize(slot.owner().reduce_dtype()) >
                                                              c10::elementSize(slot.owner().own_dtype()));
    at::Tensor target;
    if (slot.owner().split()) target = slot.rows_of(split_gradient(slot.owner()));
    statistics_.reduced_bytes += static_cast<int64_t>(slot.reduced_bytes());
    reductions->push_back({&slot, std::move(slot.pending), std::move(target)});
    slot.pending = at::Tensor();
  }
  if (reductions->empty()) return;
  unit.reduced = backward_count_;
  ++statistics_.reductions;
  arena_.trim();  // see Note [Blocks that come and go]
  Head head = unit.sharing->shard->head_of_reduce_scatter(first_sent(*reductions, unit.sharing->total()));
  const std::shared_ptr<Columns> columns = unit.sharing->replicate ? columns_ : nullptr;
  if (lane_->keeps()) {
    if (!reductions_.empty()) reductions_.back().wait();
    if (columns && own_memory) columns->make_room();
  }
  const TaskNamePtr average = columns ? unit.averages.of(unit.parts, accumulates_) : nullptr;
  const auto task = [sharing = *unit.sharing, reductions, columns, own_memory, average] {
    if (columns && own_memory) columns->make_room();
    Means means = reduce_now(sharing, *reductions);
    if (!columns) return keep_means(sharing, *reductions, means.each);
    columns->average(average, means.memory, own_memory,
                     [sharing, reductions, each = means.each] { keep_means(sharing, *reductions, each); });
  };
  reductions_.push_back(lane_->submit(unit.reductions.of(unit.parts, accumulates_), task, std::move(head)));
}

size_t Runtime::copied_bytes() const {
  size_t sum = 0;
  for (const WholeCopy* copy : copies_) sum += copy->bytes();
  return sum;
}

size_t Runtime::gathered_bytes() const {
  size_t sum = 0;
  for (const auto& unit : units_)
    for (const Slot& slot : unit->slots)
      if (slot.attached()) sum += slot.bytes();
  return sum;
}

}  // namespace osdp::runtime
