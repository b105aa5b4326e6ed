// Note [Phases]
// Peak memory is a maximum over the phases of a step. Phase j is the backward of operator j. The memory
// of operator i in it depends on i:
//   i > j  Its backward is over: parameters, optimizer state, gradient; and right after it what it has sent
//          (Note [Gradients that are left]).
//   i < j  Its backward is still to come: parameters, optimizer state, parameters kept gathered
//          (SHARD_GRAD_OP) and, unless its block is recomputed, its activations; with several micro-batches
//          also the gradient.
//   i = j  The same, the gradient that its backward produces, and its work (Note [Work]). Of an operator in
//          slices: the gradients of two of them, where the first is still being reduced whatever the timing;
//          with several micro-batches what they are added to is there already (Candidate::summed_bytes).
//   i <= j in the recomputed block of j: also its activations, with Recompute::Hold also the gathered
//          parameters.
// Each recomputed block whose backward is not over also holds its input.
// Every phase also holds the model's input and buffers. What is gathered ahead, and gradients that are being
// reduced, depend on timing: they count in a plan's largest peak (simulate/largest_peak.hpp) alone, which is
// never below its largest phase. The end of forward holds no more than the phase of the last
// operator, and the optimizer's step no more than that of the first.
//
// Note [Work]
// Besides saved activations, backward holds gradients of activations and temporaries of kernels. An
// operator's `work` is the most memory that a step of the bare model uses during the operator's backward (or
// forward) beyond the activations saved by it and the operators before it. Gradients of parameters are not
// included. Its `forward_work` is that of its forward alone (values that later operators read, its result,
// temporaries), its `backward_work` that of its backward alone. They matter where a plan adds to the forward
// (simulate/step_of_plan.cpp, the sum of slices); otherwise its backward holds no less.
//
// Note [Gradients that wait]
// Of a weight that is read several times autograd keeps the gradient of the last reader until that of the
// first one is there, and adds them. The work of the operators in between includes it, that of its own
// operator both. In slices each reader's gradient leaves at once, so there is none: that memory is taken off
// its candidates (less_in_slices in problem/model.hpp). It is too much in phases of operators after the last
// reader, where none waits, and where another such weight is whole: a plan's own peak takes off none then
// (simulate/step_of_plan.cpp).
//
// Note [Gradients that are left]
// On streams what a reduction has sent is freed when computation next waits for reductions, which it does
// before it submits another one. Until the backward of the operator before it that has parameters (inclusive)
// nothing is submitted, whatever is chosen: so in these phases (StepPosition::left_phases) a sharded
// operator's gradient is still there, also if it shares its unit with an earlier one, which is reduced later;
// of one in slices it is the last slice's. An operator in slices makes the first slice's gradient beside
// that, then waits, and has two slices of its own later (Candidate::late_bytes): its phase is the larger of
// the two, but a row counts the former. Only inside blocks that are decided as a whole, and where no slices
// of tied parameters are reduced.
//
// A phase's memory is a sum over operators, so each phase is a linear constraint (row). A plan that is
// optimal for a subset of the rows and satisfies all of them is optimal for all, so rows are generated
// lazily, when a plan violates them.
#pragma once

#include "search/problem/equivalence_classes.hpp"

namespace osdp::search {

// The sum over the whole step, in place of a phase: the paper's model.
inline constexpr int kWholeStep = -1;

// The position of an operator or block relative to a phase: one of these, or a value >= 0 if the phase is
// inside it, see `inside`.
enum Relation : int { kOver = -1, kToCome = -2, kSum = -3 };
// The phase is that of this slot or, if `exactly` is false, that of an operator outside the block which runs
// between this slot and the next.
inline int inside(int slot, bool exactly) { return 2 * slot + !exactly; }
inline int slot_of(int relation) { return relation / 2; }

// Instances of a class with the same relation to every row, so that they have equal coefficients in all of
// them.
struct SymmetryClass {
  int cls = 0;
  std::vector<int> instances;  // ascending
  std::vector<int> relation;   // one per row
};

// Splits classes into symmetry classes; rows are operator indices, or kWholeStep.
std::vector<SymmetryClass> make_symmetry_classes(const EquivalenceClasses& classes,
                                                 const std::vector<int>& rows);

// What an operator's own phase holds of it alone.
inline int64_t own_in(const Candidate& c, bool accumulates) {
  return c.own_bytes - (accumulates ? c.summed_bytes : 0);
}
// Together with what another operator has left.
inline int64_t first_own_in(const Candidate& c, bool accumulates) {
  return own_in(c, accumulates) - c.late_bytes;
}

// The memory of one choice of a slot in a row, without activations.
inline int64_t held_in(int relation, int slot, Recompute way, const Candidate& c, bool accumulates) {
  if (relation == kSum || relation == kOver) return c.state_bytes;
  if (relation >= 0 && slot > slot_of(relation)) {
    const bool left =
        relation == inside(slot_of(relation), true) && slot - slot_of(relation) <= c.left_phases;
    return c.state_bytes + (left ? c.left_bytes : 0);
  }
  int64_t bytes = c.state_bytes - c.gradient_bytes + c.gathered_bytes;
  if (accumulates) bytes += c.gradient_bytes;
  if (relation == inside(slot, true)) bytes += first_own_in(c, accumulates);
  if (relation >= 0 && way == Recompute::Hold) bytes += c.held_bytes;
  return bytes;
}

// The memory of a whole instance in a row that is independent of its operators' choices: activations and
// block inputs.
Linear kept_in(int relation, const EquivalenceClass& cls, Recompute way);

// A complete plan: for each operator an index into its slot's candidates (-1: no parameters), for each block
// its recomputation.
struct Decision {
  std::vector<int> choices;
  std::vector<Recompute> ways;  // one per entry of Model::blocks
  bool operator==(const Decision&) const = default;
};

// Calls `take` with each operator that has parameters, and the candidate that is chosen for it.
template <class Take>
void for_each_choice(const EquivalenceClasses& classes, const Decision& decision, const Take& take) {
  for (const EquivalenceClass& cls : classes.classes) {
    for (size_t m = 0; m < cls.instances.size(); ++m) {
      const Recompute way = cls.block ? decision.ways[cls.blocks[m]] : Recompute::None;
      for (size_t p = 0; p < cls.slots.size(); ++p) {
        const int i = cls.instances[m][p], choice = decision.choices[i];
        if (choice >= 0) take(i, cls.slots[p].candidates[static_cast<int>(way)][choice]);
      }
    }
  }
}

// The largest transient among a plan's choices.
int64_t largest_transient(const EquivalenceClasses& classes, const Decision& decision);

// The memory of every phase (for the paper's model of kWholeStep only).
std::vector<int64_t> phase_bytes(const Model& model, const Request& request,
                                 const EquivalenceClasses& classes, const Decision& decision, Batch batch);

}  // namespace osdp::search
