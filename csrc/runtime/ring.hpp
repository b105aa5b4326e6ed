// Ring: all-gather, reduce-scatter and all-reduce by sends and receives between neighbouring ranks.
//
// Note [A ring of our own]
// Gloo's reduce-scatter is an all-reduce of a copy, and its all-gather waits for each whole piece before it
// passes it on. Here a rank sends to the next and receives from the one before, in segments, several of which
// are in flight: a segment is passed on as soon as it has arrived, so that the link never rests. Received
// bytes go straight to where they are wanted; a reduction adds into the tensor that it was given and receives
// into the one that it fills. There are no temporaries but an all-reduce's few segments. Sums are taken in
// ring order, the same whoever asks.
#pragma once

#include <functional>

#include "runtime/collectives.hpp"

namespace osdp::runtime {

class Ring final : public Collectives {
 public:
  explicit Ring(c10::intrusive_ptr<c10d::Backend> backend) : Collectives(std::move(backend)) {}

 protected:
  void gather(const Tensors& outputs, const Tensors& inputs) override;
  void reduce_scatter(const Tensors& outputs, const Tensors& inputs) override;
  void all_reduce(const Tensors& tensors) override;

 private:
  // What goes round: `steps` rounds of `segments` messages each, the same on all ranks. Message (t, s) can be
  // sent when (t-1, s) has been received. Undefined tensors stand for empty messages.
  struct Course {
    int64_t steps = 0, segments = 0;
    int64_t window = 0;  // messages that may be on their way to us at once
    std::function<at::Tensor(int64_t step, int64_t segment)> to_send, to_receive;
    std::function<void(int64_t step, int64_t segment, const at::Tensor&)> received;
  };
  void run(const Course& course);
  class Segments;
  void spread(const Segments& segments);  // every rank's chunk, which is in its place, to every rank
  void all_reduce_small(const at::Tensor& tensor);

  int64_t chunk_before(int64_t steps) const { return ((rank() - steps) % world() + world()) % world(); }
};

}  // namespace osdp::runtime
