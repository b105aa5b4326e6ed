// Thousands of operators of which no two are alike: a plan that fits is known at once, and better ones
// follow.
#include "check.hpp"
#include "search/branch/schedule.hpp"

using namespace osdp::search;

namespace {

constexpr int kOperators = 1600;

Model distinct_operators(int per_block) {
  Model model;
  for (int i = 0; i < kOperators; ++i) {
    Operator op;
    op.name = "op" + std::to_string(i);
    op.out_features = 16 * (8 + (i * 7919) % 120), op.in_features = 64 + 4 * i;
    op.tensors = {{op.out_features, 4 * op.in_features}, {op.out_features, 4}};
    op.split_tensor = 0;
    op.saved_bytes_per_sample = 2048 * op.in_features;
    op.compute_s_per_sample = 3e-10 * static_cast<double>(op.out_features * op.in_features);
    op.recompute_s_per_sample = op.compute_s_per_sample / 3;
    if (per_block > 0) {
      op.block = i / per_block;
      if (i % per_block == 0) model.blocks.push_back({"block", 2048 * op.in_features});
    }
    model.operators.push_back(op);
  }
  return model;
}

Request request_of(const Model& model, double share) {
  Request request;
  request.device.ranks = 8;
  request.device.all_gather = request.device.reduce_scatter = request.device.all_reduce = {1e-5, 1e-10};
  request.space.modes = {Mode::NoShard, Mode::ShardGradOp, Mode::FullShard};
  request.space.granularities = {2, 4, 8, 16};
  request.recompute = {Recompute::None, Recompute::Hold, Recompute::Regather};
  int64_t whole = 0;
  for (const Operator& op : model.operators) whole += 4 * op.tensors[0].bytes();
  request.limit_bytes = static_cast<int64_t>(share * static_cast<double>(whole));
  request.find_smallest = false;
  return request;
}

}  // namespace

int main() {
  for (const auto& [per_block, share] : {std::pair{0, 0.4}, {8, 0.135}}) {
    const Model model = distinct_operators(per_block);
    const Request request = request_of(model, share);
    Budget budget;
    // Reached in a second or two; by a clock that stops sooner, not always on a busy machine.
    budget.gap = 0.05, budget.time_limit_s = 100, budget.state_bytes = int64_t{256} << 20;
    const Schedule s = schedule(model, request, budget);
    CHECK(s.feasible);
    CHECK(s.peak_bytes <= request.limit_bytes);
    // The first plan that fits is the smallest one; it takes more than twice as long.
    const double per_sample = static_cast<double>(s.step_ps) * 1e-12 / static_cast<double>(s.batch.samples());
    CHECK(s.lower_bound_s_per_sample >= 0.95 * per_sample);
  }
  return report("test_many_operators");
}
