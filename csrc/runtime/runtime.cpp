#include "runtime/runtime.hpp"

#include <ATen/autocast_mode.h>

#include <utility>

#include "comm/parts.hpp"
#include "runtime/owners.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {
namespace {

// Names of groups; `reductions` and `replicate` may be empty.
ShardGroups shard_groups_of(comm::Lane& lane, const std::string& shard, comm::Lane& reductions_lane,
                            const std::string& reductions, const std::string& replicate, at::Device device) {
  ShardGroups shard_groups{
      .shard = comm::Collectives::over(lane, shard, device), .reduce = nullptr, .replicate = nullptr};
  shard_groups.reduce =
      reductions.empty() ? shard_groups.shard : comm::Collectives::over(reductions_lane, reductions, device);
  if (!replicate.empty()) shard_groups.replicate = comm::Collectives::over(lane, replicate, device);
  return shard_groups;
}

std::shared_ptr<HybridReducer> reducer_between_lines(const Groups& groups, const ShardGroups& hybrid,
                                                     at::Device device) {
  if (!hybrid.replicate || hybrid.replicate->alone()) return nullptr;
  return std::make_shared<HybridReducer>(comm::Lane::beside(groups.all, comm::Lane::kBetweenLines, device),
                                         hybrid.replicate);
}

// Checks the specs, so that the constructor throws before anything is changed. With `backend_memory`, gathers
// and reductions use the backend's memory.
Arena arena_of(const std::vector<ParamSpec>& params, const std::vector<UnitSpec>& units,
               const ShardGroups& everyone, const ShardGroups& hybrid, at::Device device,
               bool backend_memory) {
  ModelShards::check(params, units);
  Arena arena(device);
  if (!backend_memory) return arena;
  for (const ShardGroups* shard_groups : {&everyone, &hybrid}) {
    shard_groups->shard->use_memory();
    shard_groups->reduce->use_memory();
  }
  arena.set_source(
      [memory = hybrid.shard->memory(), device](size_t bytes) { return memory->allocate(bytes, device); });
  return arena;
}

// Gathers over all ranks that go between hosts, then inside; `everyone` if there is no group for it.
ShardGroups in_two_levels(const Groups& groups, const ShardGroups& everyone, const ShardGroups& hybrid,
                          comm::Lane& lane, at::Device device) {
  if (groups.between.empty()) return everyone;
  std::shared_ptr<comm::Collectives> column = comm::Collectives::over(lane, groups.between, device);
  if (hybrid.shard->memory()) column->use_memory();
  auto levels = std::make_shared<comm::TwoLevel>(*everyone.shard, hybrid.shard, std::move(column));
  return {.shard = levels, .reduce = hybrid.reduce, .replicate = nullptr, .levels = levels};
}

}  // namespace

Runtime::Runtime(const Groups& groups, at::Device device, std::vector<ParamSpec> params,
                 std::vector<UnitSpec> units, int64_t model, bool backend_memory)
    : lane_(comm::Lane::of(groups.all, device)),
      reductions_lane_(groups.reductions.empty()
                           ? lane_
                           : comm::Lane::beside(groups.all, comm::Lane::kReductions, device)),
      everyone_(shard_groups_of(*lane_, groups.all, *reductions_lane_, groups.reductions, "", device)),
      hybrid_(groups.shard.empty() ? everyone_
                                   : shard_groups_of(*lane_, groups.shard, *reductions_lane_,
                                                     groups.shard_reductions, groups.replicate, device)),
      hybrid_reducer_(reducer_between_lines(groups, hybrid_, device)),
      device_(device),
      arena_(arena_of(params, units, everyone_, hybrid_, device, backend_memory)),
      two_level_(in_two_levels(groups, everyone_, hybrid_, *lane_, device)),
      step_{.rank = rank(), .health = lane_->health(), .alone = alone()},
      shards_(std::move(params), units, everyone_, hybrid_, two_level_, model),
      views_(shards_, step_, [this](Parameter& p) { install_gradient_hooks(backward_.handle(), p); }),
      stack_(lane_->health()),
      buckets_(reductions_lane_, everyone_.reduce, step_, model),
      units_(shards_, step_, arena_, buckets_, lane_, reductions_lane_, hybrid_reducer_),
      replicas_(shards_, step_, lane_, hybrid_reducer_ ? hybrid_reducer_->shared_lane() : nullptr, everyone_,
                hybrid_, model, comm::ranks_of_part(groups.replicate)),
      backward_(shards_, step_, views_, units_, buckets_, replicas_, stack_),
      full_params_(shards_, step_, stack_, lane_, everyone_.shard, device, model),
      forward_(shards_, step_, views_, units_, buckets_, replicas_, stack_, backward_, full_params_),
      slices_(shards_, units_, buckets_, stack_, backward_, full_params_) {
  open_buckets();
}

void Runtime::open_buckets() {
  if (alone()) return;
  for (const ModelShards::Replicated& each : shards_.replicated()) buckets_.add(each.label, each.params);
}

void Runtime::install() {
  add_runtime(shared_from_this());
  backward_.set_handle(std::shared_ptr<BackwardPass>(shared_from_this(), &backward_));
  for (const auto& param : shards_.params()) install_hooks(*param);
  step_.installed = true;
}

void Runtime::uninstall() {
  remove_runtime(*this);
  step_.installed = false;
  for (const auto& param : shards_.params()) param->set_accumulator({});  // it fits what was shown here
}

void Runtime::install_hooks(Parameter& p) {
  const ModelShards::Place& place = shards_.place_of(p);
  const bool handled = place.unit || buckets_.holds(p) || place.copy || p.split();
  if (!handled || !p.tensor().requires_grad()) return;
  // The node takes its shape from the data shown: the full shape.
  if (p.split()) p.show_split_unsharded();
  if (place.slot) p.show_unsharded(place.slot->full());
  if (place.copy) {
    place.copy->cast(true);  // nobody reads it here
    p.show_unsharded(place.copy->shown());
  }
  install_gradient_hooks(backward_.handle(), p);
  p.show_sharded();
  if (place.copy) place.copy->drop();
}

void Runtime::join(const std::string& label, std::vector<ParamSpec> specs) {
  OSDP_CHECK(!in_pass() && !full_params_.summoned(), Sharding, "OSDP: ", label,
             " were added inside a forward, backward or summon_full_params; add them between steps.");
  const std::vector<Parameter*> joined = shards_.join(specs);
  if (!alone()) buckets_.add(label, joined);
  for (Parameter* p : joined) install_hooks(*p);
}

void Runtime::regroup(const std::vector<UnitSpec>& units) {
  OSDP_CHECK(!in_pass() && !full_params_.shows_any(), Sharding, "OSDP: ", step_.me(),
             ": the model's units cannot change inside a forward, backward or summon_full_params");
  backward_.await_end();
  std::vector<const Parameter*> all;
  for (const auto& p : shards_.params()) all.push_back(p.get());
  const Parameter* kept = backward_.unreduced(all);
  OSDP_CHECK(!kept, Sharding, "OSDP: ", step_.me(), ": the model's units cannot change while parameter '",
             kept->name(), "' has a gradient that was kept under no_sync: call zero_grad() first");
  let_go(/*trained=*/false);
  shards_.regroup(units);
  units_.regroup();
  buckets_.close_all();
  open_buckets();
}

void Runtime::set_absent(const std::vector<int64_t>& indices) {
  for (const auto& p : shards_.params()) p->set_absent(false);
  for (int64_t i : indices) shards_.parameter(i).set_absent(true);
}

void Runtime::set_sync_of(const std::vector<int64_t>& params, bool sync) {
  for (int64_t i : params) parameter(i).set_sync(sync);
}

void Runtime::unshard(const std::vector<int64_t>& params, bool wait) {
  OSDP_CHECK(!full_params_.shows_any(), Sharding,
             "OSDP: unshard() within summon_full_params, where parameters are full already");
  if (stack_.empty()) backward_.await_end();
  const NoInference no_inference;
  units_.unshard(params);
  if (wait) await_unsharded(params);
}

void Runtime::await_unsharded(const std::vector<int64_t>& params) {
  const NoInference no_inference;
  units_.await_unsharded(params);
  // What modules find between passes is this rank's part of a DTensor, gathered or not: never its value.
  if (!in_pass() && views_.wrapped().empty()) units_.show_read_only(params);
}

void Runtime::reshard(const std::vector<int64_t>& params) {
  const NoInference no_inference;
  units_.reshard(params);
}

void Runtime::let_go(bool trained) {
  const NoInference no_inference;
  units_.let_go(trained);
}

void Runtime::end_read_only() {
  const NoInference no_inference;
  units_.end_read_only();
}

Call* Runtime::add_call(std::string module, const std::vector<int64_t>& params, bool root, bool hold,
                        bool method, const std::vector<int64_t>& alone) {
  for (int64_t i : params)
    if (parameter(i).split()) slices_.open(i, std::shared_ptr<SliceProvider>(shared_from_this(), &slices_));
  return shards_.add_call(std::move(module), params, root, hold, method, alone);
}

// Autocast caches copies of fp32 parameters only; under mixed precision few or none are fp32.
bool Runtime::autocast_copies() const {
  if (shards_.params().empty() || !at::autocast::is_autocast_enabled(device_.type())) return false;
  for (const auto& p : shards_.params())
    if (!p->mixed() && p->own_dtype() == at::kFloat) return true;
  return false;
}

Statistics Runtime::statistics() const {
  Statistics counted = units_.statistics();
  counted.sent_bytes = sent_bytes() - sent_before_;
  return counted;
}

void Runtime::reset_statistics() {
  units_.reset_statistics();
  sent_before_ = sent_bytes();
}

int64_t Runtime::sent_bytes() const {
  int64_t sum = everyone_.shard->sent_bytes();
  if (hybrid_.replicate) sum += hybrid_.replicate->sent_bytes();
  if (hybrid_.shard != everyone_.shard) sum += hybrid_.shard->sent_bytes();
  if (two_level_.levels) sum += two_level_.levels->sent_between();
  return sum;
}

}  // namespace osdp::runtime
