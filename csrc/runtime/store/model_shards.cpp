#include "runtime/store/model_shards.hpp"

#include <algorithm>
#include <utility>

#include "faults/group_health.hpp"

namespace osdp::runtime {
namespace {

// Tensors that cannot be divided into rows stay whole: scalars and tensors of at most one element. One rank
// shards only what rests in host memory, all rows of it.
bool can_shard(at::IntArrayRef sizes, const ShardGroups& shard_groups, bool offload) {
  const bool several = !shard_groups.shard->alone() || offload;
  return several && !sizes.empty() && c10::multiply_integers(sizes) > 1;
}

void check_split(const ParamSpec& spec) {
  if (!spec.split) return;
  const SplitSpec& s = *spec.split;
  const bool rows = s.dim == ops::SplitDim::Out;
  OSDP_CHECK(spec.sizes().size() == 2 || (rows && spec.sizes().size() > 2), Sharding, "OSDP: parameter '",
             spec.name, "' is ", spec.sizes(), " and cannot be split");
  const int64_t length = spec.sizes()[rows ? 0 : 1];
  OSDP_CHECK(s.granularity > 0 && slices_fit(length, s.granularity, rows) && s.sharded >= 0 &&
                 s.sharded <= s.granularity,
             Sharding, "OSDP: parameter '", spec.name, "' of length ", length, " cannot be split into ",
             s.granularity, " slices, ", s.sharded, " of them sharded");
}

std::vector<Mode> modes_of(size_t params, const std::vector<UnitSpec>& units) {
  std::vector<Mode> modes(params, Mode::NoShard);
  for (const UnitSpec& unit : units)
    for (int64_t p : unit.params) modes.at(p) = unit.mode;
  return modes;
}

void name_tasks(Unit& unit, int64_t model) {
  std::vector<std::string> names;
  for (const Slot& slot : unit.slots) names.push_back(slot.name());
  unit.gathers = faults::TaskNames(unit.name + " all-gather", model, names);
  unit.reductions = faults::TaskNames(unit.name + " reduce-scatter", model, names);
  const char* average = traits(unit.mode).by_hosts ? " reduce-scatter" : " all-reduce";
  unit.averages = faults::TaskNames(unit.name + average + " between lines", model, std::move(names));
}

}  // namespace

void ModelShards::check(const std::vector<ParamSpec>& params, const std::vector<UnitSpec>& units) {
  const std::vector<Mode> modes = modes_of(params.size(), units);
  for (const ParamSpec& spec : params) check_split(spec);
  for (size_t i = 0; i < params.size(); ++i)
    OSDP_CHECK(!params[i].split || !(traits(modes[i]).inside_hosts || traits(modes[i]).by_hosts), Sharding,
               "OSDP: parameter '", params[i].name, "' is ", traits(modes[i]).name,
               " and split into slices, which are FULL_SHARD only");
}

ModelShards::ModelShards(std::vector<ParamSpec> params, const std::vector<UnitSpec>& units,
                         const ShardGroups& everyone, const ShardGroups& hybrid, const ShardGroups& two_level,
                         int64_t model)
    : model_(model), everyone_(everyone), hybrid_(hybrid), two_level_(two_level) {
  const std::vector<Mode> modes = modes_of(params.size(), units);
  for (size_t i = 0; i < params.size(); ++i) {
    ParamSpec& spec = params[i];
    // With one rank a split weight keeps its slices, but none is sharded, unless all come from the host.
    const bool comes = spec.offload && spec.split && spec.split->whole_slices() == 0;
    if (spec.split && everyone.shard->alone() && !comes) spec.split->sharded = 0;
    const ShardGroups& shard_groups = traits(modes[i]).inside_hosts ? hybrid : everyone;
    const bool sharded =
        spec.split || (traits(modes[i]).sharded && can_shard(spec.sizes(), shard_groups, spec.offload));
    offloads_ |= add_parameter(spec, sharded, shard_groups).away();
    spec.tensor.reset();
  }
  for (const UnitSpec& spec : units) add_unit(spec);
  for (const auto& param : params_) add_copy(*param);
}

Parameter& ModelShards::add_parameter(const ParamSpec& spec, bool sharded, const ShardGroups& shard_groups) {
  params_.push_back(
      std::make_unique<Parameter>(spec, params_.size(), sharded, shard_groups.rank(), shard_groups.world()));
  places_.emplace_back().shard_groups = &shard_groups;
  return *params_.back();
}

void ModelShards::add_slices(Parameter& p, const ShardGroups& shard_groups) {
  for (size_t s = 0; s < p.pieces().size(); ++s) {
    const Piece& piece = p.pieces()[s];
    if (piece.replicated) continue;
    auto slice = std::make_unique<Unit>();
    slice->shard_groups = &shard_groups;
    slice->name = p.name() + " slice " + std::to_string(s);
    const std::vector<int64_t> sizes = slice_sizes(p.full_sizes(), *p.split(), static_cast<int64_t>(s));
    slice->slots.emplace_back(p, slice->name, sizes, piece.local_begin, shard_groups.rank(),
                              shard_groups.world());
    place_of(p).slices.push_back(slice.get());
    name_tasks(*slice, model_);
    slice->index = units_.size();
    units_.push_back(std::move(slice));
  }
}

void ModelShards::add_unit(const UnitSpec& spec) {
  Replicated replicated{spec.name, {}};
  auto unit = std::make_unique<Unit>();
  unit->name = spec.name;
  unit->mode = spec.mode;
  unit->shard_groups = traits(spec.mode).inside_hosts ? &hybrid_
                       : traits(spec.mode).by_hosts   ? &two_level_
                                                      : &everyone_;
  unit->slots.reserve(spec.params.size());  // reserved because places_ points into it
  for (int64_t i : spec.params) {
    Parameter& p = *params_[i];
    if (p.split()) {
      split_.push_back(&p);
      add_slices(p, *unit->shard_groups);
      if (p.split()->sharded < p.split()->granularity) replicated.params.push_back(&p);
    } else if (p.whole()) {
      replicated.params.push_back(&p);
      whole_.push_back(&p);
    } else {
      if (unit->shard_groups->replicate) in_columns_.push_back(&p);
      unit->slots.emplace_back(p, p.name(), p.full_sizes().vec(), 0, unit->shard_groups->rank(),
                               unit->shard_groups->world());
      place_of(p).unit = unit.get();
      place_of(p).slot = &unit->slots.back();
    }
  }
  if (!replicated.params.empty()) replicated_.push_back(std::move(replicated));
  if (unit->slots.empty()) return;
  name_tasks(*unit, model_);
  unit->index = units_.size();
  units_.push_back(std::move(unit));
}

void ModelShards::add_copy(Parameter& p) {
  if (!p.whole() || !p.mixed()) return;
  copies_.push_back(std::make_unique<WholeCopy>(p));
  place_of(p).copy = copies_.back().get();
}

std::vector<Parameter*> ModelShards::join(const std::vector<ParamSpec>& specs) {
  std::vector<Parameter*> joined;
  for (const ParamSpec& spec : specs) {
    joined.push_back(&add_parameter(spec, false, everyone_));
    whole_.push_back(joined.back());
    add_copy(*joined.back());
  }
  return joined;
}

void ModelShards::check_rows_stay(const std::vector<UnitSpec>& units) const {
  std::vector<char> found(params_.size());
  for (const UnitSpec& unit : units)
    for (const int64_t i : unit.params) {
      const Parameter& p = parameter(i);
      const ShardGroups& over = traits(unit.mode).inside_hosts ? hybrid_ : everyone_;
      const bool sharded = traits(unit.mode).sharded && can_shard(p.full_sizes(), over, p.away());
      const bool stays = p.split() ? !traits(unit.mode).inside_hosts
                                   : p.whole() != sharded && (p.whole() || place_of(p).shard_groups == &over);
      OSDP_CHECK(!found[i]++, Sharding, "OSDP: parameter '", p.name(), "' is in two units of the new plan.");
      OSDP_CHECK(stays, Sharding, "OSDP: parameter '", p.name(), "' cannot be regrouped as ",
                 traits(unit.mode).name, " in unit '", unit.name,
                 "': this rank holds other rows of it. Shard the model anew.");
    }
  for (const auto& p : params_)
    OSDP_CHECK(found[p->index()], Sharding, "OSDP: parameter '", p->name(),
               "' is in no unit of the new plan: shard the model anew.");
}

void ModelShards::regroup(const std::vector<UnitSpec>& units) {
  check_rows_stay(units);
  for (const auto& call : calls_) call->forget_units();
  for (Place& place : places_) place.unit = nullptr, place.slot = nullptr, place.slices.clear();
  units_.clear(), replicated_.clear();
  whole_.clear(), split_.clear(), in_columns_.clear();
  for (const UnitSpec& unit : units) add_unit(unit);
}

Call* ModelShards::add_call(std::string module, const std::vector<int64_t>& params, bool root, bool hold,
                            bool method, const std::vector<int64_t>& alone) {
  auto call = std::make_unique<Call>();
  const std::string named = module.empty() ? "the model" : "'" + module + "'";
  call->in_forward = faults::interned("forward of " + named);
  call->in_recomputation = faults::interned("recomputation of " + named);
  call->in_backward = faults::interned("backward of " + named);
  call->module = std::move(module);
  call->root = root;
  call->hold = hold;
  call->method = method;
  const auto add = [&](int64_t i, bool counts) {
    Place& place = places_.at(i);
    call->slices.insert(call->slices.end(), place.slices.begin(), place.slices.end());
    if (place.unit && std::find(call->units.begin(), call->units.end(), place.unit) == call->units.end()) {
      call->units.push_back(place.unit);
      if (counts) place.unit->calls.push_back(call.get());
    }
    if (place.copy) call->copies.push_back(place.copy);
  };
  for (int64_t i : params) add(i, !method);
  for (int64_t i : alone) add(i, false);
  calls_.push_back(std::move(call));
  return calls_.back().get();
}

size_t ModelShards::gathered_bytes() const {
  size_t sum = 0;
  for (const auto& unit : units_)
    for (const Slot& slot : unit->slots)
      if (slot.attached()) sum += slot.bytes();
  return sum;
}

size_t ModelShards::copied_bytes() const {
  size_t sum = 0;
  for (const auto& copy : copies_) sum += copy->bytes();
  return sum;
}

}  // namespace osdp::runtime
