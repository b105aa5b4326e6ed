// Replicas: whether what several ranks hold is still the same on all of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/collectives.hpp"
#include "runtime/lane.hpp"
#include "runtime/shard_store.hpp"

namespace osdp::runtime {

// Note [A digest of the replicas]
// NO_SHARD parameters, and the rows of a HYBRID_SHARD parameter in every line, stay equal because every rank
// that holds them adds the same mean to them. What breaks this breaks it
// silently: torch's clip_grad_norm_, which sees another norm on each rank, or an update that depends on the
// rank. So before the first forwards of training steps and then before every 100th, each rank makes a digest
// of every such parameter, and before the others of those that a forward has written to (on all ranks alike),
// and one small all-reduce on the lane takes the maximum of the digests and of their negatives: they are
// equal everywhere just when both are the same number. Nobody waits for it before backward ends, when the
// lane is waited for anyway. A digest is a hash of the bits (on an accelerator the sum of the bytes) of 52
// bits, which a double holds exactly.
class Replicas {
 public:
  explicit Replicas(int64_t model) : model_(model) {}

  static constexpr int64_t kFirst = 3, kEvery = 100;

  // Before a training step's forward, of the local tensors of `params`, which the ranks of `collectives`
  // should hold alike. Does nothing in most steps.
  void submit(Lane& lane, const std::shared_ptr<Collectives>& collectives,
              const std::vector<Parameter*>& params);
  // Waits for what was submitted. Throws ReplicaError, naming the first parameter that differs.
  void check(int64_t rank);
  void forget();
  void suspect() { steps_ = 0; }  // compares at the next forwards

 private:
  int64_t model_;  // see Runtime
  int64_t steps_ = 0;
  Ticket under_way_;
  at::Tensor digests_;  // [2, params]: maxima of the digests and of their negatives
  std::vector<std::string> names_;
  std::vector<char> written_;  // in forward
};

}  // namespace osdp::runtime
