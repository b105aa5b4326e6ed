// Ring: all-gather, reduce-scatter, all-reduce and broadcast on the CPU, by messages between neighbouring
// ranks.
//
// Note [A ring of our own]
// Gloo's reduce-scatter is an all-reduce of a copy, and its all-gather waits for each whole piece before it
// forwards it. Here a rank sends to the next rank and receives from the previous one in segments, several of
// which are in flight: a segment is forwarded as soon as it has arrived, so that the link is never idle.
// Received bytes are written directly to their destination, and a reduction adds into its input array. The
// only temporaries are a few segments of an all-reduce, on transports without buffers of their own. A chunk
// is summed once, in ring order, so all ranks get the same bits.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/transports/transport.hpp"

namespace osdp::comm {

using Ranges = std::vector<Range>;

// For two or more ranks. Each call blocks until it is done. The ranges are flat arrays of any element type;
// reductions need one that can be summed.
class Ring {
 public:
  // `ranks`: the peers' ranks in the lane's group, see ranks_of_part; empty: the same.
  Ring(std::shared_ptr<Transport> transport, std::shared_ptr<Peers> peers, std::vector<int64_t> ranks)
      : transport_(std::move(transport)), peers_(std::move(peers)), ranks_(std::move(ranks)) {}

  // outputs[i] (world * n_i elements) is filled with every rank's inputs[i] (n_i), in rank order.
  void gather(const Ranges& outputs, const Ranges& inputs);
  // outputs[i] (n_i) becomes the mean of this rank's chunk of inputs[i] (world * n_i), whose contents are
  // overwritten.
  void reduce_scatter(const Ranges& outputs, const Ranges& inputs);
  void all_reduce(const Ranges& arrays);  // their means, in place
  void broadcast(const Ranges& arrays);   // from rank 0

  // The first messages of such a collective. The caller sets the owner of the memory (EarlySend::kept).
  EarlySend early_send_of_gather(const Ranges& inputs) const { return early_send_of(inputs, 1, 0); }
  EarlySend early_send_of_reduce_scatter(const Ranges& inputs) const {
    return early_send_of(inputs, world(), chunk_before(1));
  }
  EarlySend early_send_of_all_reduce(const Ranges& arrays) const;

  const Transport& transport() const { return *transport_; }
  int64_t sent_bytes() const { return sent_bytes_; }  // payload, so far

 private:
  void run(const RingSchedule& schedule);  // on the transport; counts the bytes sent
  // Runs `work`; translates the rank in a ConnectionLost that it throws to the lane's group.
  template <typename Work>
  void naming_ranks(Work work) const;
  void exchange(const Range& array);
  bool at_once(const Range& array) const;  // whether an all-reduce uses exchange()
  EarlySend early_send_of(const Ranges& whole, int64_t chunks, int64_t chunk) const;

  int64_t rank() const { return peers_->rank(); }
  int64_t world() const { return peers_->world(); }
  int64_t chunk_before(int64_t steps) const { return ((rank() - steps) % world() + world()) % world(); }
  double share() const { return 1.0 / static_cast<double>(world()); }

  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Peers> peers_;
  std::vector<int64_t> ranks_;
  std::atomic<int64_t> sent_bytes_ = 0;
};

}  // namespace osdp::comm
