// TwoLevel: an all-gather over the ranks of several hosts, as one collective between hosts and one inside
// each.
//
// Note [Between hosts, then inside]
// A ring over all N = H R ranks (H hosts of R ranks) sends (N-1)/N S out of every host. But a host needs only
// (H-1)/H S from the others: rank r of each host fetches what rank r of the others holds (a column: H ranks,
// S/R bytes), and the ranks of a host (a line) then exchange that over their fast links. Two hosts of eight
// send 8/16 S between them instead of 15/16 S, and a collective takes H-1 + R-1 hops instead of N-1. In
// exchange the links between hosts are idle while those inside work. Reductions run the other way: inside a
// host first. ZeRO++ and MiCS call these hierarchical collectives.
//
// Chunks stay where a collective over all ranks puts them: chunk h R + r is rank r's of host h. So what is
// gathered between hosts is one piece of each host's R chunks, and the line exchanges H such pieces, each in
// place. This needs hosts whose ranks are consecutive. A reduction's halves run on two lanes: see Note [Two
// lanes] in runtime/step/hybrid_reducer.hpp.
//
// The S/R bytes that the column has gathered, the second shard, are all that a later gather inside the host
// needs: who keeps them gathers again without the slow links (hpZ of ZeRO++).
#pragma once

#include <memory>

#include "comm/collectives.hpp"

namespace osdp::comm {

// The `count` equal parts of each flat tensor, one after the other: of `count` hosts.
Tensors parts_of(const Tensors& tensors, int64_t count);

class TwoLevel final : public Collectives {
 public:
  // `all`: of the same ranks in one group, which does everything else. `line`, `column`: of this rank.
  // The ranks of every line are consecutive.
  TwoLevel(const Collectives& all, std::shared_ptr<Collectives> line, std::shared_ptr<Collectives> column);

  std::string transport() const override { return line_->transport(); }
  int64_t sent_between() const { return column_->sent_bytes(); }

  int64_t hosts() const { return column_->world(); }

  // Its two halves. second[i] (flat, hosts * n_i elements) is filled with inputs[i] (flat,
  // n_i) of the column; then outputs[i] (flat, world * n_i) with every rank's.
  Tensors gather_between(const Tensors& inputs) const;
  void gather_inside(const Tensors& outputs, const Tensors& second) const;
  EarlySend early_send_of_gather(const Tensors& inputs) const override {
    return column_->early_send_of_gather(inputs);
  }
  EarlySend early_send_inside(const Tensors& second) const {
    return line_->early_send_of_gather(parts_of(second, hosts()));
  }

 protected:
  void gather(const Tensors& outputs, const Tensors& inputs) override;

 private:
  std::shared_ptr<Collectives> line_, column_;
};

}  // namespace osdp::comm
