// Any bytes as a request to the planner: a model, what to search for, and a plan or a step for it. The first
// byte says how much is wrong with it: nothing, a little, or anything.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "search/certificate/plan_certificate.hpp"
#include "search/problem/problem.hpp"
#include "search/simulate/simulate.hpp"
#include "search/simulate/step_of_plan.hpp"

namespace osdp::search {

// Numbers drawn from bytes; zeros when these are used up.
class Draws {
 public:
  explicit Draws(std::span<const uint8_t> bytes) : bytes_(bytes) {
    const uint64_t level = below(4);
    odds_ = level <= 1 ? 0 : level == 2 ? 100 : 4;
  }

  uint64_t below(uint64_t n) {
    uint64_t v = 0;
    for (uint64_t most = 1; most < n; most <<= 8) v = v << 8 | byte();
    return v % n;
  }
  bool flip(uint64_t odds = 2) { return below(odds) == 0; }

  // From low to high; sometimes anything else.
  int64_t number(int64_t low, int64_t high) {
    if (odds_ == 0 || !flip(odds_))
      return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    constexpr int64_t strange[] = {-1,
                                   0,
                                   1,
                                   3,
                                   int64_t{1} << 31,
                                   int64_t{1} << 40,
                                   (int64_t{1} << 50) - 1,
                                   int64_t{1} << 50,
                                   int64_t{1} << 61,
                                   most,
                                   most - 1,
                                   -most - 1};
    const uint64_t which = below(std::size(strange) + 2);
    return which == 0 ? low - 1 : which == 1 ? high + 1 : strange[which - 2];
  }
  int code(int last) { return code(0, last); }
  int code(int low, int high) { return static_cast<int>(number(low, high)); }
  // Whole multiples of `unit` below `most`; sometimes anything else.
  double real(double unit, uint64_t most) {
    if (odds_ == 0 || !flip(odds_)) return unit * static_cast<double>(below(most));
    constexpr double strange[] = {-1e-9,
                                  -0.0,
                                  1e-300,
                                  1,
                                  999999.9,
                                  1e6,
                                  1e300,
                                  -1e300,
                                  std::numeric_limits<double>::infinity(),
                                  std::numeric_limits<double>::quiet_NaN()};
    return strange[below(std::size(strange))];
  }

 private:
  uint8_t byte() { return at_ < bytes_.size() ? bytes_[at_++] : 0; }
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
  uint64_t odds_ = 0;  // 1 in so many numbers is strange; 0: none
};

inline Operator draw_operator(Draws& d) {
  Operator op;
  for (int64_t n = d.below(3); n > 0; --n) {
    Tensor t{d.number(0, 12), d.number(1, 8), !d.flip(8), !d.flip(8)};
    if (t.row_bytes >= 1 && t.row_bytes <= 8) t.row_bytes *= 4;  // whole elements
    if (d.flip(4)) t.compute_row_bytes = t.row_bytes / 2, t.reduce_row_bytes = d.flip() ? t.row_bytes : 0;
    op.tensors.push_back(t);
  }
  if (!op.tensors.empty() && d.flip()) {
    op.split_tensor = d.code(0);
    op.out_features = op.tensors[0].rows = 2 * static_cast<int64_t>(1 + d.below(6));
    op.in_features = d.flip(20) ? d.number(0, 9) : op.tensors[0].row_bytes / 4;
  }
  op.calls = d.number(1, 2), op.places = d.number(1, 2);
  if (op.split_tensor >= 0 && d.flip(3)) op.look_ups = d.number(1, 1);
  op.saved_bytes_per_sample = d.number(0, 60), op.saved_bytes_fixed = d.number(0, 9);
  op.compute_s_per_sample = d.real(1e-9, 40), op.compute_s_fixed = d.real(1e-9, 9);
  op.recompute_s_per_sample = d.real(1e-9, 20), op.recompute_s_fixed = d.flip() ? d.real(1e-9, 5) : 0;
  return op;
}

inline Model draw_model(Draws& d) {
  Model model;
  model.input_bytes_per_sample = d.number(0, 20);
  model.buffer_bytes = d.number(0, 20);
  std::vector<Operator> shapes;
  for (uint64_t n = 1 + d.below(3); n > 0; --n) shapes.push_back(draw_operator(d));
  for (uint64_t n = d.below(4); n > 0; --n)
    model.blocks.push_back({"block" + std::to_string(n), d.number(0, 30)});
  int block = -1;
  for (uint64_t n = 0, all = d.below(8); n <= all; ++n) {
    Operator& op = model.operators.emplace_back(shapes[d.below(shapes.size())]);
    op.name = "op" + std::to_string(n);
    if (d.flip(3))
      block = d.code(-1, static_cast<int>(model.blocks.size()) - 1);  // also one that was left before
    op.block = block;
  }
  return model;
}

inline Request draw_request(Draws& d) {
  Request r;
  r.device.ranks = d.number(1, 8), r.device.hosts = d.flip(3) ? d.number(1, 4) : 1;
  if (r.device.hosts > 1 && !d.flip(4)) r.device.ranks = r.device.hosts % 32 * 2;
  for (Collective* c :
       {&r.device.all_gather, &r.device.reduce_scatter, &r.device.all_reduce, &r.device.between_hosts})
    *c = {d.real(1e-9, 40), d.real(1e-10, 30)};
  r.device.exposed = d.real(0.125, 16);
  r.device.optimizer_s_per_byte = d.real(1e-11, 20);
  if (d.flip(10)) r.space.cost = Cost::Paper;
  for (int mode = 0; mode < 4; ++mode) {
    if (!d.flip(3)) r.space.modes.push_back(static_cast<Mode>(d.flip(40) ? d.code(4) : mode));
  }
  for (uint64_t n = d.below(3); n > 0; --n) r.space.granularities.push_back(d.number(1, 4));
  r.space.optimizer.copies = d.number(0, 2);
  if (d.flip()) r.space.optimizer = {d.number(0, 1), d.number(0, 1024), d.number(0, 12), d.number(0, 8)};
  r.space.bucket_bytes = d.number(1, 200);
  r.space.slice_overhead_s = d.real(1e-9, 10);
  r.limit_bytes = d.number(0, 4000);
  for (uint64_t n = d.below(4); n > 0; --n) r.batches.push_back({d.number(1, 4), d.number(1, 3)});
  for (int way = 0; way < 3; ++way) {
    if (!d.flip(3)) r.recompute.push_back(static_cast<Recompute>(d.flip(40) ? d.code(3) : way));
  }
  if (r.paper() && !d.flip(5)) r.recompute = {Recompute::None};
  r.find_smallest = d.flip();
  r.depth_first = r.paper() ? d.flip() : d.flip(50);
  r.smallest_first = d.flip();
  if (!r.paper() && !d.flip(3)) {  // the objective is a bound
    r.space.shares = StepShares{d.number(0, 1024), d.number(0, 1024)};
  }
  if (d.flip(3)) {
    r.device.host = {{d.real(1e-9, 40), d.real(1e-10, 30)}, d.real(1e-11, 200)};
    r.space.modes.push_back(Mode::FullShardOffload);
    if (d.flip()) r.space.modes.push_back(Mode::HybridShardOffload);
  }
  return r;
}

// For a model with so many operators and blocks.
inline PlainPlan draw_plan(Draws& d, const Model& model) {
  PlainPlan plan;
  plan.batch = {d.number(1, 4), d.number(1, 3)};
  for (size_t i = 0; i < model.operators.size() + d.flip(50); ++i) {
    PlainPlan::Choice c;
    c.mode = static_cast<Mode>(d.code(3));
    if (c.mode != Mode::NoShard) c.sharded_slices = 1;
    if (d.flip(4)) c = {Mode::FullShard, d.number(1, 4), d.number(0, 4), static_cast<Split>(d.code(2))};
    plan.choices.push_back(c);
  }
  for (size_t b = 0; b < model.blocks.size() + d.flip(50); ++b)
    plan.blocks.push_back(static_cast<Recompute>(d.code(2)));
  for (PlainPlan::Choice& c : plan.choices)
    if (c.mode == Mode::FullShard && c.granularity == 1 && d.flip(4)) c.mode = Mode::FullShardOffload;
  return plan;
}

inline std::vector<BatchProof> draw_proof(Draws& d, const Model& model, Batch batch) {
  BatchProof proof{batch, batch, {}};
  if (d.flip(8)) proof.most.size = d.number(0, 7);
  for (uint64_t n = d.below(3); n > 0; --n)
    proof.prices.push_back({d.code(-1, static_cast<int>(model.operators.size()) - 1), d.number(0, 1 << 24)});
  return {proof};
}

inline std::vector<PlannedUnit> draw_units(Draws& d, const Model& model) {
  const int last = static_cast<int>(model.operators.size()) - 1;
  std::vector<PlannedUnit> units;
  for (int i = 0; i <= last; ++i) {
    PlannedUnit u{"unit" + std::to_string(i), {i}, {{i, i}}, d.number(1, 2)};
    if (d.flip(4) && i < last) u.operators.push_back(++i), u.calls.push_back({i, i});
    if (d.flip(10)) u.calls[0] = {d.code(last), d.code(last)};
    if (d.flip(30)) u.operators[0] = d.code(last);
    units.push_back(u);
  }
  return units;
}

inline Step draw_step(Draws& d) {
  Step step;
  const auto time = [&] { return LaneTime{d.number(0, 50), d.number(50, 90)}; };
  for (uint64_t n = d.below(3); n > 0; --n) step.blocks.push_back({d.flip(), d.number(0, 30)});
  const int last = static_cast<int>(d.below(5)), blocks = static_cast<int>(step.blocks.size());
  for (int i = 0; i <= last; ++i) {
    step.operators.push_back({"op" + std::to_string(i), d.number(0, 50), d.number(0, 50), d.number(0, 30),
                              d.number(0, 30), d.number(0, 30), d.number(0, 30), d.number(1, 3),
                              d.code(-1, blocks - 1)});
  }
  const auto members = [&] {
    std::vector<int> m;
    for (int i = d.code(last); i <= last && m.size() < 3; ++i) m.push_back(i);
    return m;
  };
  for (uint64_t n = d.below(4); n > 0; --n) {
    StepUnit u;
    u.name = "unit" + std::to_string(n), u.members = members();
    u.repeats = d.number(1, 3), u.keeps = d.flip(), u.slice = d.flip(4);
    u.gather = time(), u.reduce = time();
    u.full_bytes = d.number(0, 40), u.gradient_bytes = d.number(0, 40);
    u.kept_gradient_bytes = d.number(0, 40);
    for (int i = d.code(last); i <= last && u.calls.size() < 2; ++i)
      u.calls.push_back({i, d.flip() ? last : i});
    step.units.push_back(u);
  }
  for (uint64_t n = d.below(2); n > 0; --n)
    step.buckets.push_back({"bucket", members(), time(), d.number(0, 40)});
  step.accumulation = d.number(1, 3), step.prefetch = d.number(0, 3);
  step.held_bytes = d.number(0, 30), step.optimizer_ps = d.number(0, 30);
  return step;
}

// Knapsacks; some operators are alike.
inline Problem draw_problem(Draws& d) {
  Problem p;
  p.limit_bytes = d.number(0, 200);
  for (uint64_t n = d.below(9); n > 0; --n) {
    if (!p.operators.empty() && d.flip(3)) {
      p.operators.push_back(p.operators.back());
      continue;
    }
    auto& options = p.operators.emplace_back();
    for (uint64_t k = d.flip(100) ? 0 : 1 + d.below(4); k > 0; --k)
      options.push_back({d.number(0, 99), d.number(0, 60)});
  }
  return p;
}

}  // namespace osdp::search
