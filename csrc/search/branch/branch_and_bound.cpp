// Note [Branch and bound over everything]
// A region is an interval of batch sizes, and a box of numbers of instances per recomputation for each group
// of blocks. Its relaxation bounds the time per sample of every
// plan in it (Note [Regions] in bounds/region_pricing.cpp). Open regions are in a heap ordered by that bound.
// The one with the lowest bound is branched between the plans that its relaxation mixes, until it has one
// batch; then on the recomputation that its relaxation mixes, and when that is fixed
// too, it is solved exactly (branch/fixed_node.hpp). The search ends when the lowest bound is not below the
// incumbent.
//
// Only some phases are rows. When a leaf's plan violates another phase, that phase becomes a row. With fewer
// rows the problem was a relaxation, so all bounds remain valid. A new row changes the symmetry classes, so
// boxes of one batch are merged into one, which is bounded again when it reaches the top of the
// heap.
#include "search/branch/branch_and_bound.hpp"

#include <algorithm>

namespace osdp::search {

void BranchAndBound::first_rows() {
  if (request_.paper()) {
    rows_ = {kWholeStep};
    return;
  }
  // The first and the last phase, and the phase of the last block's last operator, where recomputation has
  // restored the whole block.
  std::set<int> rows{0, static_cast<int>(model_.operators.size()) - 1};
  int last = -1;
  for (const EquivalenceClass& cls : classes_.classes) {
    if (cls.block) last = std::max(last, cls.instances.back().back());
  }
  if (last >= 0) rows.insert(last);
  rows_.assign(rows.rbegin(), rows.rend());
}

bool BranchAndBound::accept(const FixedNode& leaf, Batch batch) {
  const std::vector<int64_t> phases = phase_bytes(model_, request_, classes_, leaf.decision, batch);
  const auto worst = std::max_element(phases.begin(), phases.end());
  if (*worst > request_.limit_bytes) {
    broken_ = static_cast<int>(worst - phases.begin());
    return false;
  }
  const Found found{batch, leaf.decision, leaf.time_ps, *worst};
  found_.offer(found);
  if (best_.feasible && !found.faster_than({best_.batch, {}, best_.step_ps, 0})) return true;
  best_.feasible = true;
  best_.batch = batch;
  best_.decision = leaf.decision;
  best_.step_ps = leaf.time_ps;
  best_.peak_bytes = *worst;
  return true;
}

void BranchAndBound::go_on() {
  while (!open_.empty() && !watch_.stopped()) {
    BranchNode top = open_.top();
    if (budget_.tell_gap) budget_.tell_gap(apart(top));
    if (useless(top)) break;
    if (enough(top) || (best_.feasible && budget_.gap > 0 && apart(top) <= budget_.gap)) break;
    open_.pop();
    if (top.rows != rows_.size()) {
      top.box = everything(pool(top.lo.accumulation));
      push(std::move(top));
    } else if (cut(top)) {
      continue;
    } else {
      round(top);
      begin_subproblem(top);
      if (useless(top) || go_on_in_subproblem(top)) {
        continue;
      } else if (top.box.lo == top.box.hi) {
        solve(top);
      } else {
        cut_ways(top);
      }
    }
  }
}

void BranchAndBound::finish() {
  best_.rows = static_cast<int64_t>(rows_.size());
  best_.phases = rows_;
  double lowest = std::numeric_limits<double>::infinity();
  if (best_.feasible)
    lowest = static_cast<double>(best_.step_ps) / static_cast<double>(best_.batch.samples());
  if (best_.feasible || known_.enough_s_per_sample < lowest) {
    bool proven = !gave_up_;
    const auto open = [&](const BranchNode& w) {
      if (useless(w)) return;
      proven = false;
      const double bound = w.bound / static_cast<double>(w.samples);
      if (bound >= lowest) return;
      lowest = bound;
      best_.open_size = std::clamp(static_cast<int64_t>(w.mixture.size), w.lo.size, w.hi.size);
    };
    if (!open_.empty()) open(open_.top());
    for (const BranchNode& w : given_up_) open(w);
    if (gave_up_) lowest = 0;
    best_.optimal = proven && best_.feasible;
    if (lowest < std::numeric_limits<double>::infinity()) best_.lower_bound_s_per_sample = lowest * 1e-12;
    if (best_.feasible)
      best_.runners_up = found_.beside({best_.batch, best_.decision, best_.step_ps, best_.peak_bytes});
  }
  if (attained())
    best_.lower_bound_s_per_sample = std::max(best_.lower_bound_s_per_sample, known_.bound_s_per_sample);
  best_.seconds = watch_.seconds();
}

// Whether the best of the plans that are known attains the bound that is known.
bool BranchAndBound::attained() const {
  if (!best_.feasible || known_.bound_s_per_sample == 0) return false;
  const double best = 1e-12 * static_cast<double>(best_.step_ps) / static_cast<double>(best_.batch.samples());
  return best >= known_.bound_s_per_sample && best * (1 - budget_.gap) <= known_.bound_s_per_sample;
}

Budget BranchAndBound::rest_of_budget() const {
  Budget rest = budget_;
  if (rest.time_limit_s > 0) rest.time_limit_s = std::max(1e-3, rest.time_limit_s - watch_.seconds());
  return rest;
}

Schedule BranchAndBound::run() {
  first_rows();
  first_rows_ = rows_.size();
  if (request_.depth_first) {
    depth_first();
  } else if (attained()) {
    gave_up_ = true;
  } else {
    begin();
    go_on();
  }
  finish();
  return best_;
}

}  // namespace osdp::search
