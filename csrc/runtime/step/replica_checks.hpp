// ReplicaChecks: decides when a model's replicas are compared: see Note [A digest of the replicas].
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/step/replicas.hpp"
#include "runtime/step/step_state.hpp"
#include "runtime/store/model_shards.hpp"

namespace osdp::runtime {

class ReplicaChecks {
 public:
  // `columns`: the lane for collectives over columns; null if there is none. `column_ranks`: the global ranks
  // of this rank's column.
  ReplicaChecks(const ModelShards& shards, const StepState& step, std::shared_ptr<comm::Lane> lane,
                std::shared_ptr<comm::Lane> columns, const ShardGroups& everyone, const ShardGroups& hybrid,
                int64_t model, std::vector<int64_t> column_ranks)
      : shards_(shards),
        step_(step),
        lane_(std::move(lane)),
        columns_(std::move(columns)),
        everyone_(everyone),
        hybrid_(hybrid),
        all_(model),
        in_columns_(model, std::move(column_ranks)) {}

  // Called when a training step's forward begins; submits at most once per backward that averages.
  void submit() {
    if (!std::exchange(due_, false)) return;
    all_.submit(*lane_, everyone_.shard, shards_.whole_params(), step_.accumulates);
    if (columns_)
      in_columns_.submit(*columns_, hybrid_.replicate, shards_.column_params(), step_.accumulates);
  }
  void gradients_averaged() { due_ = true; }
  // Called when parameters may have changed on some ranks only: they are compared at the next forward.
  void suspect() {
    due_ = true;
    all_.suspect();
    in_columns_.suspect();
  }
  // Waits for what was submitted; throws ReplicaError.
  void check() {
    all_.check(step_.rank, step_.health.names());
    in_columns_.check(step_.rank, step_.health.names());
  }
  void forget() {
    all_.forget();
    in_columns_.forget();
  }

 private:
  const ModelShards& shards_;
  const StepState& step_;
  const std::shared_ptr<comm::Lane> lane_, columns_;
  const ShardGroups& everyone_;
  const ShardGroups& hybrid_;
  Replicas all_, in_columns_;
  bool due_ = true;
};

}  // namespace osdp::runtime
