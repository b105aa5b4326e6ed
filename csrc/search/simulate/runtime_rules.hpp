// The runtime's rules for prefetching units and for submitting reductions, as in csrc/runtime/step, Notes
// [How far ahead] and [Gradients that leave]. Used by everything that simulates a step's program.
#pragma once

#include <algorithm>

#include "search/problem/problem.hpp"
#include "search/simulate/step_program.hpp"

namespace osdp::search {

// Note [Means that are cast]
// A reduction writes this rank's part of the mean in the dtype of the reduction, frees the gradients, and
// casts the mean to the dtype in which it is kept (csrc/runtime/step/transfer_plan.cpp, keep_means). So the
// result is never beside the gradients. On streams all of it is counted at once.

// Note [Means that wait for other hosts]
// Where the mean is averaged between hosts too, on a lane of its own, the rows become the gradient after
// that. Rows that do not (they are added to a sum, cast, or sent to the host) wait in memory of their own; of
// at most two units at a time, for which a reduction that needs such memory waits (Note [Two lanes] in
// runtime/step/hybrid_reducer.hpp). What is made of them is counted from the reduction's end on. Of modes
// that shard over all hosts the means over one host always wait so.
inline constexpr size_t kMostWaiting = 2;

// The memory of a unit's reduction: from its begin on, for a moment while it runs, and at its end; and of
// what it holds then, what is freed when the average between hosts is over.
struct ReductionMemory {
  int64_t begins = 0, copied = 0, ends = 0, waits = 0;
};

// `adds`: to the gradient of earlier micro-batches, or to that of another call of a slice. A slice's mean is
// added to the split weight's gradient, or goes to the host.
inline ReductionMemory memory_of(const StepUnit& unit, bool adds, bool enqueue) {
  const bool on_host = unit.host_gradient_bytes > 0;
  adds |= unit.slice && on_host && unit.calls.size() > 1;
  const bool added = adds || (unit.slice && !on_host);  // the means are freed
  const int64_t kept = added ? 0 : unit.kept_gradient_bytes - unit.host_gradient_bytes;
  const int64_t cast = added ? 0 : unit.cast_bytes, brought = adds ? unit.host_gradient_bytes : 0;
  const int64_t means = unit.kept_gradient_bytes - unit.cast_bytes + unit.mean_bytes;
  const int64_t made = std::max(cast, brought);
  const int64_t copied = std::max(unit.copied_bytes, made - unit.gradient_bytes);
  if (unit.average.alone_ps > 0) {
    const int64_t begins = means + unit.of_host_bytes;
    return {begins, copied, made - unit.gradient_bytes, begins + made - kept};
  }
  if (enqueue) {
    // Of an offloaded unit the mean is there beside what is made of it and sent to the host.
    const int64_t mean = unit.host_gradient_bytes > 0 ? std::max(unit.mean_bytes, brought) : 0;
    const int64_t begins = unit.kept_gradient_bytes + mean;
    return {begins, std::max(unit.copied_bytes, unit.mean_bytes), kept - begins - unit.gradient_bytes, 0};
  }
  return {means, copied, kept - means - unit.gradient_bytes, 0};
}

// The memory of a bucket's all-reduce: from its begin on, for a moment at its begin, and until its end.
struct BucketMemory {
  int64_t begins = 0, copied = 0, ends = 0;
};

// Under mixed precision the gradients are freed once they are packed, and the means get memory before the
// buffer is freed; they are counted from the begin on, which makes no difference to the largest peak.
inline BucketMemory memory_of(const StepBucket& bucket, bool adds) {
  const int64_t means = adds ? 0 : bucket.mean_bytes;
  const int64_t packed = bucket.cast_bytes + (adds ? bucket.further_bytes : 0);
  return {bucket.buffer_bytes + means - packed, std::max<int64_t>(0, packed - means), -bucket.buffer_bytes};
}

// The bytes of units that are gathered or being gathered, but for those that stay gathered.
class GatheredBytes {
 public:
  void gather(const StepUnit& unit) { bytes_ += unit.keeps ? 0 : unit.full_bytes; }
  void release(const StepUnit& unit) { bytes_ -= unit.keeps ? 0 : unit.full_bytes; }
  int128 bytes() const { return bytes_; }

 private:
  int128 bytes_ = 0;
};

class RuntimeRules {
 public:
  // Both must outlive it.
  RuntimeRules(const Step& step, const Program& program) : step_(step), program_(program) {
    int64_t largest = 0;
    for (const StepUnit& u : step.units) {
      largest = std::max(largest, u.full_bytes);
      all_kept_ &= u.keeps;
    }
    budget_ = (1 + static_cast<int128>(step.prefetch)) * largest;
    if (step.gather_bytes > 0) budget_ = std::min<int128>(budget_, step.gather_bytes);
  }

  // Calls `gather(unit)` for each unit to prefetch at `use`, in order: the unit in use and the next ones
  // share the budget of Step::gather_bytes. A forward that keeps all units (SHARD_GRAD_OP) needs no such
  // limit.
  template <typename Gather>
  void gather_ahead(const Instruction& use, const Gather& gather) const {
    const bool kept = all_kept_ && use.phase == StepPhase::Forward;
    int128 sum = step_.units[use.what].full_bytes;
    for (int64_t ahead = 1; ahead <= (step_.prefetch > 0 ? std::max(step_.prefetch, kMostAhead) : 0);
         ++ahead) {
      const int next = program_.order[use.position + static_cast<size_t>(ahead)];
      if (next < 0) break;
      sum += step_.units[next].full_bytes;
      if (!kept && sum > budget_) break;
      gather(next);
    }
  }

  // Whether the reduction of `unit` may be submitted while reductions of `leaving_bytes` are in flight, and
  // units of `gathered_bytes` are gathered or being gathered: see GatheredBytes.
  bool may_leave(int unit, int64_t leaving_bytes, int128 gathered_bytes) const {
    if (step_.lanes.enqueue || leaving_bytes == 0) return true;
    return leaving_bytes + step_.units[unit].full_bytes + gathered_bytes <= budget_;
  }

 private:
  static constexpr int64_t kMostAhead = 16;  // in units; a larger `prefetch` takes precedence

  const Step& step_;
  const Program& program_;
  int128 budget_ = 0;  // bytes for gathered units and gradients being reduced
  bool all_kept_ = true;
};

}  // namespace osdp::search
