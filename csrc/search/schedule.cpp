#include "search/schedule.hpp"

#include "search/least.hpp"
#include "search/scheduler.hpp"
#include "search/smallest_limit.hpp"

namespace osdp::search {

Schedule schedule(const Model& model, const Request& request, const Budget& budget,
                  const ScheduleTuning& tuning) {
  if (model.operators.empty()) throw InvalidProblem("the model has no operators");
  if (request.device.ranks < 1 || request.device.ranks > (int64_t{1} << 24)) {
    throw InvalidProblem("world size " + std::to_string(request.device.ranks) + ": it must be at least 1");
  }
  if (request.device.hosts < 1 || request.device.ranks % request.device.hosts != 0) {
    throw InvalidProblem("hosts: " + std::to_string(request.device.hosts) +
                         " does not divide the world size");
  }
  if (request.limit_bytes < 0 || request.limit_bytes > kLargestSum) {
    throw InvalidProblem("the memory limit is not a size");
  }
  if (request.recompute.empty()) throw InvalidProblem("no way to treat blocks is allowed");
  if (request.space.modes.empty()) throw InvalidProblem("no mode is allowed");
  for (const Batch& b : request.batches) {
    if (b.size < 1 || b.accumulation < 1) throw InvalidProblem("a batch must have at least one sample");
  }
  for (const Operator& op : model.operators) {
    if (op.block >= static_cast<int>(model.blocks.size())) {
      throw InvalidProblem("operator '" + op.name + "': no such block");
    }
  }
  Stopwatch watch(budget);
  const Kinds kinds = find_kinds(model, request);
  const LeastMemory least = least_memory(model, request, kinds, request.limit_bytes, watch);
  Schedule s;
  if (request.depth_first || least.bound_bytes <= request.limit_bytes) {
    Scheduler scheduler(model, request, budget, kinds, watch, false, tuning);
    if (!request.depth_first && least.peak_bytes <= request.limit_bytes) {
      scheduler.offer(least.decision, least.batch);
    }
    s = scheduler.run();
  }
  // A search that was stopped does not know that nothing fits.
  if (!s.feasible && request.find_smallest && (!watch.stopped() || least.bound_bytes > request.limit_bytes)) {
    s.smallest_limit_bytes = smallest_limit(model, request, kinds, least, budget, watch);
  }
  s.seconds = watch.seconds();
  return s;
}

}  // namespace osdp::search
