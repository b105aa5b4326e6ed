// One training step of one rank, as plain values: its operators, the units that are gathered and reduced,
// their durations when nothing else runs, and their memory. See simulate/step_program.hpp for the order in
// which csrc/runtime executes them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace osdp::search {

// The link that a collective uses.
enum class Link : int { InsideHost, BetweenHosts };

// A collective's duration on its lane: without computation, and while this rank computes all the time. In the
// latter case each message waits for a core on a CPU.
struct LaneTime {
  int64_t alone_ps = 0, beside_ps = 0;  // beside_ps >= alone_ps
  int64_t transfer_ps = 0;              // part of alone_ps in which a link is busy; the rest is latency
  Link link = Link::InsideHost;
  int64_t inside_ps = 0;  // part of transfer_ps on links inside the host, if `link` is that between hosts
};

// One operator's part of a micro-batch.
struct StepOperator {
  std::string name;
  int64_t forward_ps = 0, backward_ps = 0;
  int64_t resident_bytes = 0;        // parameters and optimizer state on this rank, always held
  int64_t saved_bytes = 0;           // activations, from its forward to its backward
  int64_t whole_gradient_bytes = 0;  // from its backward on: of replicated parameters and of all slices
  int64_t full_gradient_bytes = 0;  // of sharded parameters except slices: until the unit's reduction is over
  int64_t parts = 1;                // number of slices, the sharded ones last
  int block = -1;                   // index of its recomputed block, or -1
  int64_t work_bytes = 0;           // while its backward runs: Note [Work] in problem/phases.hpp
  int64_t recompute_ps = 0;         // of its recomputed forward
  // The gradient of one replicated slice, until it has been added to the operator's.
  int64_t slice_gradient_bytes = 0;
  // Of replicated parameters whose gradient is computed in another dtype than it is kept in: the gradient
  // that backward produces, until its bucket has copied it.
  int64_t cast_gradient_bytes = 0;
  int64_t forward_work_bytes = 0;    // while its forward runs
  int64_t slice_copy_bytes = 0;      // one replicated slice in the compute dtype, while its product runs
  int64_t recompute_work_bytes = 0;  // while its recomputation runs
  // The part of whole_gradient_bytes that a further micro-batch adds to in place: of slices.
  int64_t summed_gradient_bytes = 0;
};

// A recomputed block of consecutive operators.
struct StepBlock {
  bool hold = false;  // parameters stay gathered from recomputation to backward
  int64_t input_bytes = 0;
  // Whether something without parameters may end it: Note [What triggers a recomputation] in
  // step_program.hpp.
  bool bare_end = false;
};

// Operators [first, last] during which a unit must be gathered: those of one module's call.
struct Span {
  int first = 0, last = 0;
  auto operator<=>(const Span&) const = default;
};

// Parameters that are gathered and reduced together. A slice of a split operator is a unit of its own.
struct StepUnit {
  std::string name;
  std::vector<int> members;  // operators whose gradients it waits for; ascending
  std::vector<Span> calls;   // calls that gather it; ascending, one per module
  int64_t repeats = 1;       // number of calls of each module in a forward; each gathers it
  bool keeps = false;        // SHARD_GRAD_OP: stays gathered until its backward is over
  bool slice = false;        // gathered by its operator's product or look-up, released right after it
  LaneTime gather;
  LaneTime reduce;                  // zero: no trainable parameters
  LaneTime average;                 // between hosts, after the reduction inside them, on its own lane
  int64_t full_bytes = 0;           // gathered parameters
  int64_t gradient_bytes = 0;       // its members' full gradients, until the reduction is over
  int64_t kept_gradient_bytes = 0;  // this rank's part of the gradient, from the start of the reduction
  // Copies, at the start of the reduction, of gradients that cannot be sent in place (padding, another
  // dtype, or small ones that share a buffer).
  int64_t copied_bytes = 0;
  int64_t packed_bytes =
      0;  // small tensors are gathered through a buffer, needed at the gather's begin for a moment
  // Some of its parameters are frozen: it is read until the gradients of its call's inputs are there, so its
  // reduction begins before it is released.
  bool frozen_part = false;
  // It stays gathered from the first micro-batch to the last, where its gradients' sum is reduced: Note
  // [Stages of a pipeline] in problem/request.hpp.
  bool once = false;
  // Of a slice: its `calls` (none: that of its first member) are those that acquire it, each at its last
  // operator. The first `look_ups` of them do not acquire it in backward.
  int64_t look_ups = 0;
  // Note [Means that are cast] in simulate/runtime_rules.hpp: this rank's part of the mean in the dtype of
  // the reduction, where it is kept in another one, and what is made of it, which is part of
  // kept_gradient_bytes.
  int64_t mean_bytes = 0, cast_bytes = 0;
  // Offloaded: the part of kept_gradient_bytes that is on the device only while it is reduced. A further
  // micro-batch's reduction first copies the sum so far from the host, which takes `further_ps` more.
  int64_t host_gradient_bytes = 0, further_ps = 0;
  // Until a gather is over: rows as they are on the host, which it casts, or what came from other hosts.
  int64_t brought_bytes = 0;
  // FULL_SHARD_HPZ: what came from other hosts, from the first gather in forward until its backward is over;
  // and a gather in between.
  int64_t second_bytes = 0;
  LaneTime gather_again;
  // Of a reduction inside the host: what is then reduced between hosts, until that is over.
  int64_t of_host_bytes = 0;
};

// Gradients of replicated parameters, all-reduced together when the last is complete.
struct StepBucket {
  std::string name;
  std::vector<int> members;
  LaneTime reduce;
  int64_t buffer_bytes = 0;  // buffer that they are packed into
  // Under mixed precision: the gradients that are freed once they are packed, and the means that are kept.
  int64_t cast_bytes = 0, mean_bytes = 0;
  // Under mixed precision, of replicated slices: the gradient of a further micro-batch, as wide as the sum to
  // which its mean is added, until it is packed.
  int64_t further_bytes = 0;
};

// How the runtime communicates; see csrc/comm/lane.hpp.
struct Lanes {
  bool separate_reductions = false;  // reductions have a lane of their own, apart from gathers
  // Lanes are streams of an accelerator: computation waits for one reduction before it submits the next.
  bool enqueue = false;
};

struct Step {
  std::vector<StepOperator> operators;  // in execution order
  std::vector<StepBlock> blocks;
  std::vector<StepUnit> units;
  std::vector<StepBucket> buckets;
  int64_t accumulation = 1;  // micro-batches
  // Units are gathered ahead of their use as long as they and the unit in use take no more bytes than this.
  // At most the memory of 1 + `prefetch` units of the largest size, which is also meant by 0.
  int64_t gather_bytes = 0;
  int64_t prefetch = 1;
  Lanes lanes;
  int64_t held_bytes = 0;  // always held: the model's buffers and input
  int64_t optimizer_ps = 0;
  bool buckets_once = false;  // only the last micro-batch's gradients complete buckets
};

}  // namespace osdp::search
