#include "search/planner/step_proof.hpp"

#include <algorithm>
#include <limits>

#include "search/bounds/pricing.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

constexpr int kMostRounds = 12;
constexpr int64_t kWork = 20'000'000;  // steps of the search for one pair of shares
// How often a range is divided at most, and as long as that does not raise the bound.
constexpr int kMostDivisions = 24, kFewDivisions = 8;
constexpr int64_t kWhole = StepShares::kWhole;
constexpr int64_t kMostSlices = 17;  // gathered together: simulate/runtime_rules.hpp

double share(int64_t of_whole) { return static_cast<double>(of_whole) / static_cast<double>(kWhole); }

}  // namespace

StepProver::StepProver(Searches& searches, const Request& problem, int64_t limit_bytes, double gap)
    : searches_(searches), problem_(problem), limit_bytes_(limit_bytes), gap_(gap) {
  find_sizes();
}

// Sizes of whole units, and of several slices of one operator.
void StepProver::find_sizes() {
  for (const Operator& op : searches_.planner().model().operators) {
    int64_t bytes = 0;
    for (const Tensor& t : op.tensors) bytes += t.compute_bytes();
    if (bytes > 0) sizes_.push_back(bytes);
    if (op.split_tensor < 0) continue;
    for (const int64_t g : problem_.space.granularities) {
      if (g < 2 || (op.out_features % g != 0 && op.in_features % g != 0)) continue;
      const int64_t slice = op.tensors[op.split_tensor].compute_bytes() / g;
      for (int64_t n = 1; n <= std::min(g, kMostSlices) && slice > 0; ++n) sizes_.push_back(n * slice);
    }
  }
  std::sort(sizes_.begin(), sizes_.end());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
}

Request bound_request(Request problem, StepShares shares, int64_t limit_bytes, GatherRange gather) {
  problem.space.shares = shares;
  problem.space.certain_memory = true;
  problem.space.gather = gather;
  problem.buffers = 0, problem.least_transient_bytes = 0;
  problem.limit_bytes = std::max<int64_t>(0, limit_bytes);
  return problem;
}

Schedule StepProver::at(StepShares shares, int64_t limit_bytes, double gap, bool every_latency) const {
  Request r = bound_request(problem_, shares, limit_bytes);
  r.space.every_latency = every_latency;
  return searches_.run(r, gap, kWork);
}

StepProver::Line StepProver::line_of(const Corners& corners, const Found& plan) {
  const auto samples = static_cast<double>(plan.batch.samples());
  const auto value = [&](size_t corner) {
    return static_cast<double>(step_ps(corners[corner], plan.decision, plan.batch)) / samples;
  };
  return {value(0), value(1) - value(0), value(2) - value(0)};
}

std::pair<StepShares, double> StepProver::best_shares(const std::vector<Line>& lines) {
  StepShares best;
  double highest = -1;
  const auto consider = [&](int64_t forward, int64_t backward) {
    if (std::min(forward, backward) < 0 || std::max(forward, backward) > kWhole) return;
    double lowest = std::numeric_limits<double>::infinity();
    for (const Line& line : lines) lowest = std::min(lowest, line.at(share(forward), share(backward)));
    if (lowest > highest) highest = lowest, best = {forward, backward};
  };
  constexpr int64_t kSteps = 16;  // concave: a coarse grid, then finer ones around its best point
  for (int64_t f = 0; f <= kSteps; ++f)
    for (int64_t b = 0; b <= kSteps; ++b) consider(f * kWhole / kSteps, b * kWhole / kSteps);
  for (int64_t step = kWhole / kSteps / 2; step > 0; step /= 2) {
    const StepShares center = best;
    for (int64_t f = -2; f <= 2; ++f)
      for (int64_t b = -2; b <= 2; ++b) consider(center.forward + f * step, center.backward + b * step);
  }
  return {best, highest};
}

StepProver::Range StepProver::bounded(GatherRange gather, StepShares shares, double known_s_per_sample) {
  Range range{gather, known_s_per_sample, shares, true, {}};
  Corners corners;
  std::vector<Line> lines;
  for (int round = 0; round < kMostRounds; ++round) {
    const Schedule found =
        searches_.run(bound_request(problem_, shares, limit_bytes_, gather), gap_ / 20, kWork);
    if (!found.feasible) {
      range.feasible = round > 0 || found.stopped;
      break;
    }
    const double bound = found.lower_bound_s_per_sample;
    if (bound > range.bound_s_per_sample)
      range.bound_s_per_sample = bound, range.shares = shares, range.phases = found.phases;
    if (round == 0) {
      constexpr StepShares kCorners[] = {{0, 0}, {kWhole, 0}, {0, kWhole}};
      for (size_t c = 0; c < corners.size(); ++c)
        corners[c] = find_kinds(searches_.planner().model(),
                                bound_request(problem_, kCorners[c], limit_bytes_, gather));
    }
    plans_.push_back(found_of(found));
    lines.push_back(line_of(corners, plans_.back()));
    const auto [next, highest] = best_shares(lines);
    if (searches_.over() || next == shares || highest * 1e-12 <= range.bound_s_per_sample * (1 + gap_ / 10))
      break;
    shares = next;
  }
  return range;
}

bool StepProver::prove() {
  StepShares shares{kWhole / 2, kWhole / 2};
  if (problem_.device.stolen > 0) shares = {};
  const bool none_ahead = searches_.planner().player().manner().prefetch == 0;
  all_ = bounded(none_ahead ? GatherRange{0, 0} : GatherRange{}, shares, 0);
  if (all_.feasible) ranges_ = {all_}, first_bound_ = all_.bound_s_per_sample;
  return all_.feasible;
}

double StepProver::lower_bound_s_per_sample() const { return ranges_.front().bound_s_per_sample; }
StepShares StepProver::shares() const { return ranges_.front().shares; }
Proof StepProver::proof() const {
  return {lower_bound_s_per_sample(), false, all_.shares, all_.bound_s_per_sample, all_.phases, {}};
}

bool StepProver::sharpen() {
  const auto later = [](const Range& a, const Range& b) {
    return a.bound_s_per_sample > b.bound_s_per_sample;
  };
  const Range lowest = ranges_.front();
  const bool raised = lowest.bound_s_per_sample > first_bound_ * (1 + gap_ / 10);
  if (divisions_ == (raised ? kMostDivisions : kFewDivisions)) return false;
  const auto first = std::upper_bound(sizes_.begin(), sizes_.end(), lowest.gather.least);
  const auto last = std::upper_bound(sizes_.begin(), sizes_.end(), lowest.gather.most);
  if (first == last || searches_.over()) return false;
  const int64_t size = *(first + (last - first) / 2);
  const Range upper = bounded({size, lowest.gather.most}, lowest.shares, lowest.bound_s_per_sample);
  const Range lower = bounded({lowest.gather.least, size - 1}, lowest.shares, lowest.bound_s_per_sample);
  if (!upper.feasible && !lower.feasible) return false;  // nothing fits; only found out now
  ++divisions_;
  std::pop_heap(ranges_.begin(), ranges_.end(), later);
  ranges_.pop_back();
  for (const Range& range : {lower, upper}) {
    if (!range.feasible) continue;
    ranges_.push_back(range);
    std::push_heap(ranges_.begin(), ranges_.end(), later);
  }
  return true;
}

}  // namespace osdp::search
