// The model as a chain of segments, each an operator or a block, in execution order.
// See Note [Chain resources].
#pragma once

#include "search/problem/dominance.hpp"
#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"
#include "search/problem/ways.hpp"

namespace osdp::search {

// Note [Chain resources]
// The rest of the model interacts with a stretch of consecutive segments through four numbers only: its time;
// the memory it holds before its backward, in the phases of later operators (`before`); the memory it holds
// after its backward, in the phases of earlier operators (`after`); and its own largest phase (`peak`). A
// stretch x followed by y has
//   before = x.before + y.before,  after = x.after + y.after,  peak = max(x.peak + y.after, x.before +
//   y.peak)
// and these are exactly the phases of Note [Phases]. So, however many phases there are, a partial plan of the
// first segments needs only two amounts of memory: `peak`, to which later segments add their `after`, and
// `before`, which is added to their `peak`. A partial plan is dominated by one that is no worse in time,
// before and peak.
struct Stretch {
  int64_t time = 0, before = 0, after = 0, peak = 0;
  bool no_worse(const Stretch& o) const {
    return time <= o.time && before <= o.before && after <= o.after && peak <= o.peak;
  }
};
inline constexpr Stretch kNoStretch{0, 0, 0, -kLargestSum};  // of no segments
// x followed by y.
inline Stretch join(const Stretch& x, const Stretch& y) {
  return {x.time + y.time, x.before + y.before, x.after + y.after,
          std::max(x.peak + y.after, x.before + y.peak)};
}

// The least of each amount.
template <class T>
Stretch least_of(const std::vector<T>& list) {
  Stretch least{kLargestSum, kLargestSum, kLargestSum, kLargestSum};
  for (const T& x : list)
    least = {std::min(least.time, x.time), std::min(least.before, x.before), std::min(least.after, x.after),
             std::min(least.peak, x.peak)};
  return least;
}

// Drops what another one dominates, as far as a comparison with the last `look` that are kept shows. Sorted
// by time, and of equal times by the sum of the amounts, a later one never dominates an earlier one.
template <class T>
void drop_dominated_stretches(std::vector<T>& list, size_t look) {
  std::sort(list.begin(), list.end(), [](const T& a, const T& b) {
    return a.time != b.time ? a.time < b.time : a.before + a.after + a.peak < b.before + b.after + b.peak;
  });
  drop_dominated(list, [](const T& a, const T& b) { return a.no_worse(b); }, look);
}

// A plan's decision for one segment.
struct Chosen {
  Recompute way = Recompute::None;
  const int* choices = nullptr;  // by slot: index into its candidates, -1 without parameters
};

// For one batch size.
class ChainResources {
 public:
  // `memory_alone`: all times are 0.
  ChainResources(const Model& model, const Request& request, const EquivalenceClasses& classes, Batch batch,
                 bool memory_alone = false);

  // False if a block's operators are not consecutive, which a chain cannot represent, or if some operator has
  // no option.
  bool possible() const { return possible_; }

  struct Segment {
    size_t cls = 0, instance = 0;
    size_t first = 0, end = 0;  // range of operators
  };

  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<Way>& ways(size_t cls) const { return ways_[cls]; }
  int64_t saved(size_t cls, size_t slot) const { return saved_[cls][slot]; }
  int64_t work(size_t cls, size_t slot) const { return work_[cls][slot]; }
  size_t classes() const { return ways_.size(); }
  size_t operators() const { return operators_; }
  int64_t fixed_ps() const { return fixed_ps_; }
  int64_t limit() const { return limit_; }        // net of `reserved`; may be negative
  int64_t reserved() const { return reserved_; }  // held in every phase

  Decision decide(const std::vector<Chosen>& chosen) const;  // by segment

 private:
  const EquivalenceClasses& classes_;
  const size_t operators_, blocks_;
  bool possible_ = true;
  int64_t fixed_ps_ = 0, limit_ = 0, reserved_ = 0;
  std::vector<Segment> segments_;
  std::vector<std::vector<Way>> ways_;              // by class
  std::vector<std::vector<int64_t>> saved_, work_;  // by class and slot, bytes
};

}  // namespace osdp::search
