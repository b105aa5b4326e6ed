// An additive lower bound on the simulated time of a step.
//
// Note [Step bound]
// A micro-batch's forward computes for C seconds, and its lane transfers for L and waits for latencies for A;
// so does its backward (recomputation and the launches of slices are computation). While a transfer runs,
// computation is delayed by s = Device::stolen of its time. Hence each of the two takes
//   at least C + s L   (compute form: beside computation a transfer takes s from it; alone it takes longer)
//   at least L + A     (lane form: a lane does one thing at a time)
//   so at least x (C + s L) + (1 - x) (L + A) for every share 0 <= x <= 1.
// No transfer crosses the end of forward or of backward, so a step takes at least the optimizer's time and
// the sum of these bounds over micro-batches, with one share for forward and one for backward. For given
// shares that is a sum over operators: its minimum over all plans that fit is a lower bound on the simulated
// step of each of them. The best shares are searched for (planner/step_proof.hpp).
//
// What is counted, so that no grouping into units and no timing is faster:
//   gathers     the fewest that a step submits: one in forward, one in backward unless the unit is kept, one
//               for a recomputation that frees it; none in backward for the unit that ends forward, nor for
//               the slice that a recomputation has used last, if backward begins with it.
//   latencies   one for each unit that no grouping avoids: small operators may share that of a large one
//               beside them or, where there is none, of a unit as large as any, and replicated ones that of
//               a bucket.
//   ends        the first unit's gather and the last reduction run alone: in the compute form they count in
//               full, where the model's first operator has parameters. Of a table that is looked up first,
//               all slices are gathered before anything but their look-ups, and reduced after anything but
//               these: all count in full, and the computation of the look-ups is left out.
//   waits       With budgets for gathering of at most Space::gather's end, a unit that is larger than that is
//               gathered while computation waits, which counts in full in the compute form; and so are slices
//               of which two are larger, each after the reduction of the one before it.
//               So are neighbours that exceed it together: Note [Neighbours].
//               While such a slice is computed, the lane has nothing to transfer but what may be beside the
//               first and the last one, which counts in the lane form: what Space::of_sizes compute at least.
//   host        An offloaded operator's rows are copied to the device before each gather, and its gradient to
//               the host after its reduction: waits of the lane, as latencies are. Counted are those of
//               one gather in forward, and of reductions that are not averaged between hosts.
//   stages      In a stage of a pipeline, what is communicated once a step counts a part of it in every
//               micro-batch, which is as much in the sum over them.
//   lanes       Averages between hosts have their own lane: the lane form leaves out all but the last. With
//               separate reductions the lane form is that of the link, without latencies, or on several hosts
//               that of gathers. Transfers on two links steal at the same time: where that may exceed the
//               whole, those of the second link count the rest in the compute form, or none where
//               delays are longer.
//   link        All transfers between hosts share a link, whatever their lanes. So backward also takes at
//               least their sum, without latencies (link form), and
//                 at least x (C + s L) + z (transfers between hosts) + (1 - x - z) (L + A).
//   reductions  None begins before the backward of the last operator, or of its first slice. So backward
//               takes at least that and all reductions, with a share of its own (form of reductions): on one
//               host with latencies, since they are one lane; on several hosts those between hosts, averages
//               among them, without, since they share the link.
//   averages    Averages between hosts are one lane, so backward takes at least all of them, with latencies;
//               none begins before the backward of the last operator and, if that is sharded inside hosts,
//               its reduction, which count, too (form of averages, with a share of its own). Where all else
//               is on one lane, nothing is transferred between hosts beside that reduction, which counts in
//               the forms of the link and of reductions. The average of the model's first operator begins
//               after all else on the main lane, and counts in the lane form.
//   delays      Beside computation a transfer takes longer (Device::delay). One of t s alone and d s beside
//               computation counts at least
//                 min(t, x s t + (1 - x) d):  alone, or while computation goes on.
//               Where averages have their own lane, both may transfer while nothing computes: then of x they
//               count a part each, what it steals at least, and of the rest averages as much as their form
//               has of 1 - x. With separate reductions delays are left out (delays_count).
//               With them, what runs alone has its part of a latency that others share, since they may count
//               as alone, too.
//   last        The last operator, or its last slice, is computed after all gathers of forward, which counts
//               in the lane form.
// Everything is rounded down: each time is less than the exact one by 1e-12 of it and 4 ps per collective,
// more than the simulator's rounding to picoseconds.
//
// Note [Neighbours]
// Two operators a and b that are each a unit of their own follow each other in the order of requests, or only
// small units lie between. If both are sharded whole (h_a = h_b = 1) and do not fit into the budget together,
// then the later of the two in that order is not gathered ahead while the other is in use, nor before: it is
// requested when a small unit between them is used, or at its own use. So, in compute form, of its gather's
// time alone only what is computed between the two, c, can hide:
//   forward, and a recomputation:  b's gather waits for at least e_b - c
//   backward:  b's reduction was submitted before, and one lane does one thing at a time, so both are waited
//              for: at least r_b + e_a - c, also where a alone exceeds the budget (then e_a
//              counts anyway, and r_b - c is added)
// with e = (1 - s) transfer + latency of a gather, r of a reduction, as for gathers that wait (above). These
// intervals are disjoint, since the lane is one; where reductions have another, the second line is left out.
// The product h_a h_b is not additive, but h_a h_b >= h_a + h_b - 1, so for every weight 0 <= w <= 1
//   w (v (h_a + h_b - 1) - c)  with  v = e_b or r_b + e_a
// is additive and no more than what is waited for: max(0, v - c) if both are whole, and 0 or more otherwise.
// All pairs of equal bytes share a weight (PairWeight), which is chosen for each range of budgets
// (planner/step_proof.hpp). In a block whose parameters are held from recomputation to backward, and where
// the earlier one is gathered before the recomputation, the parts that do not apply are left out.
//
// Note [Idle lane]
// While the earlier one of such a pair is in use in forward, the lane has nothing to transfer but the small
// units between the two, since gathers are requested in order. And if the later one ends a recomputed block,
// it is there when the recomputation begins (Note [What triggers a recomputation] in
// simulate/step_program.hpp), for which the earlier one was gathered after everything that had been submitted
// before. So until the later one's backward is over, nothing is transferred but, twice, what lies between.
// In the lane form the pair takes at least
//   forward:   what the earlier one computes, less the gathers between the two
//   backward:  of a pair at the end of a recomputed block, what both recompute and the later one's backward,
//              less two times these gathers; not where reductions have a lane of their own
// for any micro-batch of Space::of_sizes. It is counted with the pair's weight, as v above.
//
// Note [Turns]
// On streams a sharded unit's reduction is submitted only when the one submitted before it is over (buckets
// of replicated gradients aside). So from a reduction of b to that of a, the operator before b of such a
// pair, backward takes at least as long as the reduction of b: of its time alone only what is computed in
// between, c (with the backward of a itself), can hide, and in compute form the pair waits for at least
//   v = r_b - c   with  r = (1 - s) transfer + latency
// if both are sharded, whole or in slices; a in slices submits the first one even earlier, and of b in slices
// the last one's reduction counts. As above, v (h_a + h_b - 1) is additive, with a weight for each pair of
// sizes. It is counted where the two fit into the budget together, else they are neighbours, who wait at the
// same time; c is that of the largest micro-batch of Space::of_sizes. Between two slices of one operator it
// is the same, whatever the lanes, without a product. No certificate has this (Space::divided): only parts of
// the space do.
#pragma once

#include <functional>

#include "search/problem/cost.hpp"
#include "search/problem/equivalence_classes.hpp"

namespace osdp::search {

// What options of one operator, with a mode and slices, add to the bound of a micro-batch, in ps >= 0. All of
// them are more by the operator's shift: the most that any of them lets another unit save. All arguments must
// outlive the function.
std::function<int64_t(const Candidate&)> option_bound_ps(const Operator& op, const Device& device,
                                                         const Space& space, Recompute recompute);

// Of a pair of operators, how many are gathered whole for every use, and how many are reduced whole (of the
// earlier one only if nothing is recomputed before that).
struct PairTaken {
  int64_t gathered = 0, reduced = 0;
  bool operator==(const PairTaken&) const = default;
};
// What the pair of `later` and the operator before it adds to a micro-batch of `batch` at the whole weight,
// in ps. An estimate for choosing weights.
double pair_bound_ps(const Operator& later, const Request& request, Recompute recompute,
                     const PairTaken& taken, int64_t batch);

// Whether the bound counts that transfers take longer beside computation.
inline bool delays_count(const Device& device, const Space& space) { return !space.separate_reductions; }

// The computation of a micro-batch in the bound, less the shifts of all operators.
Linear step_bound_compute(const Model& model, const Request& request);

}  // namespace osdp::search
