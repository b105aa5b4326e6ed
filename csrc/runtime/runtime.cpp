#include "runtime/runtime.hpp"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "comm/parts.hpp"
#include "runtime/owners.hpp"
#include "runtime/step/autograd_hooks.hpp"
#include "runtime/step/slice_provider.hpp"

namespace osdp::runtime {
namespace {

// What cannot be cut into rows stays whole: scalars, tensors of one element or none; and with one rank there
// is nothing to shard.
bool can_shard(const ParamSpec& spec, const ShardGroups& shard_groups) {
  return !shard_groups.shard->alone() && !spec.sizes().empty() && c10::multiply_integers(spec.sizes()) > 1;
}

void check_split(const ParamSpec& spec) {
  if (!spec.split) return;
  const SplitSpec& s = *spec.split;
  OSDP_CHECK(spec.sizes().size() == 2, Sharding, "OSDP: parameter '", spec.name,
             "' is not a matrix and cannot be split");
  const int64_t length = spec.sizes()[s.dim == ops::SplitDim::Out ? 0 : 1];
  OSDP_CHECK(s.granularity > 0 && length % s.granularity == 0 && s.sharded >= 0 && s.sharded <= s.granularity,
             Sharding, "OSDP: parameter '", spec.name, "' of length ", length, " cannot be split into ",
             s.granularity, " slices, ", s.sharded, " of them sharded");
}

void name_tasks(Unit& unit, int64_t model) {
  std::vector<std::string> names;
  for (const Slot& slot : unit.slots) names.push_back(slot.name());
  unit.gathers = TaskNames(unit.name + " all-gather", model, names);
  unit.reductions = TaskNames(unit.name + " reduce-scatter", model, names);
  unit.averages = TaskNames(unit.name + " all-reduce between lines", model, std::move(names));
}

// Names of groups; `reductions` and `replicate` may be empty.
ShardGroups shard_groups_of(Lane& lane, const std::string& shard, Lane& reductions_lane,
                            const std::string& reductions, const std::string& replicate, at::Device device) {
  ShardGroups shard_groups{
      .shard = Collectives::over(lane, shard, device), .reduce = nullptr, .replicate = nullptr};
  shard_groups.reduce =
      reductions.empty() ? shard_groups.shard : Collectives::over(reductions_lane, reductions, device);
  if (!replicate.empty()) shard_groups.replicate = Collectives::over(lane, replicate, device);
  return shard_groups;
}

// Gradients are averaged together where they are averaged alike.
std::vector<std::vector<Parameter*>> alike_in_precision(const std::vector<Parameter*>& params) {
  std::vector<std::vector<Parameter*>> groups;
  for (Parameter* p : params) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
      return g[0]->own_dtype() == p->own_dtype() && g[0]->reduce_dtype() == p->reduce_dtype() &&
             g[0]->mixed() == p->mixed();
    });
    if (group == groups.end())
      groups.push_back({p});
    else
      group->push_back(p);
  }
  return groups;
}

}  // namespace

Runtime::Runtime(const Groups& groups, at::Device device, std::vector<ParamSpec> params,
                 std::vector<UnitSpec> units, int64_t model, bool backend_memory)
    : model_(model),
      lane_(Lane::of(groups.all, device)),
      reductions_lane_(groups.reductions.empty() ? lane_
                                                 : Lane::beside(groups.all, Lane::kReductions, device)),
      everyone_(shard_groups_of(*lane_, groups.all, *reductions_lane_, groups.reductions, "", device)),
      collectives_(everyone_.shard),
      hybrid_(groups.shard.empty() ? everyone_
                                   : shard_groups_of(*lane_, groups.shard, *reductions_lane_,
                                                     groups.shard_reductions, groups.replicate, device)),
      arena_(device),
      buckets_(reductions_lane_, everyone_.reduce, model),
      device_(device),
      column_replicas_(model, ranks_of_part(groups.replicate)) {
  if (hybrid_.replicate && !hybrid_.replicate->alone())
    hybrid_reducer_ = std::make_shared<HybridReducer>(Lane::beside(groups.all, Lane::kBetweenLines, device),
                                                      hybrid_.replicate);
  std::vector<Mode> modes(params.size(), Mode::NoShard);
  for (const UnitSpec& unit : units)
    for (int64_t p : unit.params) modes.at(p) = unit.mode;
  for (const ParamSpec& spec : params) check_split(spec);
  for (size_t i = 0; i < params.size(); ++i)
    OSDP_CHECK(!params[i].split || modes[i] != Mode::HybridShard, Sharding, "OSDP: parameter '",
               params[i].name, "' is HYBRID_SHARD and split into slices, which are FULL_SHARD only");
  // Nothing was changed until here.
  if (backend_memory) {
    for (const ShardGroups* shard_groups : {&everyone_, &hybrid_}) {
      shard_groups->shard->use_memory();
      shard_groups->reduce->use_memory();
    }
    arena_.set_source(
        [memory = hybrid_.shard->memory(), device](size_t bytes) { return memory->allocate(bytes, device); });
  }
  for (size_t i = 0; i < params.size(); ++i) {
    ParamSpec& spec = params[i];
    // With one rank a split weight keeps its slices, none of them sharded.
    if (spec.split && alone()) spec.split->sharded = 0;
    const ShardGroups& shard_groups = modes[i] == Mode::HybridShard ? hybrid_ : everyone_;
    const bool sharded = spec.split || (modes[i] != Mode::NoShard && can_shard(spec, shard_groups));
    offloads_ |= add_parameter(spec, sharded, shard_groups).away();
    spec.tensor.reset();
  }
  for (const UnitSpec& spec : units) {
    std::vector<Parameter*> replicated;
    auto unit = std::make_unique<Unit>();
    unit->name = spec.name;
    unit->mode = spec.mode;
    unit->shard_groups = spec.mode == Mode::HybridShard ? &hybrid_ : &everyone_;
    unit->slots.reserve(spec.params.size());  // places_ points into it
    for (int64_t i : spec.params) {
      Parameter& p = *params_[i];
      Place& place = places_[i];
      if (p.split()) {
        const SplitSpec& split = *p.split();
        for (size_t s = 0; s < p.pieces().size(); ++s) {
          const Piece& piece = p.pieces()[s];
          if (piece.replicated) continue;
          auto slice = std::make_unique<Unit>();
          slice->shard_groups = unit->shard_groups;
          slice->name = p.name() + " slice " + std::to_string(s);
          const bool out = split.dim == ops::SplitDim::Out;
          const std::vector<int64_t> sizes{p.slice_rows(), p.full_sizes()[1] / (out ? 1 : split.granularity)};
          slice->slots.emplace_back(p, slice->name, sizes, piece.local_begin, slice->shard_groups->rank(),
                                    slice->shard_groups->world());
          place.slices.push_back(slice.get());
          name_tasks(*slice, model);
          units_.push_back(std::move(slice));
        }
        if (split.sharded < split.granularity) replicated.push_back(&p);
      } else if (p.whole()) {
        replicated.push_back(&p);
        replicated_.push_back(&p);
      } else {
        if (unit->shard_groups->replicate) in_columns_.push_back(&p);
        unit->slots.emplace_back(p, p.name(), p.full_sizes().vec(), 0, unit->shard_groups->rank(),
                                 unit->shard_groups->world());
        place.unit = unit.get();
        place.slot = &unit->slots.back();
      }
    }
    add_buckets(spec.name, replicated);
    if (unit->slots.empty()) continue;
    name_tasks(*unit, model);
    units_.push_back(std::move(unit));
  }
  for (const auto& param : params_) add_copy(*param);
  set_prefetch(1);
}

Parameter& Runtime::add_parameter(const ParamSpec& spec, bool sharded, const ShardGroups& shard_groups) {
  params_.push_back(std::make_unique<Parameter>(spec, sharded, shard_groups.rank(), shard_groups.world()));
  Parameter& p = *params_.back();
  index_of_[&p] = places_.size();
  places_.emplace_back().shard_groups = &shard_groups;
  return p;
}

void Runtime::add_buckets(const std::string& label, const std::vector<Parameter*>& replicated) {
  if (alone()) return;
  for (const std::vector<Parameter*>& alike : alike_in_precision(replicated))
    for (BucketItem* item : buckets_.add(label, alike)) place_of(*item->param).bucket = item;
}

void Runtime::add_copy(Parameter& p) {
  if (!p.whole() || !p.mixed()) return;
  owned_copies_.push_back(std::make_unique<WholeCopy>(p));
  copies_.push_back(owned_copies_.back().get());
  place_of(p).copy = copies_.back();
}

void Runtime::join(const std::string& label, std::vector<ParamSpec> specs) {
  OSDP_CHECK(!in_pass() && !summoned_, Sharding, "OSDP: ", label,
             " were added inside a forward, backward or summon_full_params; add them between steps.");
  std::vector<Parameter*> joined;
  for (const ParamSpec& spec : specs) joined.push_back(&add_parameter(spec, false, everyone_));
  add_buckets(label, joined);
  for (Parameter* p : joined) {
    replicated_.push_back(p);
    add_copy(*p);
    install_hooks(*p);
  }
}

void Runtime::set_absent(const std::vector<int64_t>& indices) {
  for (const auto& p : params_) p->absent = false;
  for (int64_t i : indices) params_.at(i)->absent = true;
}

void Runtime::set_prefetch(size_t units) {
  size_t largest = 0;
  bool all_kept = true;
  for (const auto& unit : units_) {
    largest = std::max(largest, unit->bytes());
    all_kept &= unit->mode == Mode::ShardGradOp;
  }
  depth_ = {.units = units, .bytes = (1 + units) * largest};
  kept_depth_ = all_kept ? Depth{.units = units, .bytes = Depth::kNoLimit} : depth_;
}

// It copies what is fp32; under mixed precision little or nothing is.
bool Runtime::autocast_copies() const {
  if (params_.empty() || !at::autocast::is_autocast_enabled(device_.type())) return false;
  for (const auto& p : params_)
    if (!p->mixed() && p->own_dtype() == at::kFloat) return true;
  return false;
}

Statistics Runtime::statistics() const {
  Statistics counted = statistics_;
  counted.sent_bytes = sent_bytes() - sent_before_;
  return counted;
}

void Runtime::reset_statistics() {
  statistics_ = {};
  sent_before_ = sent_bytes();
}

int64_t Runtime::sent_bytes() const {
  int64_t sum = collectives_->sent_bytes();
  if (hybrid_.replicate) sum += hybrid_.shard->sent_bytes() + hybrid_.replicate->sent_bytes();
  return sum;
}

Runtime::~Runtime() {
  for (const auto& [param, source] : sources_) ops::unregister_source(source);
}

void Runtime::install() {
  add_runtime(shared_from_this());
  for (const auto& param : params_) install_hooks(*param);
  installed_ = true;
}

void Runtime::uninstall() {
  remove_runtime(*this);
  installed_ = false;
  for (const auto& param : params_) param->accumulator.reset();  // made for what a parameter showed here
}

void Runtime::install_hooks(Parameter& p) {
  const Place& place = place_of(p);
  const bool handled = place.unit || place.bucket || place.copy || p.split();
  if (!handled || !p.tensor().requires_grad()) return;
  // The node takes the shape of what the parameter shows: the full one, except of a split weight.
  if (place.slot) p.show_unsharded(place.slot->full());
  if (place.copy) {
    place.copy->cast(true);  // nobody reads it here
    p.show_unsharded(place.copy->shown());
  }
  install_gradient_hooks(*this, p);
  p.show_sharded();
  if (place.copy) place.copy->drop();
}

Call* Runtime::add_call(std::string module, const std::vector<int64_t>& params, bool root, bool hold,
                        bool method) {
  auto call = std::make_unique<Call>();
  const std::string named = module.empty() ? "the model" : "'" + module + "'";
  call->in_forward = interned("forward of " + named);
  call->in_recomputation = interned("recomputation of " + named);
  call->in_backward = interned("backward of " + named);
  call->module = std::move(module);
  call->root = root;
  call->hold = hold;
  call->method = method;
  for (int64_t i : params) {
    Place& place = places_.at(i);
    call->slices.insert(call->slices.end(), place.slices.begin(), place.slices.end());
    if (place.unit && std::find(call->units.begin(), call->units.end(), place.unit) == call->units.end()) {
      call->units.push_back(place.unit);
      if (!method) place.unit->calls.push_back(call.get());
    }
    if (place.copy) call->copies.push_back(place.copy);
    if (params_[i]->split() && !sources_.contains(i))
      sources_[i] = ops::register_source(std::make_shared<RuntimeSlices>(weak_from_this(), i));
  }
  call->seen.assign(call->units.size(), 0);
  calls_.push_back(std::move(call));
  return calls_.back().get();
}

}  // namespace osdp::runtime
