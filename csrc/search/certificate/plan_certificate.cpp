#include "search/certificate/plan_certificate.hpp"

#include <algorithm>
#include <bit>
#include <map>

#include "search/certificate/bound_cost.hpp"
#include "search/certificate/knapsack_certificate.hpp"
#include "search/certificate/option_cost.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {
namespace {

constexpr int128 kParts = StepShares::kWhole;  // times are in these parts of a picosecond

// Everything that determines the costs of an operator's options.
std::vector<int64_t> sizes_of(const Operator& op) {
  const StepPosition& at = op.position;
  std::vector<int64_t> sizes{op.split_tensor,
                             op.out_features,
                             op.in_features,
                             op.calls,
                             op.places,
                             op.look_ups,
                             op.transposed,
                             op.convolution,
                             op.convolution ? op.work_bytes_fixed : 0,
                             op.convolution ? op.backward_work_bytes_fixed : 0,
                             op.convolution ? op.waiting_gradient_bytes : 0,
                             at.latency,
                             at.forward_gathers,
                             at.gathered_again,
                             at.end_unknown,
                             at.first,
                             at.ends_forward_bytes,
                             at.lets_end_bytes,
                             at.ends_forward_gathers,
                             at.lets_end_gathers,
                             at.slice_calls,
                             at.recomputed_last,
                             at.lets_any,
                             at.lets_slice_bytes,
                             at.left_phases,
                             at.sees_left};
  for (const auto& [number, seconds] : op.slices_s)
    sizes.insert(sizes.end(), {number, std::bit_cast<int64_t>(seconds)});
  for (const Tensor& t : op.tensors)
    sizes.insert(sizes.end(), {t.rows, t.row_bytes, t.trainable, t.shardable, t.compute_row_bytes,
                               t.reduce_row_bytes, t.item_bytes});
  return sizes;
}

class Checker {
 public:
  Checker(const Model& model, const Request& request)
      : model_(model), request_(request), members_(model.blocks.size()) {
    validate(model);
    validate(request);
    if (!request.paper() && !request.space.shares) throw InvalidProblem("a bound without shares");
    for (size_t i = 0; i < model.operators.size(); ++i) {
      const Operator& op = model.operators[i];
      if (op.block >= 0) members_[op.block].push_back(i);
    }
    for (size_t i = 0; i < model.operators.size(); ++i) again_.push_back(computation(i, 1, 1));
    std::vector<Recompute> ways = request.recompute;
    if (std::find(ways.begin(), ways.end(), Recompute::None) == ways.end()) ways.push_back(Recompute::None);
    for (Recompute r : ways) {
      std::map<std::vector<int64_t>, size_t> known;  // equal operators have equal costs
      auto& costs = costs_[static_cast<int>(r)];
      for (size_t i = 0; i < model.operators.size(); ++i) {
        const auto [at, fresh] = known.try_emplace(sizes_of(model.operators[i]), i);
        costs.push_back(fresh ? option_costs(model.operators[i], request, r) : costs[at->second]);
      }
    }
    ways_ = std::move(ways);
  }

  // The costs of the plan's choices; throws InvalidProblem if one is not in the search space.
  std::vector<const OptionCost*> chosen(const PlainPlan& plan) const {
    validate(model_, plan);
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
      const auto& known = request_.recompute;
      if (!members_[b].empty() && std::find(known.begin(), known.end(), plan.blocks[b]) == known.end())
        throw InvalidProblem("block '" + model_.blocks[b].name +
                             "' is treated in a way that this search does not know");
    }
    std::vector<const OptionCost*> chosen;
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const auto& list = costs_[static_cast<int>(way(plan, i))][i];
      PlainPlan::Choice choice = plan.choices[i];
      if (choice.mode == Mode::NoShard) choice.sharded_slices = 0;
      const auto at =
          std::find_if(list.begin(), list.end(), [&](const OptionCost& x) { return x.choice == choice; });
      if (at == list.end() && !list.empty())
        throw InvalidProblem("operator '" + model_.operators[i].name +
                             "': its choice is not among those of this search");
      chosen.push_back(at == list.end() ? nullptr : &*at);
    }
    return chosen;
  }

  // In parts of a picosecond.
  int128 time(const PlainPlan& plan) const {
    const BatchSizes all = request_.paper() ? BatchSizes{} : request_.micro_batches();
    int128 sum = fixed_time(plan.batch, all.least, all.most);
    for (const OptionCost* c : chosen(plan)) {
      if (c != nullptr) sum += step_time(*c, plan.batch);
    }
    for (size_t b = 0; b < members_.size(); ++b) {
      if (plan.blocks[b] != Recompute::None) sum += again_time(b, plan.batch);
    }
    return sum;
  }

  // With Cost::Paper.
  int128 memory(const PlainPlan& plan) const {
    int128 sum = 0;
    const auto costs = chosen(plan);
    for (size_t i = 0; i < costs.size(); ++i) sum += of_operator(i, -1, way(plan, i), costs[i], plan.batch);
    return sum;
  }

  // For steps of this batch, in parts of a picosecond x denominator, by a function that is linear in the size
  // of the micro-batch from `least` to `most`.
  int128 bound(const std::vector<PhasePrice>& prices, int64_t denominator, Batch batch, int64_t least_size,
               int64_t most_size) const {
    check_totals(batch);
    int128 sum = denominator * fixed_time(batch, least_size, most_size);
    for (const PhasePrice& p : prices) sum -= kParts * p.numerator * (limit() - always(batch));
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      if (model_.operators[i].block < 0) sum += cheapest(i, Recompute::None, prices, denominator, batch);
    }
    for (size_t b = 0; b < members_.size(); ++b) {
      if (members_[b].empty()) continue;
      int128 least = 0;
      bool first = true;
      for (Recompute r : request_.recompute) {
        int128 cost = 0;
        if (r != Recompute::None) cost += denominator * again_time(b, batch);
        for (const PhasePrice& p : prices) cost += kParts * p.numerator * of_block(b, p.phase, r, batch);
        for (size_t i : members_[b]) cost += cheapest(i, r, prices, denominator, batch);
        if (first || cost < least) least = cost;
        first = false;
      }
      sum += least;
    }
    return sum;
  }

  // Whether a total of a step of this batch is above 2^61 (bytes or ps), so that it is no plan.
  bool overflows(Batch batch) const {
    const int128 size = batch.size;
    int128 time = fixed_time(batch, batch.size, batch.size) / kParts, bytes = always(batch);
    for (size_t b = 0; b < members_.size(); ++b) {
      time += again_time(b, batch) / kParts;
      bytes += in_flight() * model_.blocks[b].input_bytes_per_sample * size;
    }
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const Operator& op = model_.operators[i];
      int128 longest = 0, most = 0;
      for (Recompute r : ways_) {
        for (const OptionCost& c : costs_[static_cast<int>(r)][i]) {
          longest = std::max(longest, step_time(c, batch) / kParts);
          most = std::max<int128>(most, static_cast<int128>(c.state_bytes) + c.kept_bytes + c.held_bytes +
                                            c.own_phase_bytes + c.left_bytes);
        }
      }
      time += longest;
      bytes += most + in_flight() * (size * op.saved_bytes_per_sample + op.saved_bytes_fixed) +
               size * op.work_bytes_per_sample + op.work_bytes_fixed;
    }
    return time > kLargestSum || bytes > kLargestSum;
  }

 private:
  // A plan's largest peak leaves a hundredth of the limit to kernel libraries (docs/search.md, Phases).
  int64_t limit() const {
    const bool of_peak = !request_.paper() && !request_.moves_nothing();
    return request_.limit_bytes - (of_peak ? request_.limit_bytes / 100 : 0);
  }
  // Prices times totals fit 128 bits: 2^10 x (2^40 x 2^61 ps + 24 x 2^46 x 2^61 bytes).
  void check_totals(Batch batch) const {
    if (overflows(batch))
      throw InvalidProblem("a total of one step of this batch overflows 2^61 (bytes or ps)");
  }
  static BoundComputation paper_computation(const Operator& op) {
    return {kParts * rounded_ps(op.compute_s_fixed, op.name),
            kParts * rounded_ps(op.compute_s_per_sample, op.name)};
  }
  Recompute way(const PlainPlan& plan, size_t i) const {
    const int block = model_.operators[i].block;
    return block < 0 ? Recompute::None : plan.blocks[block];
  }
  int128 step_time(const OptionCost& c, Batch batch) const {
    return batch.accumulation * c.micro_batch + kParts * c.optimizer_ps;
  }
  int128 again_time(size_t b, Batch batch) const {
    int128 sum = 0;
    for (size_t i : members_[b]) sum += again_[i].again_fixed + again_[i].again_per_sample * batch.size;
    return sum * batch.accumulation;
  }
  BoundComputation computation(size_t i, int64_t least, int64_t most) const {
    const Operator& op = model_.operators[i];
    return request_.paper() ? paper_computation(op) : bound_computation(op, request_, least, most);
  }
  int128 fixed_time(Batch batch, int64_t least, int64_t most) const {
    int128 sum = 0;
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const BoundComputation c = computation(i, least, most);
      sum += c.per_sample * batch.size + c.fixed;
    }
    return sum * batch.accumulation;
  }
  // Micro-batches whose activations a stage of a pipeline holds.
  int128 in_flight() const { return request_.space.stage.in_flight; }
  // Memory in every phase.
  int128 always(Batch batch) const {
    if (request_.paper()) return 0;
    return in_flight() * static_cast<int128>(model_.input_bytes_per_sample) * batch.size +
           model_.buffer_bytes;
  }
  int128 of_block(size_t b, int phase, Recompute r, Batch batch) const {
    if (r == Recompute::None || members_[b].empty()) return 0;
    const bool over = phase < static_cast<int>(members_[b].front());
    return (in_flight() - (over ? 1 : 0)) * model_.blocks[b].input_bytes_per_sample * batch.size;
  }
  int128 of_operator(size_t i, int phase, Recompute r, const OptionCost* c, Batch batch) const {
    const Operator& op = model_.operators[i];
    const int128 saved = static_cast<int128>(op.saved_bytes_per_sample) * batch.size + op.saved_bytes_fixed;
    const int128 state = c == nullptr ? 0 : c->state_bytes;
    if (phase < 0) return state + saved;
    const int128 others = r == Recompute::None ? (in_flight() - 1) * saved : 0;
    if (static_cast<int>(i) > phase) {  // its backward is over
      const bool left = c != nullptr && static_cast<int64_t>(i) <= phase + op.position.left_phases;
      return state + others + (left ? c->left_bytes : 0);
    }
    int128 sum = c == nullptr ? 0 : state - c->gradient_bytes + c->kept_bytes;
    sum += others;
    if (c != nullptr && batch.accumulation > 1) sum += c->gradient_bytes;
    if (static_cast<int>(i) == phase) {
      sum += static_cast<int128>(op.work_bytes_per_sample) * batch.size + op.work_bytes_fixed;
      if (c != nullptr)
        sum += c->own_phase_bytes - c->late_bytes - (batch.accumulation > 1 ? c->summed_bytes : 0);
    }
    const auto inside = [&] {
      const auto& m = members_[op.block];
      return static_cast<int>(m.front()) <= phase && phase <= static_cast<int>(m.back());
    };
    if (r == Recompute::None || inside()) sum += saved;
    if (r == Recompute::Hold && c != nullptr && inside()) sum += c->held_bytes;
    return sum;
  }
  int128 cheapest(size_t i, Recompute r, const std::vector<PhasePrice>& prices, int64_t denominator,
                  Batch batch) const {
    const auto& list = costs_[static_cast<int>(r)][i];
    int128 least = 0;
    bool first = true;
    const auto consider = [&](const OptionCost* c) {
      int128 cost = c == nullptr ? 0 : denominator * step_time(*c, batch);
      for (const PhasePrice& p : prices) cost += kParts * p.numerator * of_operator(i, p.phase, r, c, batch);
      if (first || cost < least) least = cost;
      first = false;
    };
    if (list.empty()) consider(nullptr);
    for (const OptionCost& c : list) consider(&c);
    return least;
  }

  const Model& model_;
  const Request& request_;
  std::vector<std::vector<size_t>> members_;  // by block
  std::vector<BoundComputation> again_;       // by operator; its `again` holds for all batches
  std::vector<Recompute> ways_;
  std::vector<std::vector<OptionCost>> costs_[3];
};

void check_prices(const Model& model, const Request& request, const std::vector<PhasePrice>& prices) {
  if (prices.size() > 24) throw InvalidProblem("more than 24 prices of one interval of batches");
  for (const PhasePrice& p : prices) {
    if (p.numerator < 0 || p.numerator > (int64_t{1} << 46))
      throw InvalidProblem("a price is not in 0..2^46");
    // Only quantities bounded by the limit may have a price: every single phase or, with the paper's costs,
    // the sum over the whole step. If memory is a maximum over phases, the limit does not bound that sum.
    const bool a_phase = p.phase >= 0 && p.phase < static_cast<int>(model.operators.size());
    if (request.paper() ? p.phase != -1 : !a_phase)
      throw InvalidProblem("a price of phase " + decimal(p.phase) + ", which is none that the limit bounds");
  }
}

// Throws InvalidProblem unless the intervals contain every batch of the request.
void check_covered(const Checker& checker, const Request& request, const std::vector<BatchProof>& proof) {
  const auto missing = [](Batch b) {
    return InvalidProblem("the proof leaves out plans of batch size " + decimal(b.size) + ", accumulation " +
                          decimal(b.accumulation));
  };
  for (const Batch& b : request.batches) {
    if (std::none_of(proof.begin(), proof.end(), [&](const BatchProof& p) {
          return p.least.accumulation == b.accumulation && p.least.size <= b.size && b.size <= p.most.size;
        }))
      throw missing(b);
  }
  if (!request.batches.empty()) return;
  int64_t next = 1;
  for (const BatchProof& p : proof) {  // ascending
    if (p.least.size > next || p.least.accumulation != 1) throw missing({next, 1});
    next = std::max(next, p.most.size + 1);
  }
  if (next <= kMostBatch && !checker.overflows({next, 1})) throw missing({next, 1});
}

}  // namespace

int64_t proven_bound_ps(const Model& model, const Request& request, int64_t samples,
                        const std::vector<BatchProof>& proof, int64_t denominator) {
  if (denominator < 1 || denominator > (int64_t{1} << 40))
    throw InvalidProblem("the prices' denominator is not in 1..2^40");
  if (samples < 1) throw InvalidProblem("no samples");
  const Checker checker(model, request);
  check_covered(checker, request, proof);
  int128 least = kLargestSum;
  for (const BatchProof& p : proof) {
    check_prices(model, request, p.prices);
    if (p.least.size < 1 || p.least.accumulation < 1 || p.most.size < p.least.size ||
        p.most.size > kMostBatchAsked || p.most.accumulation != p.least.accumulation ||
        p.least.accumulation > kMostAccumulation)
      throw InvalidProblem("a proof of no batches");
    for (const Batch& end : {p.least, p.most}) {
      const int128 ps =
          checker.bound(p.prices, denominator, end, p.least.size, p.most.size) / kParts / denominator;
      least = std::min(least, std::clamp<int128>(ps, 0, kLargestSum) * samples / end.samples());
    }
  }
  return static_cast<int64_t>(least);
}

std::string check_plan(const Model& model, const Request& request, const PlainPlan& plan, int64_t step_ps,
                       int64_t peak_bytes) try {
  const Checker checker(model, request);
  checker.chosen(plan);
  if (!request.paper()) return "";
  const int128 time = checker.time(plan) / kParts, bytes = checker.memory(plan);
  if (time != step_ps) return "a step of the plan takes " + decimal(time) + " ps, not " + decimal(step_ps);
  if (bytes != peak_bytes)
    return "a step of the plan holds " + decimal(bytes) + " bytes, not " + decimal(peak_bytes);
  if (bytes > request.limit_bytes)
    return "a step of the plan holds " + decimal(bytes) + " bytes, over the limit of " +
           decimal(request.limit_bytes);
  return "";
} catch (const InvalidProblem& e) {
  return e.what();
}

int64_t bound_of_plan_ps(const Model& model, const Request& request, const PlainPlan& plan) {
  return static_cast<int64_t>(Checker(model, request).time(plan) / kParts);
}

}  // namespace osdp::search
