#include "search/planner/searches.hpp"

#include <algorithm>
#include <limits>

namespace osdp::search {
namespace {

constexpr int64_t kStateBytes = int64_t{256} << 20;  // for each knapsack that a search solves
constexpr double kLeastShare = 0.01;  // fraction of the time that is always granted, for a first plan

bool counts_work(const Request& request, const Wish& wish) {
  return !request.depth_first && wish.time_limit_s <= 0 && wish.objective == Objective::Throughput;
}

double limit_s(const Request& request, const Wish& wish) {
  if (wish.time_limit_s > 0) return wish.time_limit_s;
  return request.depth_first || counts_work(request, wish) ? 0 : kDefaultTimeLimitS;
}

}  // namespace

Searches::Searches(const Planner& planner, const Wish& wish, const Interrupted& interrupted)
    : planner_(planner),
      wish_(wish),
      ask_(interrupted),
      limit_s_(osdp::search::limit_s(planner.request(), wish)) {}

double Searches::left_s() const {
  if (limit_s_ <= 0) return std::numeric_limits<double>::infinity();
  return limit_s_ - std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

Request Searches::request(int64_t limit_bytes, const std::vector<Batch>& batches) const {
  Request request = planner_.request();
  request.limit_bytes = limit_bytes;
  request.batches = batches;
  request.find_smallest = false;
  return request;
}

Schedule Searches::run(const Request& request, double gap, int64_t work) {
  Budget budget;
  if (limit_s_ > 0) budget.time_limit_s = std::max(left_s(), kLeastShare * limit_s_);
  budget.interrupted = [this] { return interrupted_ = interrupted_ || (ask_ && ask_()); };
  budget.gap = gap;
  budget.state_bytes = kStateBytes;
  budget.tell_gap = wish_.tell_gap;
  if (work == 0 && counts_work(request, wish_)) work = wish_.work;
  if (work > 0) budget.work = &work;
  return schedule(planner_.model(), request, budget);
}

}  // namespace osdp::search
