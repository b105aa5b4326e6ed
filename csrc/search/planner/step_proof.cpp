#include "search/planner/step_proof.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "search/problem/collective_time.hpp"
#include "search/problem/problem.hpp"
#include "search/problem/slices.hpp"
#include "search/problem/step_bound.hpp"

namespace osdp::search {
namespace {

constexpr int kMostRounds = 12;
constexpr int64_t kAllWork = 100 * StepProver::kWork;  // of all of them
// How often a range is divided at most, and as long as that does not raise the bound.
constexpr int kMostDivisions = 24, kFewDivisions = 8;
constexpr int64_t kAlikeSizes = 32;   // batches that differ by one part in so many are not divided
constexpr size_t kMostInherited = 8;  // plans of the range that a part is of
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kWhole = StepShares::kWhole;
constexpr int64_t kMostSlices = 17;  // gathered together: simulate/runtime_rules.hpp

double share(int64_t of_whole) { return static_cast<double>(of_whole) / static_cast<double>(kWhole); }

}  // namespace

StepProver::StepProver(Searches& searches, const Request& problem, int64_t limit_bytes, double gap,
                       int64_t part_work)
    : searches_(searches),
      problem_(problem),
      limit_bytes_(limit_bytes),
      gap_(gap),
      part_work_(part_work),
      work_(kAllWork) {
  find_sizes();
  find_knots();
}

// Where delays count, a transfer counts no more than it takes alone: up to a share of the compute form that
// depends on how much longer it takes beside computation. One is for transfers, one for latencies.
void StepProver::find_knots() {
  const Device& device = problem_.device;
  knots_ = {0, kWhole};
  if (!delays_count(device, problem_.space)) return;
  const CollectiveTime gather = Collectives(device).gather(Mode::FullShard);
  constexpr int64_t kBytes = int64_t{1} << 30;
  const auto add = [&](double alone_s, double more_s, double stolen) {
    if (alone_s <= 0 || more_s <= 0) return;
    const double beside = 1 + more_s / alone_s;
    const auto knot = static_cast<int64_t>((beside - 1) / (beside - std::min(1.0, stolen)) * kWhole);
    if (knot > 0 && knot < kWhole) knots_.push_back(knot);
  };
  add(gather.transfer_s(kBytes), gather.more_s(kBytes, device.delay, 0), device.stolen);
  add(gather.largest_latency_s(), gather.more_s(0, device.delay, 1), 0);
  std::sort(knots_.begin(), knots_.end());
  knots_.erase(std::unique(knots_.begin(), knots_.end()), knots_.end());
}

// Sizes of whole units, and of several slices of one operator.
void StepProver::find_sizes() {
  for (const Operator& op : searches_.planner().model().operators) {
    int64_t bytes = 0;
    for (const Tensor& t : op.tensors) bytes += t.compute_bytes();
    if (bytes > 0) sizes_.push_back(bytes);
    if (op.split_tensor < 0) continue;
    for (const int64_t g : problem_.space.granularities) {
      const Split split = split_of(op, g);
      if (split == Split::None) continue;
      const Slices slices(op, g, g, split);
      const int64_t slice = slices.bytes(op.tensors[op.split_tensor].compute_bytes(), slices.large);
      for (int64_t n = 1; n <= std::min(g, kMostSlices) && slice > 0; ++n) sizes_.push_back(n * slice);
    }
  }
  std::sort(sizes_.begin(), sizes_.end());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
}

Request bound_request(Request problem, StepShares shares, int64_t limit_bytes, GatherRange gather) {
  problem.space.shares = shares;
  problem.space.gather = gather;
  problem.limit_bytes = std::max<int64_t>(0, limit_bytes);
  return problem;
}

const EquivalenceClasses& StepProver::classes(const Range& range) {
  const auto known = classes_.find(range.times);
  if (known != classes_.end()) return known->second;
  const Request whole = bound_request(problem_, {0, kWhole}, limit_bytes_);
  return classes_.emplace(range.times, find_equivalence_classes(model(range), whole)).first->second;
}

Request StepProver::request_of(const Range& range, StepShares shares) const {
  Request request = bound_request(problem_, shares, limit_bytes_, range.gather);
  request.sizes = range.sizes;
  request.space.of_sizes = request.micro_batches();
  request.space.divided = range.divided;
  return request;
}

std::vector<Request> StepProver::requests_of(const Range& range) const {
  std::vector<Request> requests;
  const auto add = [&](StepShares shares) { requests.push_back(request_of(range, shares)); };
  add({0, 0});
  for (size_t k = 1; k < knots_.size(); ++k) add({knots_[k], 0});
  for (size_t k = 1; k < knots_.size(); ++k) add({0, knots_[k]});
  add({0, 0, kWhole}), add({0, 0, 0, kWhole}), add({0, 0, 0, 0, kWhole});
  return requests;
}

PlanLines StepProver::lines_in(const Range& range) {
  return {model(range), classes(range), requests_of(range)};
}

StepProver::Line StepProver::line_through(std::vector<double> value) const {
  const size_t knots = knots_.size() - 1;
  Line line;
  line.constant = value[0];
  for (double& v : value) v -= line.constant;
  for (size_t k = 1; k <= knots; ++k) line.forward[k] = value[k], line.backward[k] = value[knots + k];
  line.link = value[2 * knots + 1], line.averages = value[2 * knots + 2];
  line.reductions = value[2 * knots + 3];
  return line;
}

double StepProver::at(const Line& line, const StepShares& shares) const {
  const auto between = [&](const AtKnots& values, int64_t x) {
    size_t k = 1;
    while (k + 1 < knots_.size() && x > knots_[k]) ++k;
    const double part =
        static_cast<double>(x - knots_[k - 1]) / static_cast<double>(knots_[k] - knots_[k - 1]);
    return values[k - 1] + part * (values[k] - values[k - 1]);
  };
  return line.constant + between(line.forward, shares.forward) + between(line.backward, shares.backward) +
         line.link * share(shares.link) + line.averages * share(shares.averages) +
         line.reductions * share(shares.reductions);
}

std::pair<StepShares, double> StepProver::best_shares(const std::vector<Line>& lines) const {
  StepShares best;
  double highest = -1;
  const auto consider = [&](const StepShares& shares) {
    if (std::min({shares.forward, shares.backward, shares.link, shares.averages, shares.reductions}) < 0 ||
        std::max(shares.forward, shares.backward + shares.link + shares.averages + shares.reductions) >
            kWhole)
      return false;
    double lowest = std::numeric_limits<double>::infinity();
    for (const Line& line : lines) lowest = std::min(lowest, at(line, shares));
    if (lowest <= highest) return false;
    highest = lowest, best = shares;
    return true;
  };
  // Concave: a coarse grid, then finer ones around its best point.
  const auto some = [&](double Line::* form) {
    return std::any_of(lines.begin(), lines.end(), [&](const Line& l) { return l.*form > 0; }) ? 1 : 0;
  };
  const int64_t link = some(&Line::link), averages = some(&Line::averages),
                reductions = some(&Line::reductions);
  const int64_t steps = 16 >> (link + averages + reductions);
  for (int64_t f = 0; f <= steps; ++f)
    for (int64_t b = 0; b <= steps; ++b)
      for (int64_t l = 0; l <= link * (steps - b); ++l)
        for (int64_t a = 0; a <= averages * (steps - b - l); ++a)
          for (int64_t r = 0; r <= reductions * (steps - b - l - a); ++r)
            consider({f * kWhole / steps, b * kWhole / steps, l * kWhole / steps, a * kWhole / steps,
                      r * kWhole / steps});
  for (int64_t step = kWhole / steps / 2; step > 0;) {
    const StepShares center = best;
    bool higher = false;
    for (int64_t f = -1; f <= 1; ++f)
      for (int64_t b = -1; b <= 1; ++b)
        for (int64_t l = -link; l <= link; ++l)
          for (int64_t a = -averages; a <= averages; ++a)
            for (int64_t r = -reductions; r <= reductions; ++r)
              higher |=
                  consider({center.forward + f * step, center.backward + b * step, center.link + l * step,
                            center.averages + a * step, center.reductions + r * step});
    if (!higher) step /= 2;
  }
  return {best, highest};
}

std::vector<PairWeight> StepProver::pairs_in(const Range& range) const {
  std::vector<PairWeight> pairs;
  for (const Operator& op : model(range).operators) {
    const NeighbourPair& p = op.position.earlier;
    if (p.later_bytes == 0 || (p.earlier_bytes + p.later_bytes <= range.gather.most && !range.divided))
      continue;
    const PairWeight pair{p.earlier_bytes, p.later_bytes, 0};
    if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) pairs.push_back(pair);
  }
  return pairs;
}

void StepProver::Line::add(const Line& other, double weight) {
  constant += weight * other.constant, link += weight * other.link;
  averages += weight * other.averages, reductions += weight * other.reductions;
  for (size_t k = 0; k < kMostKnots; ++k)
    forward[k] += weight * other.forward[k], backward[k] += weight * other.backward[k];
}

StepProver::Line StepProver::PlanBound::with(const std::vector<PairWeight>& weights) const {
  Line sum = line;
  for (size_t k = 0; k < weights.size(); ++k) sum.add(pairs[k], share(weights[k].weight));
  return sum;
}

std::vector<StepProver::Line> StepProver::pairs_of(const Found& plan, const Range& range,
                                                   const std::vector<PairWeight>& pairs) {
  std::vector<Line> lines(pairs.size());
  if (pairs.empty()) return lines;
  const Model& model = this->model(range);
  std::vector<bool> sharded(model.operators.size()), kept(model.operators.size()),
      sliced(model.operators.size());
  for_each_choice(classes(range), plan.decision, [&](int i, const Candidate& c) {
    sharded[i] = c.granularity == 1 && traits(c.mode).sharded, kept[i] = traits(c.mode).kept;
    sliced[i] = c.granularity > 1;
  });
  const std::vector<Request> requests = requests_of(range);
  struct Taken {
    NeighbourPair pair;
    Recompute way;
    PairTaken taken;
    Line line;
  };
  std::vector<Taken> known;  // blocks are mostly equal
  const auto line_of = [&](const Operator& later, Recompute way, const PairTaken& taken) {
    for (const Taken& k : known)
      if (k.way == way && k.taken == taken && k.pair == later.position.earlier) return k.line;
    std::vector<double> values;
    for (const Request& request : requests)
      values.push_back(pair_bound_ps(later, request, way, taken, plan.batch.size) /
                       static_cast<double>(plan.batch.size));
    known.push_back({later.position.earlier, way, taken, line_through(std::move(values))});
    return known.back().line;
  };
  size_t earlier = 0;
  for (size_t i = 0; i < model.operators.size(); ++i) {
    const Operator& op = model.operators[i];
    if (const NeighbourPair& p = op.position.earlier; p.later_bytes > 0) {
      const auto at = std::find_if(pairs.begin(), pairs.end(), [&](const PairWeight& w) {
        return w.earlier_bytes == p.earlier_bytes && w.later_bytes == p.later_bytes;
      });
      const Recompute way = op.block < 0 ? Recompute::None : plan.decision.ways[op.block];
      const Operator& before = model.operators[earlier];
      const bool at_once =
          p.together || before.block < 0 || plan.decision.ways[before.block] == Recompute::None;
      const PairTaken taken{(sharded[earlier] && !kept[earlier]) + (sharded[i] && !kept[i]),
                            ((sharded[earlier] || sliced[earlier]) && at_once) + sharded[i]};
      if (at != pairs.end()) lines[static_cast<size_t>(at - pairs.begin())].add(line_of(op, way, taken), 1);
    }
    if (op.position.later.later_bytes > 0) earlier = i;
  }
  return lines;
}

std::pair<StepShares, double> StepProver::best_weights(const std::vector<PlanBound>& plans, StepShares shares,
                                                       std::vector<PairWeight>& weights) const {
  const auto lowest = [&](const std::vector<PairWeight>& tried) {
    double least = std::numeric_limits<double>::infinity();
    for (const PlanBound& plan : plans) least = std::min(least, at(plan.with(tried), shares));
    return least;
  };
  constexpr int kTurns = 3;
  constexpr int64_t kLevels = 8;
  double highest = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<Line> lines;
    for (const PlanBound& plan : plans) lines.push_back(plan.with(weights));
    std::tie(shares, highest) = best_shares(lines);
    double best = lowest(weights);
    for (size_t k = 0; k < weights.size(); ++k) {
      for (int64_t level = 0; level <= kLevels; ++level) {
        std::vector<PairWeight> tried = weights;
        tried[k].weight = level * kWhole / kLevels;
        if (const double value = lowest(tried); value > best) best = value, weights = std::move(tried);
      }
    }
    highest = std::max(highest, best);
    if (weights.empty()) break;
  }
  return {shares, highest};
}

std::vector<Found> StepProver::fitting(const std::vector<Found>& plans, const Range& range,
                                       const Request& request) const {
  std::vector<Found> found;
  if (plans.empty()) return found;
  const EquivalenceClasses classes = find_equivalence_classes(model(range), request);
  for (const Found& plan : plans) {
    if (!request.has(plan.batch) || found.size() == kMostInherited) continue;
    const auto phases = phase_bytes(model(range), request, classes, plan.decision, plan.batch);
    if (*std::max_element(phases.begin(), phases.end()) <= request.limit_bytes) found.push_back(plan);
  }
  return found;
}

StepProver::Range StepProver::bounded(GatherRange gather, BatchSizes sizes, const Range& beginning,
                                      double enough, int64_t work) {
  Range range = beginning;
  range.gather = gather, range.sizes = sizes, range.feasible = true;
  range.work = work;
  if (searches_.planner().times_vary()) range.times = std::clamp(range.size, sizes.least, sizes.most);
  range.phases.clear(), range.near.clear(), range.pairs = pairs_in(range);
  for (PairWeight& pair : range.pairs) {
    for (const PairWeight& known : beginning.pairs)
      if (known.earlier_bytes == pair.earlier_bytes && known.later_bytes == pair.later_bytes)
        pair.weight = known.weight;
  }
  StepShares shares = range.shares;
  std::vector<PairWeight> weights = range.pairs;
  std::optional<PlanLines> lines;
  std::vector<PlanBound> plans;
  // With the same shares a plan of a part of its range attains the same bound, if it fits there and costs the
  // same.
  range.stopped = false;
  Known known{beginning.plan, beginning.bound_s_per_sample, enough};
  if (range.times != beginning.times) known.bound_s_per_sample = 0;
  for (int round = 0; round < kMostRounds; ++round) {
    Request request = request_of(range, shares);
    for (const PairWeight& pair : weights)
      if (pair.weight > 0) request.space.pairs.push_back(pair);
    const Schedule found =
        searches_.run(request, range.times, gap_ / 20, std::clamp<int64_t>(work_, 1, work), known);
    work_ -= found.work, range.stopped |= found.stopped;
    const double bound = found.lower_bound_s_per_sample;
    if (!found.feasible) {
      range.feasible = round > 0 || found.stopped || bound > 0;
      range.bound_s_per_sample = std::max(range.bound_s_per_sample, bound);
      break;
    }
    const int64_t size = found.open_size > 0 ? found.open_size : found.batch.size;
    if (round == 0) range.size = size;
    if (bound > range.bound_s_per_sample) {
      range.bound_s_per_sample = bound, range.size = size;
      range.shares = shares, range.pairs = weights, range.phases = found.phases;
      range.plan = {found_of(found)};
    }
    known.plans.push_back(found_of(found));
    known.bound_s_per_sample = 0;
    std::vector<Found> near{found_of(found)};
    near.insert(near.end(), found.runners_up.begin(), found.runners_up.end());
    plans_.insert(plans_.end(), near.begin(), near.end());
    if (!lines) {
      lines.emplace(lines_in(range));
      if (problem_.batches.empty()) range.sizes.most = std::min(range.sizes.most, classes(range).most_batch);
      const std::vector<Found> inherited = fitting(beginning.near, range, request);
      near.insert(near.end(), inherited.begin(), inherited.end());
    }
    for (const Found& plan : near)
      plans.push_back({line_through(lines->of(plan)), pairs_of(plan, range, weights)});
    range.near.insert(range.near.begin(), near.begin(), near.end());
    const StepShares before = shares;
    const std::vector<PairWeight> weighed = weights;
    double highest = 0;
    std::tie(shares, highest) = best_weights(plans, shares, weights);
    if (searches_.over() || range.bound_s_per_sample >= enough || (shares == before && weights == weighed) ||
        highest * 1e-12 <= range.bound_s_per_sample * (1 + gap_ / 10))
      break;
  }
  return range;
}

bool StepProver::prove() {
  StepShares shares{kWhole / 2, kWhole / 2};
  if (problem_.device.stolen > 0) shares = {};
  const bool none_ahead = problem_.space.prefetches.back() == 0;
  Range beginning;
  beginning.shares = shares;
  if (!problem_.batches.empty()) beginning.size = problem_.batches.front().size;
  beginning.times = beginning.size;
  all_ = bounded(none_ahead ? GatherRange{0, 0} : GatherRange{}, {}, beginning, kNever, kWork);
  while (all_.feasible && searches_.planner().times_vary() && all_.size != all_.times) {
    const Range next = with_times(all_.size);
    if (!next.feasible || next.bound_s_per_sample <= all_.bound_s_per_sample) break;
    all_ = next;
  }
  if (all_.feasible) ranges_ = {all_}, first_bound_ = all_.bound_s_per_sample;
  return all_.feasible;
}

double StepProver::lower_bound_s_per_sample() const { return ranges_.front().bound_s_per_sample; }
StepShares StepProver::shares() const { return ranges_.front().shares; }
Proof StepProver::proof(int64_t times) {
  const bool others = searches_.planner().times_vary() && times != 0 && times != all_.times;
  const Range priced = others ? with_times(times) : all_;
  return {lower_bound_s_per_sample(), false, priced.shares, priced.bound_s_per_sample, priced.phases, {}};
}

StepProver::Range StepProver::with_times(int64_t batch) {
  Range beginning;
  beginning.shares = all_.shares;
  beginning.size = beginning.times = batch;
  return bounded(all_.gather, all_.sizes, beginning, kNever, kWork);
}

std::vector<std::pair<GatherRange, BatchSizes>> StepProver::parts_of(const Range& range) const {
  const auto& [least, most] = range.sizes;
  const int64_t size = std::clamp(range.size, least, most),
                near = size / kAlikeSizes;  // batches that are alike
  const int64_t from = std::max(least, size - near), to = std::min(most, size + near);
  if (from > least || to < most) {
    std::vector<std::pair<GatherRange, BatchSizes>> parts{{range.gather, {from, to}}};
    if (from > least) parts.push_back({range.gather, {least, from - 1}});
    if (to < most) parts.push_back({range.gather, {to + 1, most}});
    return parts;
  }
  const auto first = std::upper_bound(sizes_.begin(), sizes_.end(), range.gather.least);
  const auto last = std::upper_bound(sizes_.begin(), sizes_.end(), range.gather.most);
  if (first == last) return {};
  const int64_t budget = *(first + (last - first) / 2);
  return {{{budget, range.gather.most}, range.sizes}, {{range.gather.least, budget - 1}, range.sizes}};
}

bool StepProver::sharpen(double enough) {
  const auto later = [](const Range& a, const Range& b) {
    return a.bound_s_per_sample > b.bound_s_per_sample;
  };
  Range lowest = ranges_.front();
  lowest.divided = true;
  const bool raised = lowest.bound_s_per_sample > first_bound_ * (1 + gap_ / 10);
  if (work_ <= 0) return false;
  std::vector<Range> parts;
  if (divisions_ < (raised ? kMostDivisions : kFewDivisions)) {
    for (const auto& [gather, sizes] : parts_of(lowest)) {
      if (searches_.over()) return false;
      parts.push_back(bounded(gather, sizes, lowest, enough, part_work_));
    }
    std::erase_if(parts, [](const Range& part) { return !part.feasible; });
    divisions_ += parts.empty() ? 0 : 1;
  }
  if (parts.empty()) {  // nothing can be divided, or nothing fits, which is only found out now
    if (!lowest.stopped || lowest.work == kWork || searches_.over()) return false;
    parts.push_back(bounded(lowest.gather, lowest.sizes, lowest, enough, kWork));
    if (!parts.back().feasible) return false;
  }
  std::pop_heap(ranges_.begin(), ranges_.end(), later);
  ranges_.pop_back();
  for (const Range& part : parts) {
    ranges_.push_back(part);
    std::push_heap(ranges_.begin(), ranges_.end(), later);
  }
  return true;
}

}  // namespace osdp::search
