// Note [Phases]
// Peak memory is a maximum over the phases of a step. Phase j is the backward of operator j. Of an operator i
// then there is
//   i > j  its backward has been: parameters, optimizer state, gradient;
//   i < j  its backward is to come: parameters, optimizer state, what it keeps gathered (SHARD_GRAD_OP) and,
//          unless its block is recomputed, its activations; with several micro-batches also the gradient;
//   i = j  the same, the gradient that its backward makes, and its work (Note [Work]);
//   in the recomputed block of j, up to j: also activations, and with Recompute::Hold the gathered
//   parameters; of each recomputed block whose backward is not over: its input.
// Beside these, in every phase: the model's input and buffers, small gradients on their way, the transients'
// reserve (Note [Reserve]). The end of forward has no more than the phase of the last operator, the
// optimizer's step no more than that of the first.
//
// Note [Work]
// Beside what operators have saved, backward has gradients of activations, and what kernels make and drop. So
// an operator has `work`: the most by which a step of the bare model exceeds, while its backward (or its
// forward) runs, what the operators up to it have saved. Gradients of parameters are not in it.
//
// A phase's memory is a sum over operators, so a few phases make a few linear constraints (rows). A plan that
// is best under some of the rows and keeps all of them is best under all: rows are added as plans break them.
#pragma once

#include "search/problem/symmetry_classes.hpp"

namespace osdp::search {

// The sum over the whole step, in place of a phase: the paper's model.
inline constexpr int kWholeStep = -1;

// Where an operator or block stands in a phase: one of these, or, >= 0: backward is inside it, see `inside`.
enum Relation : int { kOver = -1, kToCome = -2, kSum = -3 };
// The phase is of this slot; or (`exactly` false) of a foreign operator between this slot and the next one.
inline int inside(int slot, bool exactly) { return 2 * slot + !exactly; }
inline int slot_of(int relation) { return relation / 2; }

// Equal instances of a kind that stand alike in every row.
struct SymmetryClass {
  int kind = 0;
  std::vector<int> instances;  // rising
  std::vector<int> relation;   // one per row
};

// Splits kinds into groups; rows are operator indices, or kWholeStep.
std::vector<SymmetryClass> make_symmetry_classes(const Kinds& kinds, const std::vector<int>& rows);

// What one choice of a slot holds in a row, but for activations.
inline int64_t held_in(int relation, int slot, Recompute way, const Candidate& c, bool accumulates) {
  if (relation == kSum || relation == kOver) return c.state_bytes;
  if (relation >= 0 && slot > slot_of(relation)) return c.state_bytes;
  int64_t bytes = c.state_bytes - c.gradient_bytes + c.gathered_bytes;
  if (accumulates) bytes += c.gradient_bytes;
  if (relation == inside(slot, true)) bytes += c.own_bytes;
  if (relation >= 0 && way == Recompute::Hold) bytes += c.held_bytes;
  return bytes;
}

// What a whole instance keeps in a row whatever its operators choose: activations and block inputs.
Linear kept_in(int relation, const Kind& kind, Recompute way);

// A complete plan, by operator: index into the slot's candidates (-1: no parameters), and per block its way.
struct Decision {
  std::vector<int> choices;
  std::vector<Recompute> ways;  // per Model::blocks
};

// The largest transient among a plan's choices.
int64_t largest_transient(const Kinds& kinds, const Decision& decision);

// The memory of every phase (kWholeStep alone for the paper's model) but for the transients' reserve.
std::vector<int64_t> phase_bytes(const Model& model, const Request& request, const Kinds& kinds,
                                 const Decision& decision, Batch batch);

}  // namespace osdp::search
