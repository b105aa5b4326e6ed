// Replicas: checks that replicated parameters are still equal on all ranks that hold them.
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
// that holds them applies the same update from the same mean gradient. This can break silently: by an update
// that depends on the rank (noise from a per-rank seed, scaling by the rank's own gradient norm), or by
// values that were set on some ranks only. So each rank computes a digest of every such parameter before the
// first forwards of training and then before every 100th. Before the others it computes digests only of
// parameters that a forward has written to, which are the same on all ranks. One small all-reduce on the lane
// takes the maximum of the digests and of their negatives: all ranks agree if and only if the two maxima are
// negatives of each other. It is awaited only at the end of backward, when the lane is awaited anyway. A
// digest has 52 bits, which a double represents exactly: a hash of the bits on the CPU, the sum of the bytes
// on an accelerator.
//
// If digests differ, all of these ranks know it, and they gather the digests of that parameter to report
// which rank holds which value.
class Replicas {
 public:
  // `ranks`: the ranks in the lane's group of the collectives' ranks, see ranks_of_part; empty: the same.
  explicit Replicas(int64_t model, std::vector<int64_t> ranks = {})
      : model_(model), ranks_(std::move(ranks)) {}

  static constexpr int64_t kFirst = 3, kEvery = 100;

  // Called before a training step's forward. Submits the comparison of the local tensors of `params`, which
  // should be equal on the ranks of `collectives`. Does nothing in most steps.
  void submit(comm::Lane& lane, const std::shared_ptr<comm::Collectives>& collectives,
              const std::vector<Parameter*>& params, bool accumulates);
  // Waits for the submitted comparison. Throws ReplicaError, naming the first parameter that differs and the
  // ranks that hold each value. `rank`: this one.
  void check(int64_t rank, const faults::RankNames& name);
  void forget();
  void suspect() { steps_ = 0; }  // compares at the next kFirst forwards

 private:
  at::Tensor digest_of_each_rank(int64_t of);  // `of` indexes digests_; collective

  int64_t model_;  // see Runtime
  std::vector<int64_t> ranks_;
  int64_t steps_ = 0;
  comm::Work under_way_;
  at::Tensor digests_;  // [2, params]: maxima of the digests and of their negatives
  at::Tensor own_;      // [params]
  comm::Lane* lane_ = nullptr;
  std::shared_ptr<comm::Collectives> collectives_;
  std::vector<std::string> names_;
  std::vector<char> written_;  // whether a forward has written to it
};

}  // namespace osdp::runtime
