#include "search/certificate/plan_certificate.hpp"

#include <algorithm>
#include <map>

#include "search/certificate/knapsack_certificate.hpp"
#include "search/certificate/option_cost.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {
namespace {

// Everything that determines the costs of an operator's options.
std::vector<int64_t> sizes_of(const Operator& op) {
  std::vector<int64_t> sizes{op.split_tensor, op.out_features, op.in_features, op.calls, op.places};
  for (const Tensor& t : op.tensors)
    sizes.insert(sizes.end(),
                 {t.rows, t.row_bytes, t.trainable, t.shardable, t.compute_row_bytes, t.reduce_row_bytes});
  return sizes;
}

class Checker {
 public:
  Checker(const Model& model, const Request& request, const PlainPlan& plan)
      : model_(model), request_(request), plan_(plan), members_(model.blocks.size()) {
    validate(model);
    validate(request);
    validate(model, plan);
    for (size_t i = 0; i < model.operators.size(); ++i) {
      if (model.operators[i].block >= 0) members_[model.operators[i].block].push_back(i);
    }
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
    check_totals(ways);
  }

  // Looks up the costs of the plan's choices; returns an empty string or what is wrong.
  std::string find() {
    for (size_t b = 0; b < plan_.blocks.size(); ++b) {
      if (std::find(request_.recompute.begin(), request_.recompute.end(), plan_.blocks[b]) ==
              request_.recompute.end() &&
          !members_[b].empty()) {
        return "block '" + model_.blocks[b].name + "' is treated in a way that this search does not know";
      }
    }
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const auto& list = costs_[static_cast<int>(way(i))][i];
      PlainPlan::Choice choice = plan_.choices[i];
      if (choice.mode == Mode::NoShard) choice.sharded_slices = 0;
      const auto at =
          std::find_if(list.begin(), list.end(), [&](const OptionCost& x) { return x.choice == choice; });
      const OptionCost* match = at == list.end() ? nullptr : &*at;
      if (match == nullptr && !list.empty()) {
        return "operator '" + model_.operators[i].name + "': its choice is not among those of this search";
      }
      chosen_.push_back(match);
      if (match != nullptr) transient_ = std::max(transient_, match->transient_bytes);
    }
    return "";
  }

  int128 time() const {
    int128 sum = fixed_time();
    for (const OptionCost* c : chosen_) {
      if (c != nullptr) sum += step_time(*c);
    }
    for (size_t b = 0; b < members_.size(); ++b) {
      if (plan_.blocks[b] != Recompute::None) sum += again_time(b);
    }
    return sum;
  }

  int128 memory(int phase) const {
    int128 sum = always();
    for (size_t i = 0; i < chosen_.size(); ++i) sum += of_operator(i, phase, way(i), chosen_[i]);
    for (size_t b = 0; b < members_.size(); ++b) sum += of_block(b, phase, plan_.blocks[b]);
    return sum;
  }

  int128 bound(const std::vector<PhasePrice>& prices, int64_t denominator) const {
    int128 sum = denominator * fixed_time();
    for (const PhasePrice& p : prices)
      sum -= static_cast<int128>(p.numerator) * (request_.limit_bytes - always());
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      if (model_.operators[i].block < 0) sum += cheapest(i, Recompute::None, prices, denominator);
    }
    for (size_t b = 0; b < members_.size(); ++b) {
      if (members_[b].empty()) continue;
      int128 least = 0;
      bool first = true;
      for (Recompute r : request_.recompute) {
        int128 cost = 0;
        if (r != Recompute::None) cost += denominator * again_time(b);
        for (const PhasePrice& p : prices) cost += p.numerator * of_block(b, p.phase, r);
        for (size_t i : members_[b]) cost += cheapest(i, r, prices, denominator);
        if (first || cost < least) least = cost;
        first = false;
      }
      sum += least;
    }
    return sum / denominator + (sum % denominator > 0);
  }

 private:
  // No plan of this batch may take more than 2^61 ps or bytes, so that prices times totals fit 128 bits.
  void check_totals(const std::vector<Recompute>& ways) const {
    int128 time = fixed_time(), bytes = always() + static_cast<int128>(request_.buffers) * kMostBytes;
    for (size_t b = 0; b < members_.size(); ++b) {
      time += again_time(b);
      bytes += static_cast<int128>(model_.blocks[b].input_bytes_per_sample) * plan_.batch.size;
    }
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const Operator& op = model_.operators[i];
      int128 longest = 0, most = 0;
      for (Recompute r : ways) {
        for (const OptionCost& c : costs_[static_cast<int>(r)][i]) {
          longest = std::max(longest, step_time(c));
          most = std::max<int128>(
              most, static_cast<int128>(c.state_bytes) + c.kept_bytes + c.held_bytes + c.own_phase_bytes);
        }
      }
      time += longest;
      bytes += most +
               static_cast<int128>(op.saved_bytes_per_sample + op.work_bytes_per_sample) * plan_.batch.size +
               op.saved_bytes_fixed + op.work_bytes_fixed;
    }
    if (time > kLargestSum || bytes > kLargestSum)
      throw InvalidProblem("a total of one step of this batch overflows 2^61 (bytes or ps)");
  }
  Recompute way(size_t i) const {
    const int block = model_.operators[i].block;
    return block < 0 ? Recompute::None : plan_.blocks[block];
  }
  int128 step_time(const OptionCost& c) const {
    return static_cast<int128>(plan_.batch.accumulation) * c.communication_ps + c.optimizer_ps;
  }
  int128 again_time(size_t b) const {
    int128 sum = 0;
    for (size_t i : members_[b]) {
      const Operator& op = model_.operators[i];
      sum += rounded_ps(op.recompute_s_per_sample * request_.device.recompute_slowdown, op.name);
    }
    return sum * plan_.batch.size * plan_.batch.accumulation;
  }
  int128 fixed_time() const {
    int128 sum = 0;
    for (const Operator& op : model_.operators) {
      sum += static_cast<int128>(rounded_ps(op.compute_s_per_sample, op.name)) * plan_.batch.size +
             rounded_ps(op.compute_s_fixed, op.name);
    }
    return sum * plan_.batch.accumulation;
  }
  // Memory in every phase, including the reserve for transients.
  int128 always() const {
    if (request_.space.cost == Cost::Paper) return 0;
    int128 sum = static_cast<int128>(model_.input_bytes_per_sample) * plan_.batch.size + model_.buffer_bytes;
    if (request_.device.ranks == 1) return sum;
    sum += averaging_cost_bytes(model_, request_, plan_.batch.accumulation > 1);
    return sum + static_cast<int128>(request_.buffers) * std::max(transient_, request_.least_transient_bytes);
  }
  int128 of_block(size_t b, int phase, Recompute r) const {
    if (r == Recompute::None || members_[b].empty() || phase < static_cast<int>(members_[b].front()))
      return 0;
    return static_cast<int128>(model_.blocks[b].input_bytes_per_sample) * plan_.batch.size;
  }
  int128 of_operator(size_t i, int phase, Recompute r, const OptionCost* c) const {
    const Operator& op = model_.operators[i];
    const int128 saved =
        static_cast<int128>(op.saved_bytes_per_sample) * plan_.batch.size + op.saved_bytes_fixed;
    const int128 state = c == nullptr ? 0 : c->state_bytes;
    if (phase < 0) return state + saved;
    if (static_cast<int>(i) > phase) return state;  // its backward is over
    int128 sum = c == nullptr ? 0 : state - c->gradient_bytes + c->kept_bytes;
    if (c != nullptr && plan_.batch.accumulation > 1) sum += c->gradient_bytes;
    if (static_cast<int>(i) == phase) {
      sum += static_cast<int128>(op.work_bytes_per_sample) * plan_.batch.size + op.work_bytes_fixed;
      if (c != nullptr) sum += c->own_phase_bytes;
    }
    const auto inside = [&] {
      const auto& m = members_[op.block];
      return static_cast<int>(m.front()) <= phase && phase <= static_cast<int>(m.back());
    };
    if (r == Recompute::None || inside()) sum += saved;
    if (r == Recompute::Hold && c != nullptr && inside()) sum += c->held_bytes;
    return sum;
  }
  int128 cheapest(size_t i, Recompute r, const std::vector<PhasePrice>& prices, int64_t denominator) const {
    const auto& list = costs_[static_cast<int>(r)][i];
    int128 least = 0;
    bool first = true;
    const auto consider = [&](const OptionCost* c) {
      int128 cost = c == nullptr ? 0 : denominator * step_time(*c);
      for (const PhasePrice& p : prices) cost += p.numerator * of_operator(i, p.phase, r, c);
      if (first || cost < least) least = cost;
      first = false;
    };
    if (list.empty()) consider(nullptr);
    for (const OptionCost& c : list) {
      if (c.transient_bytes <= transient_) consider(&c);
    }
    return least;
  }

  const Model& model_;
  const Request& request_;
  const PlainPlan& plan_;
  std::vector<std::vector<size_t>> members_;  // by block
  std::vector<std::vector<OptionCost>> costs_[3];
  std::vector<const OptionCost*> chosen_;
  int64_t transient_ = 0;
};

std::string prices_problem(const Model& model, const Request& request, const std::vector<PhasePrice>& prices,
                           int64_t denominator) {
  // Totals are at most 2^61 (Checker::check_totals): 2^40 x 2^61 ps + 64 x 2^56 x 2^61 bytes are within 128
  // bits.
  if (denominator < 1 || denominator > (int64_t{1} << 40)) return "the prices' denominator is not in 1..2^40";
  if (prices.size() > 64) return "more than 64 prices";
  for (const PhasePrice& p : prices) {
    if (p.numerator < 0 || p.numerator > (int64_t{1} << 56)) return "a price is not in 0..2^56";
    // Only quantities bounded by the limit may have a price: every single phase or, with the paper's costs,
    // the sum over the whole step. If memory is a maximum over phases, the limit does not bound that sum.
    const bool a_phase = p.phase >= 0 && p.phase < static_cast<int>(model.operators.size());
    if (request.paper() ? p.phase != -1 : !a_phase) {
      return "a price of phase " + decimal(p.phase) + ", which is none that the limit bounds";
    }
  }
  return "";
}

}  // namespace

std::vector<int64_t> plan_lower_bounds(const Model& model, const Request& request, const PlainPlan& plan,
                                       const std::vector<std::vector<PhasePrice>>& alternatives,
                                       int64_t denominator) {
  for (const auto& prices : alternatives) {
    const std::string bad = prices_problem(model, request, prices, denominator);
    if (!bad.empty()) throw InvalidProblem(bad);
  }
  Checker checker(model, request, plan);
  const std::string wrong = checker.find();
  if (!wrong.empty()) throw InvalidProblem(wrong);
  std::vector<int64_t> bounds;
  for (const auto& prices : alternatives)
    bounds.push_back(
        static_cast<int64_t>(std::clamp<int128>(checker.bound(prices, denominator), 0, kLargestSum)));
  return bounds;
}

std::string check_plan(const Model& model, const Request& request, const PlainPlan& plan,
                       const PlanClaims& claims) try {
  const std::string bad = prices_problem(model, request, claims.prices, claims.denominator);
  if (!bad.empty()) return bad;
  Checker checker(model, request, plan);
  const std::string wrong = checker.find();
  if (!wrong.empty()) return wrong;
  if (checker.time() != claims.time_ps) {
    return "a step of the plan takes " + decimal(checker.time()) + " ps, not " + decimal(claims.time_ps);
  }
  int128 most = 0;
  if (request.space.cost == Cost::Paper) {
    most = checker.memory(-1);
  } else {
    for (size_t j = 0; j < model.operators.size(); ++j)
      most = std::max(most, checker.memory(static_cast<int>(j)));
  }
  if (most != claims.memory_bytes) {
    return "the largest phase holds " + decimal(most) + " bytes, not " + decimal(claims.memory_bytes);
  }
  if (most > request.limit_bytes) {
    return "the largest phase holds " + decimal(most) + " bytes, over the limit of " +
           decimal(request.limit_bytes);
  }
  if (claims.lower_bound_ps > claims.time_ps) return "the lower bound is above the time";
  const int128 proven = checker.bound(claims.prices, claims.denominator);
  if (claims.lower_bound_ps > std::max<int128>(proven, 0)) {
    return "the prices prove " + decimal(proven) + " ps only, not " + decimal(claims.lower_bound_ps);
  }
  return "";
} catch (const InvalidProblem& e) {
  return e.what();
}

}  // namespace osdp::search
