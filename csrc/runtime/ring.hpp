// Ring: all-gather, reduce-scatter and all-reduce on the CPU, by messages between neighbouring ranks.
//
// Note [A ring of our own]
// Gloo's reduce-scatter is an all-reduce of a copy, and its all-gather waits for each whole piece before it
// passes it on. Here a rank sends to the next and receives from the one before, in segments, several of which
// are in flight: a segment is passed on as soon as it has arrived, so that the link never rests. Received
// bytes go straight to where they are wanted; a reduction adds into the tensor that it was given. There are
// no temporaries but an all-reduce's few segments, and those only on links without memory of their own. Sums
// are taken in ring order, the same whoever asks.
#pragma once

#include "runtime/collectives.hpp"
#include "runtime/link.hpp"

namespace osdp::runtime {

class Ring final : public Collectives {
 public:
  // The link is shared by all rings of a group. Collective where it is made: at a group's first ring.
  Ring(const std::string& group, c10::intrusive_ptr<c10d::Backend> backend);

  std::string link() const override { return link_->name(); }
  Head head_of_gather(const Tensors& inputs) const override;
  Head head_of_reduce_scatter(const Tensors& inputs) const override;
  Head head_of_all_reduce(const Tensors& tensors) const override;

 protected:
  void gather(const Tensors& outputs, const Tensors& inputs) override;
  void reduce_scatter(const Tensors& outputs, const Tensors& inputs) override;
  void all_reduce(const Tensors& tensors) override;

 private:
  void run(const Course& course);  // over the link, counted
  // `work`, which communicates; the connection that it loses is to a rank of the lane's group.
  template <typename Work>
  void naming_ranks(Work work) const;
  void exchange(const at::Tensor& tensor);
  bool at_once(const at::Tensor& tensor) const;  // an all-reduce's, by exchange()
  Head head_of(Tensors whole, int64_t chunks, int64_t chunk) const;

  int64_t chunk_before(int64_t steps) const { return ((rank() - steps) % world() + world()) % world(); }
  double share() const { return 1.0 / static_cast<double>(world()); }

  std::shared_ptr<Link> link_;
  std::vector<int64_t> ranks_;  // see ranks_of_part
};

}  // namespace osdp::runtime
