// The lines of the lattice on which plans may lie that are better than the incumbent. See Note [Levels].
#pragma once

#include "search/level_basis.hpp"

namespace osdp::search::levels {

// Plans on one line that are better than the incumbent: positions low..high; none where high < low.
struct Target {
  int64_t level = 0, low = 0, high = -1;
};

class Targets {
 public:
  Targets(const Context& context, const Basis& basis) : c_(context), basis_(basis) {}

  // The lines that cross the triangle of better plans, and their windows, for the incumbent of now. False if
  // there are too many, or a window has no end.
  bool aim();
  // The same, and the window of `target`'s line; empty where there is none. False where aim() is.
  bool aim(Target& target);

  const std::vector<Target>& all() const { return all_; }  // as the last aim() left them

 private:
  const Context& c_;
  const Basis& basis_;
  std::vector<Target> all_;
};

}  // namespace osdp::search::levels
