#include "search/problem/equivalence_classes.hpp"

#include <algorithm>
#include <map>

#include "search/problem/problem.hpp"
#include "search/problem/step_bound.hpp"

namespace osdp::search {
namespace {

int64_t narrow(int128 v) {
  if (v < 0 || v > kLargestSum) throw InvalidProblem("a total of one step overflows 2^61");
  return static_cast<int64_t>(v);
}

// Everything that determines an operator's costs; with `positions` also what its place in the step decides,
// with `pairs` who its neighbours are.
std::vector<int64_t> signature(const Operator& op, bool positions, bool pairs) {
  std::vector<int64_t> key{op.split_tensor,
                           op.out_features,
                           op.in_features,
                           op.rows_per_sample,
                           op.calls,
                           op.places,
                           op.look_ups,
                           op.transposed,
                           op.convolution,
                           op.convolution ? op.backward_work_bytes_fixed : 0,
                           op.convolution ? op.waiting_gradient_bytes : 0,
                           op.saved_bytes_per_sample,
                           op.saved_bytes_fixed,
                           op.work_bytes_per_sample,
                           op.work_bytes_fixed,
                           op.position.left_phases,
                           op.position.sees_left,
                           picoseconds(op.recompute_s_per_sample, "operator", op.name),
                           picoseconds(op.recompute_s_fixed, "operator", op.name)};
  if (positions) {
    const StepPosition& at = op.position;
    key.insert(key.end(),
               {at.latency, at.forward_gathers, at.gathered_again, at.end_unknown, at.first, at.last,
                at.ends_forward_bytes, at.lets_end_bytes, at.ends_forward_gathers, at.lets_end_gathers,
                at.saved_in_forward, at.slice_calls, at.recomputed_last, at.lets_any, at.lets_slice_bytes});
    // While slices of which no two fit are computed, the lane is idle.
    if (op.split_tensor >= 0)
      key.insert(key.end(), {picoseconds(op.compute_s_per_sample, "operator", op.name),
                             picoseconds(op.compute_s_fixed, "operator", op.name)});
  }
  if (pairs) {
    for (const NeighbourPair* p : {&op.position.earlier, &op.position.later}) {
      key.insert(key.end(), {p->earlier_bytes, p->later_bytes, p->later_sent_bytes, p->together,
                             p->in_backward, p->in_recompute, p->in_turn, p->turn_per_sample, p->turn_fixed,
                             p->ends_block, p->between_bytes, p->between_gathers});
      for (const ComputeTime& t : {p->earlier_time, p->later_time})
        for (const double seconds : {t.both_per_sample, t.both_fixed, t.again_per_sample, t.again_fixed})
          key.push_back(picoseconds(seconds, "operator", op.name));
    }
  }
  for (const auto& [slices, seconds] : op.slices_s)
    key.insert(key.end(), {slices, picoseconds(seconds, "operator", op.name)});
  for (const Tensor& t : op.tensors) {
    key.insert(key.end(), {t.rows, t.row_bytes, t.trainable, t.shardable, t.compute_row_bytes,
                           t.reduce_row_bytes, t.item_bytes});
  }
  return key;
}

EquivalenceClass make_class(const Model& model, const Request& request, const std::vector<int>& operators,
                            int block) {
  EquivalenceClass cls;
  cls.block = block >= 0;
  cls.ways = cls.block ? request.recompute : std::vector<Recompute>{Recompute::None};
  if (cls.block) cls.input_bytes_per_sample = model.blocks[block].input_bytes_per_sample;
  int128 recompute = 0, recompute_fixed = 0;
  for (int i : operators) {
    const Operator& op = model.operators[i];
    Slot& slot = cls.slots.emplace_back();
    slot.saved = {op.saved_bytes_fixed, op.saved_bytes_per_sample};
    slot.work = {op.work_bytes_fixed, op.work_bytes_per_sample};
    for (Recompute r : cls.ways) {
      auto& list = slot.candidates[static_cast<int>(r)];
      list = candidates(op, request.device, request.space, r);
      if (list.empty() && !op.tensors.empty()) {
        throw InvalidProblem(
            "operator '" + op.name +
            "' can be sharded in none of the modes that are allowed (HYBRID_SHARD needs several "
            "ranks on each of several hosts)");
      }
    }
    const Linear again = recompute_ps(op, request.device);
    recompute_fixed += again.fixed, recompute += again.per_sample;
  }
  if (request.space.shares) {
    recompute = recompute * request.space.shares->backward / StepShares::kWhole;
    recompute_fixed = recompute_fixed * request.space.shares->backward / StepShares::kWhole;
  }
  cls.recompute_ps = {narrow(recompute_fixed), narrow(recompute)};
  for (Recompute r : cls.ways) {
    int128 fixed = 0, per_sample = 0;
    if (r != Recompute::None) {
      per_sample = cls.input_bytes_per_sample;
    } else {
      for (const Slot& slot : cls.slots) fixed += slot.saved.fixed, per_sample += slot.saved.per_sample;
    }
    const int128 others = request.space.stage.in_flight - 1;
    cls.in_flight[static_cast<int>(r)] = {narrow(others * fixed), narrow(others * per_sample)};
  }
  return cls;
}

// Upper bounds, over all plans, of the bytes and picoseconds of one step.
class Totals {
 public:
  Totals(const EquivalenceClasses& classes, const Request& request) {
    bytes_ = classes.held.fixed, bytes_per_sample_ = classes.held.per_sample;
    once_ = classes.compute_ps.fixed, per_sample_ = classes.compute_ps.per_sample;
    for (const EquivalenceClass& cls : classes.classes) {
      const auto count = static_cast<int128>(cls.instances.size());
      bytes_per_sample_ += count * cls.input_bytes_per_sample;
      if (cls.block)
        for (const Linear& others : cls.in_flight)
          bytes_ += count * others.fixed, bytes_per_sample_ += count * others.per_sample;
      if (cls.ways.size() > 1 || cls.ways[0] != Recompute::None)
        once_ += count * cls.recompute_ps.fixed, per_sample_ += count * cls.recompute_ps.per_sample;
      for (const Slot& slot : cls.slots) {
        int64_t bytes = 0, communication = 0, optimizer = 0;
        for (const auto& list : slot.candidates) {
          for (const Candidate& c : list) {
            bytes =
                std::max(bytes, c.state_bytes + c.own_bytes + c.gathered_bytes + c.held_bytes + c.left_bytes);
            communication = std::max(communication, c.communication_ps);
            optimizer = std::max(optimizer, c.optimizer_ps);
          }
        }
        bytes_ += count * (slot.saved.fixed + slot.work.fixed + static_cast<int128>(bytes));
        bytes_per_sample_ += count * (static_cast<int128>(slot.saved.per_sample) + slot.work.per_sample);
        once_ += count * communication, optimizer_ += count * optimizer;
      }
    }
  }

  // The largest micro-batch for which no total exceeds 2^61; 0: none.
  int64_t most_batch(int64_t accumulation) const {
    const auto most = [](int128 fixed, int128 per_sample) {
      if (fixed > kLargestSum) return int128{0};
      return per_sample <= 0 ? int128{kLargestSum} : (kLargestSum - fixed) / per_sample;
    };
    return static_cast<int64_t>(
        std::min(most(bytes_, bytes_per_sample_),
                 most(optimizer_ + accumulation * once_, accumulation * per_sample_)));
  }

 private:
  int128 bytes_ = 0, bytes_per_sample_ = 0, once_ = 0, per_sample_ = 0, optimizer_ = 0;
};

void check_totals(EquivalenceClasses& found, const Request& request) {
  const Totals totals(found, request);
  const auto check = [&](Batch batch) {
    if (batch.size <= totals.most_batch(batch.accumulation)) return;
    throw InvalidProblem("a total of one step overflows 2^61 (bytes or ps) for " +
                         std::to_string(batch.accumulation) + " micro-batches of " +
                         std::to_string(batch.size));
  };
  for (const Batch& b : request.batches) check(b);
  if (request.batches.empty()) check({1, 1});
  found.most_batch = std::min(kMostBatch, totals.most_batch(1));
}

}  // namespace

EquivalenceClasses find_equivalence_classes(const Model& model, const Request& request) {
  EquivalenceClasses found;
  std::map<std::vector<int64_t>, size_t> known;  // ordered: the order of classes depends on their costs only
  std::vector<std::pair<std::vector<int>, int>> instances;
  std::vector<std::vector<int>> of_block(model.blocks.size());
  std::vector<std::vector<int64_t>> keys;
  int128 compute = 0, compute_fixed = 0;
  const bool blocks = decides_blocks(request);
  for (size_t i = 0; i < model.operators.size(); ++i) {
    const Operator& op = model.operators[i];
    compute += picoseconds(op.compute_s_per_sample, "operator", op.name);
    compute_fixed += picoseconds(op.compute_s_fixed, "operator", op.name);
    if (op.block >= 0 && blocks) {
      of_block[op.block].push_back(static_cast<int>(i));
    } else {
      instances.push_back({{static_cast<int>(i)}, -1});
    }
  }
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    if (!of_block[b].empty()) instances.push_back({of_block[b], static_cast<int>(b)});
  }
  for (const auto& [operators, block] : instances) {
    auto& key = keys.emplace_back();
    key = {block >= 0, block >= 0 ? model.blocks[block].input_bytes_per_sample : 0};
    for (int i : operators) {
      const auto one =
          signature(model.operators[i], request.space.shares.has_value(), !request.space.pairs.empty());
      key.push_back(static_cast<int64_t>(one.size()));
      key.insert(key.end(), one.begin(), one.end());
    }
    known.emplace(key, 0);
  }
  size_t number = 0;
  for (auto& [key, index] : known) index = number++;
  found.classes.resize(number);
  for (size_t n = 0; n < instances.size(); ++n) {
    EquivalenceClass& cls = found.classes[known.at(keys[n])];
    const auto& [operators, block] = instances[n];
    if (cls.slots.empty()) cls = make_class(model, request, operators, block);
    cls.instances.push_back(operators);
    if (block >= 0) cls.blocks.push_back(block);
  }
  found.compute_ps = {narrow(compute_fixed), narrow(compute)};
  if (request.space.shares) found.compute_ps = step_bound_compute(model, request);
  if (!request.paper()) found.held = {model.buffer_bytes, model.input_bytes_per_sample};
  int128 fixed = 0, per_sample = request.space.stage.in_flight - 1;  // of the other micro-batches in flight
  per_sample *= model.input_bytes_per_sample;
  for (const EquivalenceClass& cls : found.classes) {
    if (cls.block) continue;
    const auto count = static_cast<int128>(cls.instances.size());
    fixed += count * cls.in_flight[0].fixed, per_sample += count * cls.in_flight[0].per_sample;
  }
  found.held = {narrow(found.held.fixed + fixed), narrow(found.held.per_sample + per_sample)};
  check_totals(found, request);
  return found;
}

}  // namespace osdp::search
