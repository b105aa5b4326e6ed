// The step that a plan makes: costs of whole units, and a memory curve and phases that stay below the largest
// peak.
#include "search/simulate/step_of_plan.hpp"

#include <algorithm>
#include <random>

#include "check.hpp"
#include "search/problem/phases.hpp"
#include "search/problem/problem.hpp"
#include "search/simulate/largest_peak.hpp"
#include "search/simulate/simulate.hpp"

using namespace osdp::search;

namespace {

Operator linear(int64_t out, int64_t in) {
  Operator op;
  op.tensors = {{out, 4 * in}, {out, 4}};
  op.split_tensor = 0;
  op.out_features = out, op.in_features = in;
  op.compute_s_per_sample = 3e-6, op.recompute_s_per_sample = 1e-6;
  return op;
}

Request request(int64_t ranks) {
  Request r;
  r.device.ranks = ranks;
  r.device.all_gather = {1e-6, 1e-9}, r.device.reduce_scatter = {2e-6, 2e-9},
  r.device.all_reduce = {3e-6, 3e-9};
  r.space.modes = {Mode::NoShard, Mode::ShardGradOp, Mode::FullShard};
  r.space.granularities = {2};
  r.space.bucket_bytes = 1000;
  r.recompute = {Recompute::None};
  return r;
}

PlainPlan plan_of(size_t operators, Mode mode) {
  PlainPlan plan;
  plan.choices.resize(operators, {mode, 1, mode == Mode::NoShard ? 0 : 1, Split::None});
  return plan;
}

// Neighbours that travel together pay one latency.
void units_pay_one_latency() {
  Model model;
  model.operators = {linear(8, 10), linear(8, 10)};  // 8 x 11 floats: 352 bytes each
  const Request r = request(4);
  const std::vector<PlannedUnit> together{{"both", {0, 1}, {{0, 0}, {1, 1}}, 1}};
  Step s = step_of(model, r, plan_of(2, Mode::FullShard), together, {});
  CHECK_EQ(s.units.size(), 1u);
  CHECK_EQ(s.units[0].gather.alone_ps, 3 * (1000000 + 704 / 4 * 1000));
  CHECK_EQ(s.units[0].reduce.alone_ps, 3 * (2000000 + 704 / 4 * 2000));
  CHECK_EQ(s.units[0].gather.beside_ps, s.units[0].gather.alone_ps);
  CHECK_EQ(s.units[0].full_bytes, 704);
  CHECK_EQ(s.units[0].gradient_bytes,
           s.operators[0].full_gradient_bytes + s.operators[1].full_gradient_bytes);
  CHECK_EQ(s.operators[0].forward_ps, 1000000);
  CHECK_EQ(s.operators[0].backward_ps, 2000000);
  // Each step of a ring is later by a microsecond and a nanosecond per byte while something is computed.
  s = step_of(model, r, plan_of(2, Mode::FullShard), together, {1e-6, 1e-9});
  CHECK_EQ(s.units[0].gather.beside_ps, 3 * (2000000 + 704 / 4 * 2000));
  // A bucket: twice the steps.
  s = step_of(model, r, plan_of(2, Mode::NoShard), together, {});
  CHECK_EQ(s.units.size(), 0u);
  CHECK_EQ(s.buckets[0].reduce.alone_ps, 6 * (3000000 + 704 / 4 * 3000));
  CHECK_EQ(s.buckets[0].buffer_bytes, 704);
  // One rank communicates nothing.
  s = step_of(model, request(1), plan_of(2, Mode::NoShard), together, {});
  CHECK(s.units.empty() && s.buckets.empty());
}

// Rows are copied to the device before a gather, and the gradient to the host after its reduction: first the
// sum so far from there, if there is one. The device holds neither in between.
void offloaded_parts_rest_on_the_host() {
  Model model;
  model.operators = {linear(8, 10)};  // 88 floats, of which a rank has 22: 88 bytes
  Request r = request(4);
  r.device.host = {{5e-6, 1e-8}, 1e-7};
  const std::vector<PlannedUnit> alone{{"it", {0}, {{0, 0}}, 1}};
  const Step kept = step_of(model, r, plan_of(1, Mode::FullShard), alone, {});
  const Step s = step_of(model, r, plan_of(1, Mode::FullShardOffload), alone, {});
  constexpr int64_t copy = 5000000 + 88 * 10000;
  CHECK_EQ(s.units[0].gather.alone_ps, kept.units[0].gather.alone_ps + copy);
  CHECK_EQ(s.units[0].gather.transfer_ps, kept.units[0].gather.transfer_ps);
  CHECK_EQ(s.units[0].reduce.alone_ps, kept.units[0].reduce.alone_ps + copy);
  CHECK_EQ(s.units[0].further_ps, copy);
  CHECK_EQ(s.optimizer_ps, 88 * 100000);
  CHECK_EQ(kept.operators[0].resident_bytes, 3 * 88);  // AdamW
  CHECK_EQ(s.operators[0].resident_bytes, 0);
  CHECK_EQ(s.units[0].kept_gradient_bytes, 88);
  CHECK_EQ(play(s).memory.back().bytes, 0);
  PlainPlan twice = plan_of(1, Mode::FullShardOffload);
  twice.batch.accumulation = 2;
  const Step again = step_of(model, r, twice, alone, {});
  CHECK_EQ(play(again).memory.back().bytes, 0);
  Step free = again;
  free.units[0].further_ps = 0;
  CHECK_EQ(play(again).step_ps, play(free).step_ps + copy);
  const Candidate c = candidate_of(model.operators[0], r.device, r.space, Recompute::None,
                                   Mode::FullShardOffload, 1, 1, Split::None);
  CHECK_EQ(c.host_bytes, 4 * 88);
}

// Of a weight in slices each slice brings its rows and sends its gradient; the bias stays on the device.
void offloaded_slices_rest_on_the_host() {
  Model model;
  model.operators = {linear(8, 10)};
  Request r = request(4);
  r.device.host = {{5e-6, 1e-8}, 1e-7};
  PlainPlan plan = plan_of(1, Mode::FullShard);
  const std::vector<PlannedUnit> alone{{"it", {0}, {{0, 0}}, 1}};
  plan.choices[0] = {Mode::FullShard, 2, 2, Split::Out};
  const Step kept = step_of(model, r, plan, alone, {});
  plan.choices[0].mode = Mode::FullShardOffload;
  const Step s = step_of(model, r, plan, alone, {});
  CHECK_EQ(s.units.size(), 2u);
  constexpr int64_t copy = 5000000 + 40 * 10000;  // of 4 rows of 10 floats a rank has one
  for (size_t i = 0; i < 2; ++i) {
    CHECK_EQ(s.units[i].gather.alone_ps, kept.units[i].gather.alone_ps + copy);
    CHECK_EQ(s.units[i].reduce.alone_ps, kept.units[i].reduce.alone_ps + copy);
    CHECK_EQ(s.units[i].further_ps, copy);
    CHECK_EQ(s.units[i].host_gradient_bytes, 40);
  }
  CHECK_EQ(kept.operators[0].resident_bytes, 3 * (80 + 32));
  CHECK_EQ(s.operators[0].resident_bytes, 3 * 32);
  CHECK_EQ(s.optimizer_ps, 80 * 100000 + kept.optimizer_ps / (80 + 32) * 32);
  CHECK_EQ(play(s).memory.back().bytes, 3 * 32 + 32);
  plan.choices[0].sharded_slices = 1;
  CHECK_THROWS(step_of(model, r, plan, alone, {}), InvalidProblem, "cannot be computed in 2 slices");
}

void slices_are_units() {
  Model model;
  model.operators = {linear(8, 10)};
  PlainPlan plan = plan_of(1, Mode::FullShard);
  plan.choices[0] = {Mode::FullShard, 2, 1, Split::Out};
  const Step s = step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {});
  CHECK_EQ(s.units.size(), 1u);
  CHECK(s.units[0].slice);
  CHECK_EQ(s.units[0].full_bytes, 160);
  CHECK_EQ(s.buckets.size(), 2u);  // the bias, and the slice that is whole
  CHECK_EQ(s.operators[0].parts, 2);
  // 8 rows are 2, 3 and 3: the last two are sharded, and 3 rows over 4 ranks are padded.
  plan.choices[0] = {Mode::FullShard, 3, 2, Split::Out};
  const Step uneven = step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {});
  CHECK_EQ(uneven.units.size(), 2u);
  CHECK_EQ(uneven.units[0].full_bytes, 120);
  CHECK_EQ(uneven.units[0].copied_bytes, 120);
  plan.choices[0] = {Mode::FullShard, 3, 1, Split::In};
  CHECK_THROWS(step_of(model, request(4), plan, {}, {}), InvalidProblem, "cannot be computed in 3 slices");
  plan.choices[0] = {Mode::FullShard, 9, 1, Split::Out};
  CHECK_THROWS(step_of(model, request(4), plan, {}, {}), InvalidProblem, "cannot be computed in 9 slices");
  // What a search does not consider, and a plan may say: along the input where the output would do, or none
  // sharded.
  plan.choices[0] = {Mode::FullShard, 2, 2, Split::In};
  CHECK_EQ(step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {}).units.size(), 2u);
  plan.choices[0] = {Mode::FullShard, 2, 0, Split::Out};
  CHECK_EQ(step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {}).units.size(), 0u);
  plan.choices[0] = {Mode::HybridShard, 1, 1, Split::None};  // on one host
  CHECK_EQ(step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {}).units.size(), 1u);
  plan.choices.clear();
  CHECK_THROWS(step_of(model, request(4), plan, {}, {}), InvalidProblem, "another model");
}

// Of a tied table autograd keeps the head's gradient until the look-up's is there, but where it is in slices.
void gradients_wait_for_a_sum_unless_they_are_in_slices() {
  Model model;
  model.operators = {linear(8, 10), linear(8, 10), linear(8, 10)};
  const int64_t gradient = model.operators[0].tensors[0].bytes();
  model.operators[0].places = model.operators[0].calls = 2;
  for (Operator& op : model.operators) op.work_bytes_fixed = 10'000, op.waiting_gradient_bytes = gradient;
  model.operators[0].waiting_gradient_bytes = 2 * gradient;
  PlainPlan plan = plan_of(3, Mode::FullShard);
  const auto work = [&](int64_t slices) {
    plan.choices[0] = {Mode::FullShard, slices, slices, slices > 1 ? Split::Out : Split::None};
    std::vector<int64_t> found;
    for (const StepOperator& o : step_of(model, request(4), plan, {}, {}).operators)
      found.push_back(o.work_bytes);
    return found;
  };
  const int64_t one = 10'000 - gradient, two = one - gradient;
  CHECK((work(1) == std::vector<int64_t>{10'000, 10'000, 10'000}));
  CHECK((work(2) == std::vector<int64_t>{two, one, one}));
  model.operators[2].waiting_gradient_bytes = 7;  // more is held by something else
  CHECK((work(2) == std::vector<int64_t>{two, one, 10'000 - 7}));
  model.operators[1].calls = 2;  // its own gradients wait, too, and it is whole
  CHECK((work(2) == std::vector<int64_t>{10'000, 10'000, 10'000}));
}

// As csrc/ops/products.cpp sums them: the input's gradient of output slices, the output of input slices.
void slices_in_16_bits_are_summed_in_float() {
  Model model;
  model.operators = {linear(8, 10)};
  model.operators[0].rows_per_sample = 3, model.operators[0].work_bytes_per_sample = 100;
  PlainPlan plan = plan_of(1, Mode::FullShard);
  plan.batch.size = 5;
  using Work = std::pair<int64_t, int64_t>;  // in forward and in backward
  const auto work = [&](Split split) {
    plan.choices[0] = {Mode::FullShard, 2, 2, split};
    const StepOperator o = step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {}).operators[0];
    return Work(o.forward_work_bytes, o.work_bytes);
  };
  CHECK((work(Split::Out) == Work(0, 500)));  // in float they are summed in place
  for (Tensor& t : model.operators[0].tensors) t.compute_row_bytes = t.row_bytes / 2;
  const int64_t out = model.operators[0].out_features, in = model.operators[0].in_features;
  CHECK((work(Split::Out) == Work(0, 500 + 5 * 3 * in * 4)));
  CHECK((work(Split::In) == Work(5 * 3 * out * (4 + 2), 500)));
  model.operators[0].tensors[0].trainable = false;  // so the input is not saved
  CHECK((work(Split::In) == Work(5 * 3 * (out * (4 + 2) + in * 2), 500)));
  model.operators[0].tensors[0].trainable = true;
  model.operators[0].forward_work_bytes_per_sample = 3000, model.operators[0].forward_work_bytes_fixed = 7;
  CHECK((work(Split::In) == Work(5 * 3 * out * 4 + 5 * 3000 + 7, 500)));  // values that are read later
  // The forward's is in its peak, and gone after it.
  plan.choices[0] = {Mode::FullShard, 2, 2, Split::In};
  Step step = step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {});
  step.operators[0].forward_work_bytes = 1'000'000;
  const int64_t with = play(step, 1).peak_bytes;
  step.operators[0].forward_work_bytes = 0;
  CHECK(with > 1'000'000 && with - play(step, 1).peak_bytes < 1'000'000);
  // So is the recomputation's, beside the gradients that the block's end has then.
  model.blocks.resize(1);
  model.operators[0].block = 0, model.operators[0].backward_work_bytes_fixed = 2'000'000;
  plan.blocks = {Recompute::Regather};
  step = step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {});
  CHECK_EQ(step.operators[0].recompute_work_bytes, 5 * 3 * out * (4 + 2) + 2'000'000);
  CHECK(play(step, 1).peak_bytes > 2'000'000);
}

// As csrc/ops/split_convolution.cpp computes them: terms of the input's gradient, and copies of outputs.
void slices_of_convolutions_have_terms_and_copies() {
  Model model;
  model.operators = {linear(8, 10)};
  Operator& op = model.operators[0];
  op.convolution = true, op.rows_per_sample = 3, op.work_bytes_per_sample = 100;
  PlainPlan plan = plan_of(1, Mode::FullShard);
  plan.batch.size = 5;
  using Work = std::pair<int64_t, int64_t>;  // in forward and in backward
  const auto work = [&](Split split) {
    plan.choices[0] = {Mode::FullShard, 2, 2, split};
    const StepOperator o = step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {}).operators[0];
    return Work(o.forward_work_bytes, o.work_bytes);
  };
  Space in_slices;
  in_slices.modes = {Mode::FullShard}, in_slices.granularities = {2};
  const int64_t outputs = 5 * 3 * 8 * 4, slice = 8 * 10 * 4 / 2;
  CHECK((work(Split::Out) == Work(outputs / 2, 500 + outputs / 2 + (500 - outputs) + slice)));
  op.tensors[0].trainable = false;
  CHECK((work(Split::Out) == Work(outputs / 2, 500 + outputs / 2 + (500 - outputs))));
  op.tensors[0].trainable = true;
  for (Tensor& t : op.tensors) t.compute_row_bytes = t.row_bytes / 2;
  const int64_t half = outputs / 2;
  CHECK((work(Split::Out) == Work(half / 2, 500 + half / 2 + 2 * (500 - half) + slice / 2)));
  // Of copies of the weight those of a slice are left, in its lower bound as well.
  op.work_bytes_fixed = 1000, op.backward_work_bytes_fixed = 900;
  CHECK(
      (work(Split::Out) == Work(half / 2, 500 + 1000 + half / 2 + 2 * (500 - half) + slice / 2 - slice / 2)));
  const auto certain = [&] {
    return candidates(op, request(4).device, in_slices, Recompute::None).back().own_bytes;
  };
  const int64_t less = certain();
  op.backward_work_bytes_fixed = 0;
  CHECK_EQ(certain() - less, slice / 2);
  CHECK_THROWS(work(Split::In), InvalidProblem, "cannot be computed in 2 slices");
}

// As runtime/step/slice_provider.cpp casts them: a NO_SHARD slice at a time, in forward and in backward.
void replicated_slices_are_cast_one_at_a_time() {
  Model model;
  model.operators = {linear(8, 10)};
  model.operators[0].tensors[0].trainable = false;
  PlainPlan plan = plan_of(1, Mode::FullShard);
  plan.choices[0] = {Mode::FullShard, 2, 1, Split::Out};
  const auto step = [&] { return step_of(model, request(4), plan, {{"a", {0}, {{0, 0}}, 1}}, {}); };
  CHECK_EQ(step().operators[0].slice_copy_bytes, 0);
  for (Tensor& t : model.operators[0].tensors) t.compute_row_bytes = t.row_bytes / 2;
  Step s = step();
  CHECK_EQ(s.operators[0].slice_copy_bytes, 8 * 10 * 2 / 2);
  const int64_t before = play(s, 1).peak_bytes;
  s.operators[0].slice_copy_bytes += 1'000'000;
  CHECK_EQ(play(s, 1).peak_bytes, before + 1'000'000);
}

// Of four ranks each casts its quarter of the means, at the end of the reduction.
void means_are_cast_to_the_dtype_in_which_they_are_kept() {
  Model model;
  model.operators = {linear(8, 10)};
  for (Tensor& t : model.operators[0].tensors) t.row_bytes = kSmallTensorBytes;
  Tensor& weight = model.operators[0].tensors[0];
  const auto unit = [&] {
    return step_of(model, request(4), plan_of(1, Mode::FullShard), {{"a", {0}, {{0, 0}}, 1}}, {}).units[0];
  };
  CHECK_EQ(unit().mean_bytes, 0);
  weight.compute_row_bytes = weight.reduce_row_bytes = weight.row_bytes / 2;
  CHECK_EQ(unit().mean_bytes, weight.reduce_bytes() / 4);
  CHECK_EQ(unit().cast_bytes, weight.bytes() / 4);
  weight.trainable = false;
  CHECK_EQ(unit().mean_bytes, 0);
}

// As runtime/step/transfer_plan.cpp sends them: several small tensors in one buffer, a large one or a single
// one in place.
void small_tensors_are_sent_in_a_buffer() {
  Model model;
  model.operators = {linear(8, 10)};
  const auto unit = [&] {
    return step_of(model, request(4), plan_of(1, Mode::FullShard), {{"a", {0}, {{0, 0}}, 1}}, {}).units[0];
  };
  CHECK_EQ(unit().packed_bytes, 8 * 11 * 4);
  CHECK_EQ(unit().copied_bytes, 8 * 11 * 4);
  CHECK(!unit().frozen_part);
  model.operators[0].tensors[0].row_bytes = kSmallTensorBytes;
  CHECK_EQ(unit().packed_bytes, 8 * 4);
  CHECK_EQ(unit().copied_bytes, 8 * 4);
  model.operators[0].tensors[0].trainable = false;  // the bias alone is reduced
  CHECK_EQ(unit().copied_bytes, 0);
  CHECK(unit().frozen_part);
}

int64_t state_of(const Step& s) {
  int64_t sum = s.held_bytes;
  for (const StepOperator& o : s.operators) sum += o.resident_bytes;
  return sum;
}

void curve_stays_below_the_largest_peak() {
  std::mt19937_64 r(3);
  const auto upto = [&](int64_t n) { return static_cast<int64_t>(r() % static_cast<uint64_t>(n + 1)); };
  for (int n = 0; n < 3000; ++n) {
    Model model;
    model.input_bytes_per_sample = upto(100);
    Request req = request(2 + upto(2));
    req.recompute = {Recompute::None, Recompute::Hold, Recompute::Regather};
    const int64_t prefetch = upto(2);
    const Lanes lanes{.separate_reductions = n % 4 == 3, .enqueue = n % 4 > 1};
    // All latency, or all bytes; computation short or long.
    for (Collective* c : {&req.device.all_gather, &req.device.reduce_scatter, &req.device.all_reduce}) {
      *c = {static_cast<double>(upto(3)) * 1e-5, static_cast<double>(upto(3)) * 1e-7};
      if (c->alpha_s + c->beta_s_per_byte == 0) c->alpha_s = 1e-6;  // what takes no time is not sent
    }
    const int operators = 2 + static_cast<int>(upto(6));
    const int first = static_cast<int>(upto(operators)), length = static_cast<int>(upto(4));
    model.blocks = {{"block", upto(50)}};
    for (int i = 0; i < operators; ++i) {
      Operator op = linear(4 * (1 + upto(5)), 4 * (1 + upto(5)));
      if (upto(5) == 0) op.tensors.clear(), op.split_tensor = -1;
      for (Tensor& t : op.tensors) {  // mixed precision: computed with in half, averaged in half or not
        t.trainable = upto(5) != 0;
        if (n % 2 == 0) continue;
        t.compute_row_bytes = t.row_bytes / 2;
        t.reduce_row_bytes = upto(1) ? t.row_bytes : t.row_bytes / 2;
      }
      op.name = std::to_string(i);
      op.saved_bytes_per_sample = upto(500), op.saved_bytes_fixed = upto(100);
      op.work_bytes_per_sample = upto(300), op.work_bytes_fixed = upto(50);
      op.compute_s_per_sample = static_cast<double>(upto(100)) * 1e-6;
      op.recompute_s_per_sample = op.compute_s_per_sample / 3;
      op.block = i >= first && i < first + length ? 0 : -1;
      model.operators.push_back(op);
    }
    const EquivalenceClasses classes = find_equivalence_classes(model, req);
    Decision decision;
    decision.ways = {static_cast<Recompute>(upto(2))};
    PlainPlan plan;
    plan.batch = {1 + upto(3), 1 + upto(1)};
    plan.blocks = decision.ways;
    plan.prefetch = prefetch;
    std::vector<PlannedUnit> units;
    for (int i = 0; i < operators; ++i) {
      const Recompute way = model.operators[i].block < 0 ? Recompute::None : decision.ways[0];
      const auto list = candidates(model.operators[i], req.device, req.space, way);
      plan.choices.emplace_back();
      decision.choices.push_back(
          list.empty() ? -1 : static_cast<int>(upto(static_cast<int64_t>(list.size()) - 1)));
      if (list.empty()) continue;
      const Candidate& c = list[decision.choices.back()];
      plan.choices.back() = {c.mode, c.granularity, c.sharded_slices, c.split};
      units.push_back({std::to_string(i), {i}, {{i, i}}, 1});
    }
    const auto phases = phase_bytes(model, req, classes, decision, plan.batch);
    const Step step = step_of(model, req, plan, units, {1e-5, 1e-8}, lanes);
    const PlayedStep played = play(step, upto(1000));
    CHECK(largest_peak(step) >= *std::max_element(phases.begin(), phases.end()));
    CHECK(largest_peak(step) >= played.peak_bytes);
    CHECK(played.peak_bytes >= state_of(step));
  }
}

}  // namespace

int main() {
  units_pay_one_latency();
  offloaded_parts_rest_on_the_host();
  offloaded_slices_rest_on_the_host();
  slices_are_units();
  gradients_wait_for_a_sum_unless_they_are_in_slices();
  slices_of_convolutions_have_terms_and_copies();
  slices_in_16_bits_are_summed_in_float();
  replicated_slices_are_cast_one_at_a_time();
  means_are_cast_to_the_dtype_in_which_they_are_kept();
  small_tensors_are_sent_in_a_buffer();
  curve_stays_below_the_largest_peak();
  return report("test_step_of_plan");
}
