#include "search/planner/step_proof.hpp"

#include <algorithm>
#include <limits>

#include "search/bounds/pricing.hpp"

namespace osdp::search {
namespace {

constexpr int kMostRounds = 12;
constexpr int64_t kWork = 20'000'000;  // steps of the search for one pair of shares
constexpr int64_t kWhole = StepShares::kWhole;

double share(int64_t of_whole) { return static_cast<double>(of_whole) / static_cast<double>(kWhole); }

}  // namespace

StepProver::StepProver(Searches& searches, const Request& problem, int64_t limit_bytes)
    : searches_(searches), problem_(problem), limit_bytes_(limit_bytes) {
  const std::array<StepShares, 3> corners{{{0, 0}, {kWhole, 0}, {0, kWhole}}};
  for (size_t c = 0; c < corners.size(); ++c)
    corners_[c] = find_kinds(searches.planner().model(), request(corners[c], limit_bytes));
}

Request StepProver::request(StepShares shares, int64_t limit_bytes) const {
  Request r = problem_;
  r.space.shares = shares;
  r.space.certain_memory = true;
  r.buffers = 0, r.least_transient_bytes = 0;
  r.limit_bytes = std::max<int64_t>(0, limit_bytes);
  return r;
}

Schedule StepProver::at(StepShares shares, int64_t limit_bytes, double gap, bool every_latency) const {
  Request r = request(shares, limit_bytes);
  r.space.every_latency = every_latency;
  return searches_.run(r, gap, kWork);
}

StepProver::Line StepProver::line_of(const Found& plan) const {
  const auto samples = static_cast<double>(plan.batch.samples());
  const auto value = [&](size_t corner) {
    return static_cast<double>(step_ps(corners_[corner], plan.decision, plan.batch)) / samples;
  };
  return {value(0), value(1) - value(0), value(2) - value(0)};
}

std::pair<StepShares, double> StepProver::best_shares() const {
  StepShares best;
  double highest = -1;
  const auto consider = [&](int64_t forward, int64_t backward) {
    if (std::min(forward, backward) < 0 || std::max(forward, backward) > kWhole) return;
    double lowest = std::numeric_limits<double>::infinity();
    for (const Line& line : lines_) lowest = std::min(lowest, line.at(share(forward), share(backward)));
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

StepProof StepProver::prove(double gap) {
  StepProof proof;
  StepShares shares{kWhole / 2, kWhole / 2};
  if (problem_.device.stolen > 0) shares = {};
  for (int round = 0; round < kMostRounds; ++round) {
    const Schedule found = at(shares, limit_bytes_, gap / 20);
    if (!found.feasible) break;
    proof.feasible = true;
    const double bound = found.lower_bound_s_per_sample;
    if (round == 0 || bound > proof.lower_bound_s_per_sample) {
      proof.lower_bound_s_per_sample = bound, proof.shares = shares;
    }
    std::vector<Found> plans{found_of(found)};
    plans.insert(plans.end(), found.runners_up.begin(), found.runners_up.end());
    for (Found& plan : plans) lines_.push_back(line_of(plan)), proof.plans.push_back(std::move(plan));
    const auto [next, highest] = best_shares();
    if (searches_.over() || next == shares ||
        highest * 1e-12 <= proof.lower_bound_s_per_sample * (1 + gap / 10))
      break;
    shares = next;
  }
  return proof;
}

}  // namespace osdp::search
