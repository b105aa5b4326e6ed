// Looks up sums of X that complete pairs of Y and Z to a plan on a target's line. See Note [Levels].
#pragma once

#include "search/level_parts.hpp"

namespace osdp::search::levels {

class Pairs {
 public:
  Pairs(Context& context, const OpenGroups& groups, const Parts& parts, Targets& targets)
      : c_(context),
        groups_(groups),
        targets_(targets),
        placed_(parts.placed),
        x_(parts.x),
        y_(parts.y),
        z_(parts.z) {}

  // Improves the incumbent by the plans on all targets' lines until the parts' sums hold none. False when
  // stopped, after `most` pairs of Y and Z, or when the incumbent is good enough.
  bool search(int64_t most);

 private:
  template <class Visit>
  bool for_pairs(const Target& target, Visit visit);
  void mark(const Target& target);
  bool search(Target target);
  bool improve(const Target& target, size_t row, size_t y, size_t z);

  Context& c_;
  const OpenGroups& groups_;
  Targets& targets_;
  const std::vector<Placed>& placed_;
  const Part &x_, &y_, &z_;

  struct Bits {
    int64_t first = 0;  // position of the first bit
    int64_t last = -1;  // position of X's last sum
    size_t word = 0;    // where its bits begin
  };
  std::vector<Bits> bits_;  // per row of X
  std::vector<uint64_t> table_;
  std::vector<uint32_t> starts_;  // per word of table_: the first of X's positions that lies in it or later
  int64_t left_ = 0;              // pairs to look at
  int shift_ = 0;                 // a bit stands for 2^shift_ positions
};

}  // namespace osdp::search::levels
