// Ring: all-gather, reduce-scatter, all-reduce and broadcast on the CPU, by messages between neighbouring
// ranks.
//
// Note [A ring of our own]
// Gloo's reduce-scatter is an all-reduce of a copy, and its all-gather waits for each whole piece before it
// passes it on. Here a rank sends to the next and receives from the one before, in segments, several of which
// are in flight: a segment is passed on as soon as it has arrived, so that the link never rests. Received
// bytes go straight to where they are wanted; a reduction adds into the array that it was given. There are
// no temporaries but an all-reduce's few segments, and those only on transports without memory of their own.
// Sums are taken in ring order, the same whoever asks.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/transports/transport.hpp"

namespace osdp::runtime {

using Ranges = std::vector<Range>;

// With two ranks at least. Each call blocks until it is done; the ranges are flat arrays of any element, of
// one that can be summed where there are sums.
class Ring {
 public:
  // `ranks`: who the peers are in the lane's group, see ranks_of_part; empty: the same.
  Ring(std::shared_ptr<Transport> transport, std::shared_ptr<Peers> peers, std::vector<int64_t> ranks)
      : transport_(std::move(transport)), peers_(std::move(peers)), ranks_(std::move(ranks)) {}

  // outputs[i] (world * n_i elements) is filled with every rank's inputs[i] (n_i), in rank order.
  void gather(const Ranges& outputs, const Ranges& inputs);
  // outputs[i] (n_i) becomes the mean of this rank's chunk of inputs[i] (world * n_i), whose contents are
  // lost.
  void reduce_scatter(const Ranges& outputs, const Ranges& inputs);
  void all_reduce(const Ranges& arrays);  // their means, in place
  void broadcast(const Ranges& arrays);   // rank 0's

  // What such a collective sends first. The caller says who keeps the memory.
  EarlySend early_send_of_gather(const Ranges& inputs) const { return early_send_of(inputs, 1, 0); }
  EarlySend early_send_of_reduce_scatter(const Ranges& inputs) const {
    return early_send_of(inputs, world(), chunk_before(1));
  }
  EarlySend early_send_of_all_reduce(const Ranges& arrays) const;

  const Transport& transport() const { return *transport_; }
  int64_t sent_bytes() const { return sent_bytes_; }  // payload, so far

 private:
  void run(const RingSchedule& schedule);  // over the link, counted
  // `work`, which communicates; the connection that it loses is to a rank of the lane's group.
  template <typename Work>
  void naming_ranks(Work work) const;
  void exchange(const Range& array);
  bool at_once(const Range& array) const;  // an all-reduce's, by exchange()
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

}  // namespace osdp::runtime
