// Unshard, reshard and reduce: what happens to a unit's memory.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "comm/arithmetic.hpp"
#include "runtime/runtime.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/store/offload.hpp"
#include "runtime/store/precision.hpp"

namespace osdp::runtime {
namespace {

struct Transfer {
  Slot* slot;
  at::Tensor rows;  // flat: this rank's rows, `chunk` rows long where it is padded
};

int64_t chunk_elements(const Slot& slot) { return slot.range().chunk * slot.range().row_elements; }

// Whether these rows can travel as they are.
bool is_chunk(const at::Tensor& rows, const Slot& slot) {
  return rows.numel() == chunk_elements(slot) && rows.scalar_type() == slot.padded().scalar_type();
}

// `tensor` into the first elements of `padded`, which is flat, cast; and zeros behind it.
void pad_into(Batch& batch, const at::Tensor& padded, const at::Tensor& tensor, double factor = 1.0) {
  const int64_t n = tensor.numel(), more = padded.numel() - n;
  if (n > 0) batch.set(more > 0 ? padded.narrow(0, 0, n) : padded, tensor, factor);
  if (more > 0) batch.zero(padded.narrow(0, n, more));
}

// This rank's rows as they travel, into `chunk`: in the compute dtype, and a whole chunk (the last ranks have
// fewer).
void fill(Batch& batch, const at::Tensor& chunk, const Transfer& t) {
  const bool cast = t.rows.scalar_type() != chunk.scalar_type();
  pad_into(batch, chunk, cast ? brought(t.slot->owner(), t.rows) : t.rows);
}

// Small tensors of one dtype, which travel in one: each rank's chunks, one behind the other.
struct Pack {
  at::ScalarType dtype;
  std::vector<size_t> members;  // of what is sent
  int64_t width = 0;            // elements of a rank
  at::Tensor all;

  static void put(std::vector<Pack>& packs, at::ScalarType dtype, size_t member, const Slot& slot) {
    const auto same = [&](const Pack& pack) { return pack.dtype == dtype; };
    auto at = std::find_if(packs.begin(), packs.end(), same);
    if (at == packs.end()) at = packs.insert(at, {dtype, {}, 0, {}});
    at->members.push_back(member);
    at->width += chunk_elements(slot);
  }
};

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
  const int64_t world = collectives.world(), rank = collectives.rank();
  Tensors outputs, inputs;
  std::vector<Pack> packs;
  Batch batch;
  // What is not sent as it is is made in its place in what is gathered.
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    const at::Tensor& full = t.slot->padded();
    if (is_packed(*t.slot, transfers.size())) {
      Pack::put(packs, full.scalar_type(), i, *t.slot);
      continue;
    }
    outputs.push_back(full);
    if (!t.slot->owner().away() && is_chunk(t.rows, *t.slot)) {
      inputs.push_back(t.rows);
    } else {
      const int64_t elements = chunk_elements(*t.slot);
      inputs.push_back(full.narrow(0, rank * elements, elements));
      fill(batch, inputs.back(), t);
    }
  }
  for (Pack& pack : packs) {
    pack.all = at::empty({world, pack.width}, transfers[pack.members[0]].slot->padded().options());
    outputs.push_back(pack.all.view({-1}));
    inputs.push_back(pack.all.select(0, rank));
    int64_t at = 0;
    for (size_t i : pack.members) {
      const int64_t n = chunk_elements(*transfers[i].slot);
      fill(batch, inputs.back().narrow(0, at, n), transfers[i]);
      at += n;
    }
  }
  batch.run();
  collectives.all_gather(outputs, inputs);
  for (const Pack& pack : packs) {
    Tensors columns;
    for (size_t i : pack.members) columns.push_back(transfers[i].slot->padded().view({world, -1}));
    split_columns(columns, pack.all);
  }
}

struct Reduction {
  Slot* slot;
  at::Tensor gradient;  // full, local; let go as soon as it has been sent
  at::Tensor target;    // of a slice: its rows of the split weight's local gradient; else undefined
};

// Whether a gradient can be sent as it is, but for a factor.
bool is_padded(const Reduction& r) {
  return r.gradient.is_contiguous() && r.gradient.scalar_type() == r.slot->owner().reduce_dtype() &&
         r.gradient.numel() == r.slot->padded().numel();
}

// Of what reduce_now sends, the inputs before the first that it must make.
Tensors first_sent(const std::vector<Reduction>& reductions, int64_t total) {
  Tensors inputs;
  for (const Reduction& r : reductions) {
    if (is_packed(*r.slot, reductions.size())) continue;
    if (!is_padded(r) || headroom_of(r.slot->owner().reduce_dtype(), total) != 1.0) break;
    inputs.push_back(r.gradient.view({-1}));
  }
  return inputs;
}

// Means over the ranks that share, this rank's rows, flat.
struct Means {
  Tensors memory;  // all of it, as it was made
  Tensors each;    // one per reduction, parts of it
};

// A gradient as the rows that ranks share.
at::Tensor rows_of(const Reduction& r) {
  const RowRange& range = r.slot->range();
  return r.gradient.reshape({range.rows, range.row_elements});
}

// Large gradients into the backend's memory, as they travel but for headroom. By the stream that made them,
// which has the memory that autograd made them in free again at once: see Note [Memory of the backend].
void bring(const Collectives& collectives, std::vector<Reduction>& reductions) {
  const at::NoGradGuard no_grad;
  Batch batch;
  for (Reduction& r : reductions) {
    if (r.slot->bytes() <= kSmallBytes) continue;
    const auto options = r.gradient.options().dtype(r.slot->owner().reduce_dtype());
    const at::Tensor there = collectives.empty(r.slot->padded().numel(), options);
    pad_into(batch, there, r.gradient);
    r.gradient = there;
  }
  batch.run();
}

// Full gradients travel in the reduce dtype, flat, world chunks long, and with headroom (see headroom_of).
Means reduce_now(const ShardGroups& shard_groups, std::vector<Reduction>& reductions) {
  const int64_t world = shard_groups.world();
  Tensors outputs(reductions.size()), sent_outputs, sent_inputs;
  std::vector<Pack> packs;
  Batch batch;
  for (size_t i = 0; i < reductions.size(); ++i) {
    Reduction& r = reductions[i];
    const at::ScalarType dtype = r.slot->owner().reduce_dtype();
    if (is_packed(*r.slot, reductions.size())) {
      Pack::put(packs, dtype, i, *r.slot);
      continue;
    }
    const double headroom = headroom_of(dtype, shard_groups.total());
    const auto options = r.gradient.options().dtype(dtype);
    if (is_padded(r)) {
      sent_inputs.push_back(r.gradient.view({-1}));
      batch.scale(sent_inputs.back(), headroom);
    } else {
      sent_inputs.push_back(shard_groups.reduce->empty(r.slot->padded().numel(), options));
      pad_into(batch, sent_inputs.back(), r.gradient, headroom);
    }
    Lane::keep(std::exchange(r.gradient, at::Tensor()));
    outputs[i] = shard_groups.reduce->empty(chunk_elements(*r.slot), options);
    sent_outputs.push_back(outputs[i]);
  }
  for (Pack& pack : packs) {
    const auto options = reductions[pack.members[0]].gradient.options().dtype(pack.dtype);
    pack.all = shard_groups.reduce->empty(pack.width, options);
    sent_outputs.push_back(pack.all);
    const at::Tensor all = at::empty({world, pack.width}, options);
    Tensors gradients;
    for (size_t i : pack.members) {
      gradients.push_back(rows_of(reductions[i]));
      Lane::keep(std::exchange(reductions[i].gradient, at::Tensor()));
    }
    join_chunks(all, gradients);
    batch.scale(all, headroom_of(pack.dtype, shard_groups.total()));
    sent_inputs.push_back(all.view({-1}));
  }
  batch.run();
  shard_groups.reduce->reduce_scatter_mean(sent_outputs, sent_inputs);
  for (const Pack& pack : packs) {
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
void keep_means(const ShardGroups& shard_groups, const std::vector<Reduction>& reductions,
                const Tensors& means) {
  Batch batch;
  Tensors gradients(means.size());
  for (size_t i = 0; i < means.size(); ++i) {
    Slot& slot = *reductions[i].slot;
    const double share = 1.0 / headroom_of(slot.owner().reduce_dtype(), shard_groups.total());
    at::Tensor mean = means[i].narrow(0, 0, slot.range().count * slot.range().row_elements);
    if (slot.owner().split()) {
      batch.add(reductions[i].target, mean, share);
      continue;
    }
    // Between the first reduction of a backward and show_sharded(), this gradient is touched by one lane
    // alone.
    mean = mean.view(slot.owner().local().sizes());
    at::Tensor& gradient = gradients[i];
    if (slot.owner().local_grad().defined()) {
      gradient = brought(slot.owner(), slot.owner().local_grad());
      batch.add(gradient, mean, share);
    } else if (const at::ScalarType own = slot.owner().own_dtype(); mean.scalar_type() != own) {
      gradient = Lane::empty(mean.sizes(), mean.options().dtype(own));
      batch.set(gradient, mean, share);
    } else {
      gradient = mean;
      batch.scale(gradient, share);
    }
  }
  batch.run();
  for (size_t i = 0; i < means.size(); ++i)
    if (Slot& slot = *reductions[i].slot; !slot.owner().split())
      send_home(slot.owner(), gradients[i], slot.owner().local_grad());
}

}  // namespace

void Runtime::unshard(Unit& unit) {
  std::vector<Transfer> transfers;
  for (Slot& slot : unit.slots) transfers.push_back({&slot, slot.rows_of(slot.owner().local())});
  EarlySend early = unit.shard_groups->shard->early_send_of_gather(first_sent(transfers));
  unit.unsharding = lane_->submit(
      unit.gathers.all(accumulates_),
      [this, &shard_groups = *unit.shard_groups, transfers = std::move(transfers)] {
        {
          const Lane::SubmittersMemory here;
          for (const Transfer& t : transfers)
            if (!t.slot->attached()) t.slot->attach(arena_.allocate(t.slot->bytes()));
        }
        gather_now(*shard_groups.shard, transfers);
      },
      std::move(early));
  unit.state = Unit::State::Unsharding;
  unit.epoch = epoch_;
  unit.calls_seen = 0;
  for (Call* call : unit.calls)
    for (size_t i = 0; i < call->units.size(); ++i)
      if (call->units[i] == &unit) call->seen[i] = 0;
  ++statistics_.gathers;
  statistics_.gathered_bytes += static_cast<int64_t>(unit.bytes());
}

void Runtime::wait_unshard(Unit& unit) {
  unit.unsharding.wait();
  unit.unsharding = Work();
  for (Slot& slot : unit.slots) slot.open();
  unit.state = Unit::State::Unsharded;
}

void Runtime::use(Unit& unit) {
  // Backward reads what its forward read; a new forward must not: the optimizer may have stepped since.
  const bool stale = !backward_ && unit.running == 0 && unit.epoch != epoch_;
  if (unit.state == Unit::State::Unsharding && stale) wait_unshard(unit);
  if (unit.state == Unit::State::Sharded || stale) unshard(unit);
  std::span<Unit* const> ahead;
  if (backward_)
    ahead = backward_order_.advance(&unit, depth_);
  else if (root_forward_)
    ahead = forward_order_.advance(&unit, grad_forward_ ? kept_depth_ : depth_);
  for (Unit* next : ahead)
    if (next->state == Unit::State::Sharded) {
      unshard(*next);
      ++statistics_.prefetches;
    }
  if (unit.state == Unit::State::Unsharding) wait_unshard(unit);
}

void Runtime::reshard(Unit& unit) noexcept {
  if (unit.state == Unit::State::Unsharding) {
    try {
      wait_unshard(unit);
    } catch (...) {  // the lane tells the same error to whoever waits next; here the memory must go
      unit.unsharding = Work();
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

// Note [Gradients that leave]
// On the CPU a gather waits on the lane for the reductions before it, and the computation for the gather: so
// gradients of FULL_SHARD units cannot pile up where the lane is late. SHARD_GRAD_OP gathers nothing in
// backward. So a gradient is given to the lane only when it, those that are leaving, and what is gathered for
// a time fit what a plan reserves (Note [Reserve] in search/problem/model.hpp), or when it is the only one.
// On streams the computation waits for the reduction before (Note [Memory that two streams use]).
void Runtime::await_room(size_t bytes) {
  while (!leaving_.empty() && leaving_.front().reduction.done()) leaving_.pop_front();
  if (leaving_.empty()) return;
  size_t held = bytes;
  for (const Leaving& gradient : leaving_) held += gradient.bytes;
  for (const auto& unit : units_)
    if (unit->state != Unit::State::Sharded && unit->mode != Mode::ShardGradOp) held += unit->bytes();
  for (; !leaving_.empty() && held > depth_.bytes; leaving_.pop_front()) {
    leaving_.front().reduction.wait();
    held -= leaving_.front().bytes;
  }
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
  EarlySend early = unit.shard_groups->reduce->early_send_of_reduce_scatter(
      first_sent(*reductions, unit.shard_groups->total()));
  const std::shared_ptr<HybridReducer> hybrid = unit.shard_groups->replicate ? hybrid_reducer_ : nullptr;
  if (reductions_lane_->keeps()) {
    if (!reductions_.empty()) reductions_.back().wait();
    if (hybrid && own_memory) hybrid->make_room();
    if (unit.shard_groups->reduce->memory()) bring(*unit.shard_groups->reduce, *reductions);
  } else {
    await_room(unit.bytes());
  }
  const TaskNamePtr average = hybrid ? unit.averages.of(unit.parts, accumulates_) : nullptr;
  const auto task = [shard_groups = *unit.shard_groups, reductions, hybrid, own_memory, average] {
    if (hybrid && own_memory) hybrid->make_room();
    Means means = reduce_now(shard_groups, *reductions);
    if (!hybrid) return keep_means(shard_groups, *reductions, means.each);
    hybrid->average(average, means.memory, own_memory, [shard_groups, reductions, each = means.each] {
      keep_means(shard_groups, *reductions, each);
    });
  };
  reductions_.push_back(
      reductions_lane_->submit(unit.reductions.of(unit.parts, accumulates_), task, std::move(early)));
  if (!reductions_lane_->keeps()) leaving_.push_back({reductions_.back(), unit.bytes()});
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
