#include "search/branch/branch_and_bound.hpp"
#include "search/knapsack/solve.hpp"

namespace osdp::search {

// The paper's Algorithm 1: every batch size from 1 until nothing fits, operators in the order given.
void BranchAndBound::depth_first() {
  std::vector<Batch> batches = request_.batches;
  for (int64_t b = 1; request_.batches.empty() && b <= classes_.most_batch; ++b) batches.push_back({b, 1});
  for (const Batch& batch : batches) {
    Problem problem;
    problem.limit_bytes = request_.limit_bytes;
    std::vector<int> operators(model_.operators.size(), -1);
    for (const EquivalenceClass& cls : classes_.classes) {
      for (const auto& instance : cls.instances) {
        problem.limit_bytes -= cls.slots[0].saved(batch.size);
        if (!cls.slots[0].candidates[0].empty())
          operators[instance[0]] = static_cast<int>(&cls - &classes_.classes[0]);
      }
    }
    for (size_t i = 0; i < operators.size(); ++i) {
      if (operators[i] < 0) continue;
      auto& options = problem.operators.emplace_back();
      problem.names.push_back(model_.operators[i].name);
      for (const Candidate& c : classes_.classes[operators[i]].slots[0].candidates[0]) {
        options.push_back({batch.accumulation * c.communication_ps + c.optimizer_ps, c.state_bytes});
      }
    }
    Solution s;
    s.status = problem.limit_bytes < 0 ? Status::Infeasible : Status::Optimal;  // before any choice
    if (problem.limit_bytes >= 0 && !problem.operators.empty())
      s = solve_dfs(problem, rest_of_budget(), request_.smallest_first);
    best_.leaves++;
    best_.nodes += s.statistics.nodes;
    watch_.ask();
    if (s.status == Status::Feasible) gave_up_ = true;
    if (s.status == Status::Infeasible && request_.batches.empty()) return;
    if (s.choices.size() == problem.operators.size() && s.status != Status::Infeasible) {
      FixedNode leaf;
      leaf.time_ps = batch.accumulation * classes_.compute_ps(batch.size) + s.time_ps;
      leaf.decision.ways.assign(model_.blocks.size(), Recompute::None);
      leaf.decision.choices.assign(operators.size(), -1);
      size_t next = 0;
      for (size_t i = 0; i < operators.size(); ++i) {
        if (operators[i] >= 0) leaf.decision.choices[i] = s.choices[next++];
      }
      accept(leaf, batch);
    }
    if (watch_.stopped()) {
      gave_up_ = true;
      return;
    }
  }
}

}  // namespace osdp::search
