// The model as a chain of segments, each an operator or a block, in execution order. See Note [Chain
// resources].
#pragma once

#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {

// Note [Chain resources]
// Of a stretch of the model four numbers matter to what stands around it: its time; what it holds before its
// backward, while the backward of what comes after it runs (`before`); what it holds after its backward, in
// the phases of what comes before it (`after`); and its own largest phase (`peak`). A stretch x followed by y
// has
//   before = x.before + y.before,  after = x.after + y.after,  peak = max(x.peak + y.after, x.before +
//   y.peak)
// and these are exactly the phases of Note [Phases]. So however many phases there are, of the first so many
// segments a plan has two amounts of memory: `peak`, to which all that follows adds its `after`, and
// `before`, to which it adds its `peak`. Partial plans that are no better in time, before and peak are
// dropped.
struct Stretch {
  int64_t time = 0, before = 0, after = 0, peak = 0;
};

// What a plan does with one segment.
struct Chosen {
  Recompute way = Recompute::None;
  const int* choices = nullptr;  // by slot, index into its candidates, -1 without parameters
};

// How an operator may be sharded under one way, within one batch size and largest transient.
struct SlotOption {
  int candidate = 0;
  int64_t time = 0, before = 0, after = 0, own = 0, held = 0;  // bytes; own: beside `before`, in its phase
};

// Bytes: no option is larger than `largest`; room is reserved for one of `reserved`.
struct Transient {
  Transient(int64_t both) : largest(both), reserved(both) {}
  Transient(int64_t most, int64_t least) : largest(most), reserved(least) {}
  int64_t largest, reserved;
};

// One batch size and one largest transient; or several, with room reserved for the least of them only.
class ChainResources {
 public:
  // `memory_alone`: everything takes no time.
  ChainResources(const Model& model, const Request& request, const Kinds& kinds, Batch batch,
                 Transient transient, bool memory_alone = false);

  // False where a block's operators do not follow each other, which this cannot describe, or where some
  // operator has no option.
  bool possible() const { return possible_; }

  struct Way {
    Recompute way = Recompute::None;
    int64_t time = 0, input = 0;  // of computing again; bytes kept of a recomputed block
    std::vector<std::vector<SlotOption>> slots;
  };
  struct Segment {
    size_t kind = 0, instance = 0;
    size_t first = 0, end = 0;  // operators
  };

  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<Way>& ways(size_t kind) const { return ways_[kind]; }
  int64_t saved(size_t kind, size_t slot) const { return saved_[kind][slot]; }
  int64_t work(size_t kind, size_t slot) const { return work_[kind][slot]; }
  size_t kinds() const { return ways_.size(); }
  size_t operators() const { return operators_; }
  int64_t fixed_ps() const { return fixed_ps_; }
  int64_t limit() const { return limit_; }        // without what is reserved; may be below 0
  int64_t reserved() const { return reserved_; }  // held in every phase, and for transients

  Decision decide(const std::vector<Chosen>& chosen) const;  // by segment

 private:
  const Kinds& kinds_;
  const size_t operators_, blocks_;
  bool possible_ = true;
  int64_t fixed_ps_ = 0, limit_ = 0, reserved_ = 0;
  std::vector<Segment> segments_;
  std::vector<std::vector<Way>> ways_;              // by kind
  std::vector<std::vector<int64_t>> saved_, work_;  // by kind and slot, bytes
};

}  // namespace osdp::search
