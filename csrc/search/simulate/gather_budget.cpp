#include "search/simulate/gather_budget.hpp"

#include <algorithm>

#include "search/simulate/largest_peak.hpp"

namespace osdp::search {
namespace {

constexpr int64_t kParts = 32;  // of the largest unit: how closely the budget is found

int64_t largest_unit(const Step& step) {
  int64_t largest = 0;
  for (const StepUnit& u : step.units) largest = std::max(largest, u.full_bytes);
  return largest;
}

}  // namespace

int64_t fit_gather_bytes(Step& step, int64_t most_bytes) {
  step.gather_bytes = 0;
  const LargestPeak of_step(step);
  if (step.prefetch == 0 || step.units.empty()) return of_step.find();
  if (const int64_t all = of_step.find(most_bytes); all <= most_bytes) return all;
  const auto peak_with = [&](int64_t bytes, int64_t enough) {
    step.gather_bytes = bytes;
    return of_step.find(enough);
  };
  int64_t kept = 1, peak = peak_with(kept, kLargestSum);
  if (peak > most_bytes) return peak;
  const int64_t largest = largest_unit(step);
  for (int64_t step_bytes = (1 + step.prefetch) * largest; step_bytes > largest / kParts;) {
    step_bytes /= 2;
    const int64_t more = peak_with(kept + step_bytes, most_bytes);
    if (more <= most_bytes) kept += step_bytes, peak = more;
  }
  step.gather_bytes = kept;
  return peak;
}

}  // namespace osdp::search
