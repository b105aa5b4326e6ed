// Replicas: whether what several ranks hold is still the same on all of them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/lane.hpp"
#include "runtime/store/shard_store.hpp"

namespace osdp::runtime {

// Note [A digest of the replicas]
// NO_SHARD parameters, and the rows of a HYBRID_SHARD parameter in every line, stay equal because every rank
// that holds them adds the same mean to them. What breaks this breaks it silently: an update that depends on
// the rank (noise of its own seed, a scale made of its own gradients), or values that some ranks alone were
// given. So before the first forwards of training steps and then before every 100th, each rank makes a digest
// of every such parameter, and before the others of those that a forward has written to (on all ranks alike),
// and one small all-reduce on the lane takes the maximum of the digests and of their negatives: they are
// equal everywhere just when both are the same number. Nobody waits for it before backward ends, when the
// lane is waited for anyway. A digest is a hash of the bits (on an accelerator the sum of the bytes) of 52
// bits, which a double holds exactly.
//   Where one differs, all of these ranks have seen so, and gather its digests to tell who holds what.
class Replicas {
 public:
  // `ranks`: who the ranks of the collectives are in the lane's group, see ranks_of_part; empty: the same.
  explicit Replicas(int64_t model, std::vector<int64_t> ranks = {})
      : model_(model), ranks_(std::move(ranks)) {}

  static constexpr int64_t kFirst = 3, kEvery = 100;

  // Before a training step's forward, of the local tensors of `params`, which the ranks of `collectives`
  // should hold alike. Does nothing in most steps.
  void submit(Lane& lane, const std::shared_ptr<Collectives>& collectives,
              const std::vector<Parameter*>& params, bool accumulates);
  // Waits for what was submitted. Throws ReplicaError, naming the first parameter that differs and the ranks
  // that hold each value.
  void check(int64_t rank);
  void forget();
  void suspect() { steps_ = 0; }  // compares at the next forwards

 private:
  at::Tensor digest_of_each_rank(int64_t of);  // of the parameters of digests_; collective

  int64_t model_;  // see Runtime
  std::vector<int64_t> ranks_;
  int64_t steps_ = 0;
  Work under_way_;
  at::Tensor digests_;  // [2, params]: maxima of the digests and of their negatives
  at::Tensor own_;      // [params]
  Lane* lane_ = nullptr;
  std::shared_ptr<Collectives> collectives_;
  std::vector<std::string> names_;
  std::vector<char> written_;  // in forward
};

}  // namespace osdp::runtime
