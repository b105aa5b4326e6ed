// Groups: operators with equal options are represented once, with a multiplicity. Deep models have many equal
// operators, and a plan's cost depends only on how many of them take which option.
#pragma once

#include "search/problem/problem.hpp"

namespace osdp::search {

struct Group {
  std::vector<Option> options;  // none dominated: memory strictly increasing, time strictly decreasing
  int64_t count = 0;            // operators in this group
  // Members by their original option list (lists may differ in order and in dominated options).
  struct Kind {
    std::vector<int> original;  // original[k]: index of options[k] in the operator's own list
    std::vector<int> members;   // operator indices, ascending
  };
  std::vector<Kind> kinds;
};

// Indices of the options that no other option dominates, by ascending memory. Of equal options the first is
// kept.
std::vector<int> undominated(std::span<const Option> options);

// Groups in an order that depends on their options only, not on the order of operators. Throws InvalidProblem
// as validate() does, but does not check the limit.
std::vector<Group> make_groups(const ProblemView& problem);
inline std::vector<Group> make_groups(const Problem& problem) { return make_groups(ProblemView(problem)); }

// counts[g][k]: how many operators of group g take its option k. Members take options by ascending memory, in
// operator order, so that equal operators with equal choices are neighbours.
std::vector<int> spread_choices(size_t operators, const std::vector<Group>& groups,
                                const std::vector<std::vector<int64_t>>& counts);

}  // namespace osdp::search
