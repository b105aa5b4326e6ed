#include "search/planner/whole_limit.hpp"

#include <algorithm>

namespace osdp::search {
namespace {

constexpr int64_t kFirstRaise = 16;  // first raise for a plan that fills the limit: limit / this
constexpr int64_t kMargin = 100;     // the margin is limit / this
constexpr int64_t kLeastRoom = 50;   // further searches need at least room of limit / this

// The largest peak allowed to a plan whose sum exceeds the limit.
int64_t inside(int64_t limit) { return limit - limit / kMargin; }

}  // namespace

int64_t WholeLimit::spare(int64_t sum_bytes, int64_t largest_peak_bytes) const {
  if (of_sum_) return limit_bytes_ - sum_bytes;
  return (sum_bytes <= limit_bytes_ ? limit_bytes_ : inside(limit_bytes_)) - largest_peak_bytes;
}

int64_t WholeLimit::smallest(int64_t sum_bytes, int64_t largest_peak_bytes) {
  int64_t limit = largest_peak_bytes + largest_peak_bytes / (kMargin - 1);
  while (inside(limit) < largest_peak_bytes) ++limit;
  return std::min(std::max(sum_bytes, largest_peak_bytes), limit);
}

bool SumLimits::next(int64_t spare_bytes) {
  const int64_t limit = limit_.limit_bytes(), least = limit / kLeastRoom;
  if (limit_.of_sum() || left_-- <= 0) return false;
  if (spare_bytes < 0) {
    if (now_bytes_ == kept_bytes_) return false;  // not even the first plan keeps the limit
    too_large_ = now_bytes_;
  } else {
    const bool first = now_bytes_ == kept_bytes_;
    kept_bytes_ = now_bytes_;
    spare_bytes_ = spare_bytes < least && first ? limit / kFirstRaise : spare_bytes;
  }
  if (spare_bytes_ < least) return false;
  now_bytes_ = kept_bytes_ + std::min(spare_bytes_, kLargestSum - kept_bytes_);
  if (now_bytes_ >= too_large_) now_bytes_ = kept_bytes_ + (too_large_ - kept_bytes_) / 2;
  return now_bytes_ - kept_bytes_ >= std::max<int64_t>(1, least / 2);
}

}  // namespace osdp::search
