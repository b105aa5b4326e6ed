// The options that some plan within the limit may have.
//
// Note [Options that never fit]
// Where memory is scarce most options are in no plan that fits: a replicated operator adds its state to every
// phase, and an operator in few slices adds a large gradient to its own. A relaxation does not see that: it
// takes a small part of such an option. So they are left out before the search begins. An option stays only
// if the chain with it, and the least amounts of everything else (each its own minimum, Note [Chain
// resources]), keeps the limit in some instance of its class. What is left out raises the minima, so this is
// repeated.
#pragma once

#include <array>

#include "search/labels/chain_resources.hpp"

namespace osdp::search {

class FeasibleOptions {
 public:
  // `all`: the request's classes. Memory grows with the batch: the smallest ones decide.
  FeasibleOptions(const Model& model, const Request& request, const EquivalenceClasses& all);

  // With the options that are left; at least one of each operator, if any plan fits.
  const EquivalenceClasses& classes() const { return classes_; }
  // Translates a plan's indices of options: from those of all to those that are left, false if it has one
  // that is left out; and back.
  bool narrow(Decision& decision) const;
  void widen(Decision& decision) const;

 private:
  // By class, slot and Recompute: the indices, among all options, of those that are left.
  using Kept = std::vector<std::vector<std::array<std::vector<int>, 3>>>;
  bool leave_out(const Model& model, const Request& request);
  template <class Translate>
  bool translate(Decision& decision, const Translate& to) const;

  EquivalenceClasses classes_;
  Kept kept_;
};

}  // namespace osdp::search
