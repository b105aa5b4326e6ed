// ModelShards: the parameters of one sharded model, the units in which they are gathered, and the calls that
// use the units. It describes only what exists; UnitScheduler and ParamViews keep the state within a step.
//
// Invariants: the addresses of parameters, units and calls are stable. None is removed, except that `regroup`
// replaces all units. A parameter is whole, or split into slices, or in one unit. Whole parameters may be
// added between steps.
//
// Note [Units that change]
// Which rows a rank holds of a parameter follows from its mode and its slices, not from the parameters that
// travel with it nor from the calls that gather it. A plan that changes only these (that of the first
// forward, which tells which modules read what) therefore moves nothing: `regroup` makes other units of the
// same parameters, and each unit takes its mode from the new plan, as long as the rows stay. Parameters,
// their gradients and the hooks on their AccumulateGrad nodes know no units. Calls do: the calls of before
// have none from then on, and refuse to begin. They stay where they are, because functions that a script has
// taken from a module, and graphs of earlier forwards, refer to them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/store/precision.hpp"
#include "runtime/store/shard_groups.hpp"
#include "runtime/store/shard_store.hpp"
#include "runtime/store/spec.hpp"
#include "runtime/store/unit.hpp"

namespace osdp::runtime {

class ModelShards {
 public:
  // The objects that handle a parameter.
  struct Place {
    Unit* unit = nullptr;       // sharded, not split
    WholeCopy* copy = nullptr;  // whole, under mixed precision
    Slot* slot = nullptr;
    std::vector<Unit*> slices;                  // the sharded slices of a split one
    const ShardGroups* shard_groups = nullptr;  // the ranks that it is sharded over; null: not sharded
  };
  // Parameters or slices that every rank holds in full and whose gradients are averaged in one bucket.
  struct Replicated {
    std::string label;
    std::vector<Parameter*> params;
  };

  // Shards the parameters in place. Throws, before anything is changed, if a spec is invalid.
  // `everyone`, `hybrid`, `two_level`: see Runtime; they outlive this. `model`: the model's number.
  ModelShards(std::vector<ParamSpec> params, const std::vector<UnitSpec>& units, const ShardGroups& everyone,
              const ShardGroups& hybrid, const ShardGroups& two_level, int64_t model);
  static void check(const std::vector<ParamSpec>& params, const std::vector<UnitSpec>& units);

  // Adds whole parameters that the model gained after sharding, in the order of `specs`.
  std::vector<Parameter*> join(const std::vector<ParamSpec>& specs);
  // Other units, of the same parameters. Throws ShardingError, before anything is changed, if this rank would
  // hold other rows of a parameter, or if one of the present units' parameters is in none of them. All units
  // are Sharded, and none has a gradient. See Note [Units that change].
  void regroup(const std::vector<UnitSpec>& units);
  Call* add_call(std::string module, const std::vector<int64_t>& params, bool root, bool hold, bool method,
                 const std::vector<int64_t>& alone);

  const std::vector<std::unique_ptr<Parameter>>& params() const { return params_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }  // slices included
  const std::vector<std::unique_ptr<WholeCopy>>& copies() const { return copies_; }
  Parameter& parameter(int64_t index) const { return *params_.at(index); }
  Place& place_of(const Parameter& param) { return places_[param.index()]; }
  const Place& place_of(const Parameter& param) const { return places_[param.index()]; }

  const std::vector<Replicated>& replicated() const { return replicated_; }     // by unit
  const std::vector<Parameter*>& whole_params() const { return whole_; }        // NO_SHARD
  const std::vector<Parameter*>& split_params() const { return split_; }        // computed in slices
  const std::vector<Parameter*>& column_params() const { return in_columns_; }  // HYBRID_SHARD
  bool offloads() const { return offloads_; }  // some parameter rests in host memory; see offload.hpp
  size_t gathered_bytes() const;               // of the full tensors that exist now
  size_t copied_bytes() const;                 // of whole parameters' copies in their compute dtype

 private:
  Parameter& add_parameter(const ParamSpec& spec, bool sharded, const ShardGroups& shard_groups);
  void add_copy(Parameter& param);  // if it is whole and computed in another dtype
  void add_slices(Parameter& param, const ShardGroups& shard_groups);
  void add_unit(const UnitSpec& spec);
  void check_rows_stay(const std::vector<UnitSpec>& units) const;

  const int64_t model_;
  const ShardGroups& everyone_;
  const ShardGroups& hybrid_;
  const ShardGroups& two_level_;  // the same rows as everyone_
  std::vector<std::unique_ptr<Parameter>> params_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<std::unique_ptr<WholeCopy>> copies_;
  std::vector<Place> places_;  // of each parameter
  std::vector<Replicated> replicated_;
  std::vector<Parameter*> whole_, split_, in_columns_;
  bool offloads_ = false;
};

}  // namespace osdp::runtime
