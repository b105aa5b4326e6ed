#include "search/problem/validate.hpp"

#include <algorithm>
#include <cmath>

#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

// `what`: parts of a message, joined only if it is thrown.
template <class... Text>
void within(int64_t value, int64_t least, int64_t most, const Text&... what) {
  if (value >= least && value <= most) return;
  throw InvalidProblem((std::string() + ... + what) + " is " + std::to_string(value) + "; it must be from " +
                       std::to_string(least) + " to " + std::to_string(most));
}

// Also rejects NaN.
template <class... Text>
void seconds(double value, const Text&... what) {
  if (value >= 0 && value < 1e6) return;
  throw InvalidProblem((std::string() + ... + what) + " is " + std::to_string(value) +
                       " s; it must be from 0 to less than 1e6 s");
}

// One of the `count` codes of an enumeration (modes.hpp).
template <class Code>
bool known(Code code, size_t count) {
  return static_cast<int>(code) >= 0 && static_cast<size_t>(code) < count;
}

template <class Code>
void codes(const std::vector<Code>& list, size_t count, const std::string& what) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (!known(list[i], count))
      throw InvalidProblem(what + ": unknown code " + std::to_string(static_cast<int>(list[i])));
    if (std::find(list.begin(), list.begin() + static_cast<ptrdiff_t>(i), list[i]) !=
        list.begin() + static_cast<ptrdiff_t>(i)) {
      throw InvalidProblem(what + ": code " + std::to_string(static_cast<int>(list[i])) + " is there twice");
    }
  }
}

}  // namespace

void validate(const Operator& op) {
  const auto refuse = [&op](const std::string& why) {
    throw InvalidProblem("operator '" + op.name + "': " + why);
  };
  int128 total = 0;
  for (const Tensor& t : op.tensors) {
    const int64_t widest = std::max({t.row_bytes, t.compute_row_bytes, t.reduce_row_bytes});
    if (std::min({t.rows, t.row_bytes, t.compute_row_bytes, t.reduce_row_bytes}) < 0)
      refuse("a parameter of negative size");
    if (t.item_bytes < 1 || t.item_bytes > 64)
      refuse("elements of " + std::to_string(t.item_bytes) + " bytes");
    const int128 bytes = static_cast<int128>(t.rows) * widest;
    if (t.rows > kMostBytes || widest > kMostBytes || bytes > kMostBytes)
      refuse("a parameter of more than 2^50 bytes");
    total += bytes;
  }
  if (total > kMostBytes) refuse("more than 2^50 bytes of parameters");
  if (op.saved_bytes_per_sample < 0 || op.saved_bytes_fixed < 0) refuse("negative activations");
  if (op.saved_bytes_per_sample > kMostBytes || op.saved_bytes_fixed > kMostBytes)
    refuse("more than 2^50 bytes of activations");
  within(op.work_bytes_per_sample, 0, kMostBytes, "operator '", op.name, "': its work in bytes per sample");
  within(op.work_bytes_fixed, 0, kMostBytes, "operator '", op.name, "': its work in bytes");
  for (const int64_t bytes : {op.forward_work_bytes_per_sample, op.forward_work_bytes_fixed,
                              op.backward_work_bytes_per_sample, op.backward_work_bytes_fixed})
    within(bytes, 0, kMostBytes, "operator '", op.name, "': its work in forward or backward");
  within(op.waiting_gradient_bytes, 0, kMostBytes, "operator '", op.name, "': gradients that wait");
  within(op.calls, 1, 1000000, "operator '", op.name, "': calls");
  within(op.places, 1, 1000000, "operator '", op.name, "': places");
  within(op.look_ups, 0, op.places, "operator '", op.name, "': look-ups");
  if (op.split_tensor == -1) return;
  if (op.split_tensor < 0 || static_cast<size_t>(op.split_tensor) >= op.tensors.size())
    refuse("the tensor to split is none of its " + std::to_string(op.tensors.size()));
  within(op.out_features, 1, kMostBytes, "operator '", op.name, "': out_features");
  within(op.in_features, 1, kMostBytes, "operator '", op.name, "': in_features");
  within(op.rows_per_sample, 0, kMostBytes, "operator '", op.name, "': rows per sample");
  const int64_t bytes = op.tensors[static_cast<size_t>(op.split_tensor)].bytes();
  const int128 elements = static_cast<int128>(op.out_features) * op.in_features;
  if (elements > bytes || bytes % elements != 0) {
    refuse("the tensor to split has " + std::to_string(bytes) + " bytes, not those of " +
           std::to_string(op.out_features) + " x " + std::to_string(op.in_features) + " elements");
  }
}

void validate(const Model& model) {
  if (model.operators.empty()) throw InvalidProblem("the model has no operators");
  if (model.operators.size() > (size_t{1} << 24) || model.blocks.size() > (size_t{1} << 24))
    throw InvalidProblem("the model has more than 2^24 operators or blocks");
  within(model.input_bytes_per_sample, 0, kMostBytes, "the model's input in bytes");
  within(model.buffer_bytes, 0, kMostBytes, "the model's buffers in bytes");
  for (const Block& b : model.blocks)
    within(b.input_bytes_per_sample, 0, kMostBytes, "block '", b.name, "': its input in bytes");
  for (const Operator& op : model.operators) {
    validate(op);
    if (op.block < -1 || op.block >= static_cast<int>(model.blocks.size()))
      throw InvalidProblem("operator '" + op.name + "': no such block");
    for (const double time :
         {op.compute_s_per_sample, op.compute_s_fixed, op.recompute_s_per_sample, op.recompute_s_fixed})
      seconds(time, "operator '", op.name, "': its time");
    for (const auto& [slices, time] : op.slices_s) {
      within(slices, 2, 4096, "operator '", op.name, "': slices");
      seconds(time, "operator '", op.name, "': its time in slices");
    }
  }
}

void validate(const Collective& c, const std::string& what) {
  seconds(c.alpha_s, what, ": alpha");
  seconds(c.beta_s_per_byte, what, ": beta");
}

void validate(const std::vector<Protocol>& protocols) {
  if (protocols.size() > kMostProtocols)
    throw InvalidProblem("more than " + std::to_string(kMostProtocols) + " protocols of collectives");
  bool ring = protocols.empty();
  for (const Protocol& p : protocols) {
    if (!known(p.algorithm, kAlgorithms.size()))
      throw InvalidProblem("a collective's algorithm: an unknown code");
    ring |= p.algorithm == Algorithm::Ring;
    for (const double time : {p.base_s, p.inner_hop_s, p.outer_hop_s})
      seconds(time, "a protocol of collectives");
    if (!(p.bandwidth_share > 0 && p.bandwidth_share <= 1))
      throw InvalidProblem("a collective's share of the bandwidth is " + std::to_string(p.bandwidth_share));
    if (!(p.most_bytes_per_s >= 0 && p.most_bytes_per_s <= 1e30))
      throw InvalidProblem("a collective's most bytes per second are " + std::to_string(p.most_bytes_per_s));
  }
  if (!ring) throw InvalidProblem("none of the ways to run a collective is a ring");
}

void validate(const Device& device) {
  within(device.ranks, 1, int64_t{1} << 24, "the world size");
  if (device.hosts < 1 || device.ranks % device.hosts != 0)
    throw InvalidProblem("hosts: " + std::to_string(device.hosts) + " does not divide the world size");
  validate(device.all_gather, "all_gather");
  validate(device.reduce_scatter, "reduce_scatter");
  validate(device.all_reduce, "all_reduce");
  validate(device.between_hosts, "the link between hosts");
  validate(device.protocols);
  if (!(device.recompute_slowdown > 0 && device.recompute_slowdown <= 1e6))
    throw InvalidProblem("the slowdown of recomputation is " + std::to_string(device.recompute_slowdown));
  if (!(device.exposed >= 0 && device.exposed <= 1e6))
    throw InvalidProblem("exposed communication is " + std::to_string(device.exposed));
  if (!(device.stolen >= 0 && device.stolen <= 1e6))
    throw InvalidProblem("computation lost beside a transfer is " + std::to_string(device.stolen));
  seconds(device.optimizer_s_per_byte, "the optimizer's time for a byte");
  validate(device.host.copy, "copies to and from host memory");
  seconds(device.host.optimizer_s_per_byte, "the optimizer's time for a byte in host memory");
}

void validate(const Space& space) {
  if (space.cost != Cost::Paper && space.cost != Cost::Osdp) throw InvalidProblem("cost: an unknown code");
  if (space.modes.empty()) throw InvalidProblem("no mode is allowed");
  codes(space.modes, kModes.size(), "modes");
  for (int64_t g : space.granularities) within(g, 1, 4096, "a granularity");
  const std::vector<int64_t>& ahead = space.prefetches;
  if (ahead.empty()) throw InvalidProblem("no number of units to gather ahead");
  for (size_t n = 0; n < ahead.size(); ++n)
    within(ahead[n], n == 0 ? 0 : ahead[n - 1] + 1, 64, "units gathered ahead");
  const OptimizerState& optimizer = space.optimizer;
  within(optimizer.copies, 0, 32, "copies of parameters in the optimizer's state");
  within(optimizer.per_256, 0, 32 * 256, "the optimizer's bytes for 256 elements");
  within(optimizer.small, 0, kMostBytes, "elements of a small tensor");
  within(optimizer.small_item, 0, 32, "the optimizer's bytes for an element of a small tensor");
  within(space.bucket_bytes, 1, kMostBytes, "a bucket in bytes");
  seconds(space.slice_overhead_s, "the overhead of a slice");
  within(space.stage.in_flight, 1, kMostAccumulation, "micro-batches in flight");
  within(space.stage.micro_batches, 0, kMostAccumulation, "a stage's micro-batches");
  if (space.shares) {
    within(space.shares->forward, 0, StepShares::kWhole, "the bound's share of forward");
    const auto& [forward, backward, link, averages, reductions] = *space.shares;
    int64_t left = StepShares::kWhole;  // for backward's forms
    const auto share = [&](int64_t of, const char* what) { within(of, 0, left, what), left -= of; };
    share(backward, "the bound's share of backward");
    share(link, "the bound's share of the link between hosts");
    share(averages, "the bound's share of averages between hosts");
    share(reductions, "the bound's share of reductions");
  }
  for (const PairWeight& pair : space.pairs) {
    within(pair.earlier_bytes, 0, kMostBytes, "a pair's earlier unit in bytes");
    within(pair.later_bytes, 0, kMostBytes, "a pair's later unit in bytes");
    within(pair.weight, 0, StepShares::kWhole, "a pair's weight");
  }
}

void validate(const Request& request) {
  validate(request.device);
  validate(request.space);
  if (request.limit_bytes < 0 || request.limit_bytes > kLargestSum)
    throw InvalidProblem("the memory limit is not a size");
  if (request.recompute.empty()) throw InvalidProblem("no way to treat blocks is allowed");
  codes(request.recompute, kRecomputes.size(), "ways to treat blocks");
  if (request.paper() && request.recompute != std::vector<Recompute>{Recompute::None})
    throw InvalidProblem("the paper's costs know no recomputation");
  if (request.depth_first && !request.paper())
    throw InvalidProblem("the paper's search knows the paper's costs only");
  if (request.batches.size() > (size_t{1} << 20)) throw InvalidProblem("more than 2^20 batch sizes");
  for (const Batch& b : request.batches) {
    validate(b);
    if (request.space.stage.once() && b.accumulation != request.space.stage.micro_batches)
      throw InvalidProblem("a stage of " + std::to_string(request.space.stage.micro_batches) +
                           " micro-batches is asked for " + std::to_string(b.accumulation));
  }
  if (request.paper() && (request.space.stage.once() || request.space.stage.in_flight > 1))
    throw InvalidProblem("the paper's costs know no stages of a pipeline");
}

void validate(Batch batch) {
  within(batch.size, 1, kMostBatchAsked, "a batch's size");
  within(batch.accumulation, 1, kMostAccumulation, "the number of micro-batches");
}

void validate(const Model& model, const PlainPlan& plan) {
  if (plan.choices.size() != model.operators.size() || plan.blocks.size() != model.blocks.size()) {
    throw InvalidProblem("the plan is for another model: it has " + std::to_string(plan.choices.size()) +
                         " choices for " + std::to_string(model.operators.size()) +
                         " operators, and treats " + std::to_string(plan.blocks.size()) + " of " +
                         std::to_string(model.blocks.size()) + " blocks");
  }
  validate(plan.batch);
  for (size_t i = 0; i < plan.choices.size(); ++i) {
    const PlainPlan::Choice& c = plan.choices[i];
    const std::string& name = model.operators[i].name;
    if (!known(c.mode, kModes.size()) || !known(c.split, kSplits.size()))
      throw InvalidProblem("the choice of operator '" + name + "': an unknown code");
    within(c.granularity, 1, 4096, "the choice of operator '", name, "': granularity");
    within(c.sharded_slices, 0, c.granularity, "the choice of operator '", name, "': sharded slices");
  }
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    if (!known(plan.blocks[b], kRecomputes.size()))
      throw InvalidProblem("block '" + model.blocks[b].name + "' is treated in an unknown way");
  }
}

}  // namespace osdp::search
