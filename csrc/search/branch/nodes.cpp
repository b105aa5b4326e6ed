#include <algorithm>
#include <cmath>

#include "search/branch/branch_and_bound.hpp"

namespace osdp::search {

const ColumnPool& BranchAndBound::pool(int64_t accumulation) {
  const auto it = pools_.find(accumulation);
  if (it != pools_.end()) return it->second;
  return pools_.emplace(accumulation, make_column_pool(classes_, rows_, accumulation)).first->second;
}

Cheapest& BranchAndBound::cheapest(int64_t accumulation) {
  const auto it = cheapest_.find(accumulation);
  if (it != cheapest_.end()) return it->second;
  return cheapest_.emplace(accumulation, Cheapest(pool(accumulation))).first->second;
}

Region BranchAndBound::region(const BranchNode& w) const { return {w.lo, w.hi, w.box}; }

// Whether no plan of the region can be better than the incumbent.
bool BranchAndBound::useless(const BranchNode& w) const {
  if (!best_.feasible) return false;
  if (w.lo.size == w.hi.size) {  // times are integers
    const auto least = static_cast<int128>(std::ceil(std::max(0.0, w.bound)));
    return least * best_.batch.samples() >= static_cast<int128>(best_.step_ps) * w.samples;
  }
  return static_cast<long double>(w.bound) * best_.batch.samples() >=
         static_cast<long double>(best_.step_ps) * w.samples;
}

// The gap between the incumbent and the region's bound, as a fraction of the incumbent's time; 1 without a
// plan.
double BranchAndBound::apart(const BranchNode& w) const {
  if (!best_.feasible) return 1;
  const double best = static_cast<double>(best_.step_ps) / static_cast<double>(best_.batch.samples());
  return 1 - w.bound / static_cast<double>(w.samples) / best;
}

void BranchAndBound::push(BranchNode w) {
  if (w.samples != w.hi.samples()) {  // the parent's
    w.bound *= (1 - 1e-12) * static_cast<double>(w.hi.samples()) / static_cast<double>(w.samples);
    w.samples = w.hi.samples();
  }
  if (watch_.stopped()) {
    w.number = number_++;
    open_.push(std::move(w));
    return;
  }
  double enough = std::min(1e300, enough_ps() * static_cast<double>(w.samples));
  if (best_.feasible)
    enough = std::min(enough, static_cast<double>(best_.step_ps) * static_cast<double>(w.samples) /
                                  static_cast<double>(best_.batch.samples()));
  Cheapest& cheapest = this->cheapest(w.lo.accumulation);
  const int64_t before = cheapest.work();
  const Bounded b = relax(classes_, pool(w.lo.accumulation), request_, region(w), cheapest, w.prices, enough);
  best_.regions++;
  watch_.spent(20000 + cheapest.work() - before);
  if (!b.feasible) return;
  w.bound = std::max(w.bound, b.time - b.error);
  w.rows = rows_.size();
  w.prices = b.prices;
  w.mixture = b.mixture;
  w.number = number_++;
  if (!useless(w)) open_.push(std::move(w));
}

// Branches a region at the mean batch size of what its relaxation mixes. False for one batch.
bool BranchAndBound::cut(const BranchNode& w) {
  if (w.lo.size == w.hi.size) return false;
  BranchNode low = w, high = w;
  low.hi.size = std::clamp(static_cast<int64_t>(w.mixture.size), w.lo.size, w.hi.size - 1);
  high.lo.size = low.hi.size + 1;
  push(std::move(low));
  push(std::move(high));
  return true;
}

// Branches one batch on the way whose number of instances is most fractional in the mixture.
void BranchAndBound::cut_ways(const BranchNode& w) {
  size_t way = 0;
  double most = -1;
  for (size_t x = 0; x < w.box.lo.size(); ++x) {
    const double part = w.mixture.ways[x] - std::floor(w.mixture.ways[x]);
    if (w.box.lo[x] < w.box.hi[x] && std::min(part, 1 - part) > most)
      most = std::min(part, 1 - part), way = x;
  }
  BranchNode low = w, high = w;
  low.box.hi[way] =
      std::clamp(static_cast<int>(std::floor(w.mixture.ways[way] + 1e-9)), w.box.lo[way], w.box.hi[way] - 1);
  high.box.lo[way] = low.box.hi[way] + 1;
  for (BranchNode* part : {&low, &high}) {
    tighten(pool(w.lo.accumulation), part->box);
    push(std::move(*part));
  }
}

// After rows were added: rebuilds the heap from the open and the unsolved regions; boxes of one
// batch become one again.
void BranchAndBound::rebuild_tree() {
  pools_.clear();
  cheapest_.clear();
  std::map<std::array<int64_t, 3>, BranchNode> regions;
  const auto add = [&](const BranchNode& w) {
    const auto [it, fresh] = regions.try_emplace({w.lo.accumulation, w.lo.size, w.hi.size}, w);
    if (!fresh && w.bound < it->second.bound) it->second = w;
  };
  for (; !open_.empty(); open_.pop()) add(open_.top());
  for (const BranchNode& w : given_up_) add(w);
  given_up_.clear();
  for (auto& [key, w] : regions) open_.push(std::move(w));
}

void BranchAndBound::begin() {
  for (const auto& [lo, hi] : request_.ranges()) {
    BranchNode all;
    all.lo = lo, all.hi = hi;
    if (request_.batches.empty()) all.hi.size = std::min(hi.size, classes_.most_batch);
    if (all.lo.size > all.hi.size) continue;
    all.samples = all.hi.samples();
    all.box = everything(pool(lo.accumulation));
    push(std::move(all));
  }
}

// The time of a step of this batch below which a plan is better than the incumbent.
int64_t BranchAndBound::cutoff(const BranchNode& w) const {
  if (!best_.feasible) return kLargestSum;
  const int128 least = static_cast<int128>(best_.step_ps) * w.samples, per = best_.batch.samples();
  return static_cast<int64_t>(std::min<int128>(kLargestSum, (least + per - 1) / per));
}

}  // namespace osdp::search
