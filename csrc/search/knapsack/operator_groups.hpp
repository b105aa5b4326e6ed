// Groups: operators with equal options count once, with a multiplicity. Deep models have many equal
// operators, and a plan's cost depends only on how many of them take which option.
#pragma once

#include "search/problem/problem.hpp"

namespace osdp::search {

struct Group {
  std::vector<Option> options;  // none dominated: memory strictly rising, time strictly falling
  int64_t count = 0;            // operators in this group
  // Members by the exact option list they came with (the order of options and the dominated ones may differ).
  struct Kind {
    std::vector<int> original;  // original[k]: index of options[k] in the operator's own list
    std::vector<int> members;   // operator indices, rising
  };
  std::vector<Kind> kinds;
};

// Indices of the options that no other option dominates, by rising memory. Of equal options the first one
// stays.
std::vector<int> undominated(std::span<const Option> options);

// Groups in an order that depends on their options only, never on the order of operators. Throws
// InvalidProblem as validate() does, but for the limit, which is not looked at.
std::vector<Group> make_groups(const ProblemView& problem);
inline std::vector<Group> make_groups(const Problem& problem) { return make_groups(ProblemView(problem)); }

// counts[g][k]: how many operators of group g take its option k. Members take options by rising memory, in
// operator order, so that equal operators with equal choices are neighbours.
std::vector<int> spread_choices(size_t operators, const std::vector<Group>& groups,
                                const std::vector<std::vector<int64_t>>& counts);

}  // namespace osdp::search
