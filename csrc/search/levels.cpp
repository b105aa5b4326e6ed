// Note [Levels]
// All plans that the open groups still allow lie on a lattice (lattice.hpp). Where that lattice is coarse,
// few of its lines cross the triangle of better plans (within the limit, above the Lagrangian line, faster
// than the incumbent), and on each line only a short window of points lies in it. The paper's formulas make
// such lattices: a line is a number of messages, a point on it a number of bytes; even where all operators
// differ, the optimum is then a sum of given size and number of terms, which no bound tells.
// 1. Basis: u as short as possible where times and priced bytes count alike, so that lines are far apart;
//    v leads from line to line. An item is then (level, position): level * v + position * u.
// 2. The groups are parted in three, and the sums of each part are listed: X over the most critical groups, Y
//    and Z over the others. What is wanted are x + y + z on a target's line, within its window.
// 3. X is marked in a small bit table, one row per level, blurred by the window's width. All pairs of Y and
//    Z that X could complete are run through: one look at the table each, a few percent have to be looked up
//    in X. Neither sorting nor storing is done for the pairs, which are by far the most.
// 4. A sum is listed only if some completion, given the levels, still has small enough reduced costs: a table
//    by group and level (`rest_`), computed backwards.
// 5. How many pairs there are is known before they are looked at. Too many: X is grown, and Y and Z shrink.
#include "search/levels.hpp"

#include "search/level_pairs.hpp"

namespace osdp::search {
namespace {

constexpr size_t kMostSums[] = {size_t{1} << 10, size_t{1} << 16, size_t{1} << 18};  // of X, by attempt
constexpr int64_t kPairsPerSum = 64;  // pairs looked at in one attempt, per sum of X

}  // namespace

bool search_levels(Context& c) {
  OpenGroups groups;
  if (!open_groups(c, c.allowance(), groups) || groups.open.empty()) return false;
  levels::Basis basis;
  if (!levels::choose_basis(c, groups, basis)) return false;
  if (c.proven()) return true;
  std::vector<levels::Placed> placed;
  levels::Targets targets(c, basis);
  if (!levels::place_items(groups, basis, placed) || !targets.aim()) return false;
  if (targets.all().empty()) return true;
  levels::Rest rest;
  if (!rest.limit_levels(placed, targets.all())) return false;
  levels::Parts parts(c, std::move(placed), std::move(rest));
  levels::Pairs pairs(c, groups, parts, targets);
  for (const size_t most : kMostSums) {
    // With lists that were cut off, nothing is proven, but better plans are found.
    const bool complete = parts.make(most, targets.all());
    if (c.watch.stopped()) return false;
    const int64_t looks = kPairsPerSum * static_cast<int64_t>(most);
    if (pairs.search(complete ? looks : looks / 16) && complete) return true;
    if (c.watch.stopped() || c.good_enough()) return false;
  }
  return false;
}

}  // namespace osdp::search
