#include "search/problem/step_bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "search/problem/collective_time.hpp"
#include "search/problem/problem.hpp"
#include "search/problem/slices.hpp"

namespace osdp::search {
namespace {

constexpr double kBelow = 1 - 1e-12;
constexpr int64_t kRoundingPs = 4;  // of a collective

// A collective: the time that its link is busy, its latency, and how much longer both are beside computation.
struct Transfer {
  double busy_s = 0, latency_s = 0;
  double between_s = 0;  // part of busy_s on the link between hosts
  double more_busy_s = 0, more_latency_s = 0;
  double alone_s() const { return busy_s + latency_s; }
  double more_s() const { return more_busy_s + more_latency_s; }
};

class Links {
 public:
  Links(const Device& device, const Space& space)
      : collectives_(device), delay_(delays_count(device, space) ? device.delay : Collective{}) {}

  Transfer gather(int64_t bytes, Mode mode) const { return time(collectives_.gather(mode), bytes); }
  Transfer gather_again(int64_t bytes, Mode mode) const {
    return time(collectives_.gather_again(mode), bytes);
  }
  Transfer reduce(int64_t bytes, Mode mode) const { return time(collectives_.reduce(mode), bytes); }
  Transfer all_reduce(int64_t bytes) const { return time(collectives_.all_reduce(), bytes); }
  Transfer average(int64_t bytes, Mode mode) const {
    return reduced_between(traits(mode)) ? time(collectives_.average(mode), bytes) : Transfer{};
  }
  // At most what gathers of so many bytes together take.
  Transfer gathers(int64_t bytes, int64_t times, Mode mode, bool again) const {
    const CollectiveTime& of = again ? collectives_.gather_again(mode) : collectives_.gather(mode);
    const auto n = static_cast<double>(times);
    return {of.transfer_s(bytes), n * of.largest_latency_s(), between_s(of, bytes),
            of.more_s(bytes, delay_, 0), n * of.more_s(0, delay_, 1)};
  }

 private:
  static double between_s(const CollectiveTime& of, int64_t bytes) {
    return of.between_hosts() ? of.transfer_s(bytes) - of.inside_s(bytes) : 0;
  }
  Transfer time(const CollectiveTime& of, int64_t bytes) const {
    if (bytes == 0) return {};
    return {of.transfer_s(bytes), of.latency_s(bytes), between_s(of, bytes), of.more_s(bytes, delay_, 0),
            of.more_s(0, delay_, 1)};
  }
  const Collectives collectives_;
  const Collective delay_;
};

// The bound's weights of one half of a micro-batch, forward or backward.
struct Half {
  // Shares of the compute form and of the others.
  double x = 0, lane = 1, link = 0, averages = 0, reductions = 0;
  double stolen = 0;  // of computation, per second of transfer, at most 1
  double takes = 0;   // the same, which may be more
  // Parts of x of which the main lane's and other lanes' transfers count, while nothing computes.
  double alone_part = 1, averages_part = 1, others_part = 0;
  bool latencies = true;           // in the lane form
  bool reductions_in_lane = true;  // reductions count in the lane form,
  // What counts as stolen by reductions and by averages between hosts: both may run beside others' transfers.
  double reductions_steal = 0, averages_steal = 0;
  bool every_latency = false;
  bool one_host = true;  // of which all reductions are on one lane
  int other_lanes = 0;   // on which transfers may run beside a gather

  // What a transfer counts: alone but for its part of x, and in computation.
  struct Counted {
    double alone = 0, part = 1, beside = 0;
  };
  // Beside computation or alone, whichever is less.
  double least(const Transfer& t, const Counted& c) const {
    return std::min(x * c.part * t.alone_s() + c.alone, c.beside);
  }
  double taken(const Transfer& t, double steals) const {
    return x * steals * (t.busy_s + (every_latency ? t.latency_s : 0));
  }
  Counted gather(const Transfer& t) const {
    const double in_lanes = lane * in_lane(t) + in_link(t, link);
    return {in_lanes, alone_part, in_lanes + lane * t.more_s() + taken(t, stolen)};
  }
  Counted reduction(const Transfer& t) const {
    const double on_lane = reductions_in_lane ? lane : 0;
    const double in_lanes = on_lane * in_lane(t) + in_link(t, link) +
                            (one_host ? reductions * t.alone_s() : in_link(t, reductions));
    const double delayed = on_lane + (one_host ? reductions : 0);
    return {in_lanes, alone_part, in_lanes + delayed * t.more_s() + taken(t, reductions_steal)};
  }
  Counted average(const Transfer& t) const {
    const double in_lanes = (link + reductions) * t.busy_s + averages * t.alone_s();
    return {in_lanes, averages_part, in_lanes + averages * t.more_s() + taken(t, averages_steal)};
  }
  double of(const Transfer& t) const { return least(t, gather(t)); }
  double of_reduction(const Transfer& t) const { return least(t, reduction(t)); }
  double of_average(const Transfer& t) const { return least(t, average(t)); }
  // Sums over parts of a gather, of which some are latencies: at least what it counts.
  double at_most(const Transfer& t) const {
    const Transfer busy{t.busy_s, 0, t.between_s, t.more_busy_s};
    const Counted c = gather(t), of_busy = gather(busy);
    const double alone = x * of_busy.part * busy.alone_s() + of_busy.alone;
    return alone * (1 - 1e-9) <= of_busy.beside ? x * c.part * t.alone_s() + c.alone : c.beside;
  }
  double whole(const Transfer& t) const { return x * t.alone_s() + gather(t).alone; }
  // What a transfer adds, by running alone while no other lane transfers, to what is counted of it.
  double alone(const Transfer& t, const Counted& c, double steals) const {
    const double in_compute_form = x * (t.alone_s() + t.more_s() - steals * t.busy_s);
    return std::max(0.0, std::min(x * t.alone_s() + c.alone - least(t, c), in_compute_form));
  }
  double alone(const Transfer& t) const { return alone(t, gather(t), takes); }
  double reduced_alone(const Transfer& t) const {
    return alone(t, reduction(t), reductions_in_lane ? takes : reductions_steal);
  }
  double averaged_alone(const Transfer& t) const { return alone(t, average(t), averages_steal); }
  // What a gather adds for which computation waits from its begin to its end. Other lanes may transfer
  // meanwhile.
  double exposed(const Transfer& t) const { return std::max(0.0, alone(t) - x * others_part * t.alone_s()); }
  // The same of the last reduction, beside which averages of others may run.
  double last_reduction(const Transfer& t) const {
    return std::max(0.0, reduced_alone(t) - (one_host ? 0 : x * averages_part * t.alone_s()));
  }

 private:
  double in_lane(const Transfer& t) const { return t.busy_s + (latencies ? t.latency_s : 0); }
  static double in_link(const Transfer& t, double share) { return share * t.between_s; }
};

// Whether its slices, if it has any, are gathered before anything else computes, and reduced after all else.
bool looked_up_first(const Operator& op) { return op.position.first && op.look_ups > 0; }
bool may_be_sliced(const Operator& op, const Space& space) {
  return op.split_tensor >= 0 &&
         std::any_of(space.granularities.begin(), space.granularities.end(), [](int64_t g) { return g > 1; });
}

struct Halves {
  Half forward, backward;
  Halves(const Device& device, const Space& space) {
    const double whole = StepShares::kWhole;
    forward.x = static_cast<double>(space.shares->forward) / whole;
    backward.x = static_cast<double>(space.shares->backward) / whole;
    backward.link = static_cast<double>(space.shares->link) / whole;
    backward.averages = static_cast<double>(space.shares->averages) / whole;
    backward.reductions = static_cast<double>(space.shares->reductions) / whole;
    for (Half* h : {&forward, &backward}) h->lane = 1 - h->x - h->link - h->averages - h->reductions;
    const bool one_link = device.hosts == 1;
    // Where two lanes would steal more than all, one of them steals the rest, unless delays are longer.
    const double stolen = std::min(1.0, device.stolen), rest = std::min(stolen, 1 - stolen),
                 s_per_byte =
                     std::max(device.all_gather.beta_s_per_byte, device.between_hosts.beta_s_per_byte);
    const bool delayed = rest < stolen && device.delay.beta_s_per_byte > rest * s_per_byte;
    for (Half* h : {&forward, &backward}) {
      h->takes = device.stolen;
      h->stolen = stolen;
      h->reductions_steal = h->stolen;
      h->averages_steal = one_link ? stolen : delayed ? 0 : rest;
      h->one_host = one_link;
      h->every_latency = space.every_latency;
      if (!space.separate_reductions) continue;
      h->reductions_steal = h->averages_steal;
      h->reductions_in_lane = one_link;
      h->latencies = !one_link;
    }
    backward.other_lanes = (one_link ? 0 : 1) + (space.separate_reductions ? 1 : 0);
    if (!one_link) {  // what both lanes steal of the compute form, and the rest by the shares of their forms
      const double others = 1 - backward.x;
      const double left = 1 - backward.stolen - backward.averages_steal;
      backward.averages_part = backward.averages_steal + (others > 0 ? left * backward.averages / others : 0);
      backward.alone_part = 1 - backward.averages_part;
      backward.others_part = backward.averages_part;
    }
    if (space.separate_reductions) backward.others_part += backward.stolen;
  }
};

// What the bounds of all operators have in common.
struct Weights {
  const Device& device;
  const Space& space;
  const Links links;
  const Halves halves;
  Weights(const Device& d, const Space& s) : device(d), space(s), links(d, s), halves(d, s) {}
};

class OptionBound {
 public:
  OptionBound(const Operator& op, const Weights& weights, Recompute recompute)
      : op_(op),
        at_(op.position),
        space_(weights.space),
        device_(weights.device),
        recompute_(recompute),
        links_(weights.links),
        halves_(weights.halves) {
    for (const Tensor& t : op.tensors) {
      gathered_ += t.compute_bytes();
      if (t.trainable) trained_ += t.bytes(), sent_ += t.reduce_bytes();
    }
  }

  double seconds(const Candidate& c) const {
    if (c.granularity > 1) return sliced(c) + lane_at_ends(c);
    return whole(c) + lane_at_ends(c);
  }
  double whole(const Candidate& c) const {
    const double part = traits(c.mode).sharded && !traits(c.mode).kept ? 1 : space_.stage.part();
    return part * (traits(c.mode).sharded ? sharded(c.mode) : replicated());
  }
  // What a pair of neighbours waits for if both are gathered whole, at least: in any mode. Notes [Neighbours]
  // and [Idle lane].
  double waits(const NeighbourPair& p, Recompute way) const {
    const int64_t most = space_.gather.most;
    if (p.later_bytes == 0 || !are_neighbours(p)) return 0;
    const Half &f = halves_.forward, &b = halves_.backward;
    double least = -1;
    for (const Mode mode : space_.modes) {
      if (!traits(mode).sharded || traits(mode).kept) continue;
      const Transfer first = links_.gather(p.later_bytes, mode),
                     later = links_.gather_again(p.later_bytes, mode),
                     earlier = links_.gather_again(p.earlier_bytes, mode);
      const bool later_counts = p.later_bytes > most, earlier_counts = p.earlier_bytes > most;  // elsewhere
      double sum = later_counts ? 0 : std::min(f.exposed(first), f.exposed(later));
      if (b.other_lanes == 0) {
        if (way != Recompute::None && recomputed(p) && !later_counts) sum += b.exposed(later);
        if (p.in_backward && !(p.together && way == Recompute::Hold))
          sum += b.reduced_alone(links_.reduce(p.later_sent_bytes, mode)) +
                 (earlier_counts ? 0 : b.exposed(earlier));
      }
      least = least < 0 ? sum : std::min(least, sum);
    }
    return std::max(0.0, least) + idle_lane(p, way);
  }
  // In the lane form, if both are gathered whole: Note [Idle lane].
  double idle_lane(const NeighbourPair& p, Recompute way) const {
    if (space_.of_sizes.most == 0) return 0;
    const auto [forward, unused, again] = least_computation(p.earlier_time);
    const auto [other, backward, other_again] = least_computation(p.later_time);
    const double end_of_block = (again + other_again) * device_.recompute_slowdown + backward;
    const double gathered = longest_gathers(p.between_bytes, p.between_gathers);
    const bool ends = p.ends_block && way != Recompute::None && !space_.separate_reductions;
    return halves_.forward.lane * std::max(0.0, forward - gathered) +
           (ends ? halves_.backward.lane * std::max(0.0, end_of_block - 2 * gathered) : 0);
  }
  double longest_gathers(int64_t bytes, int64_t times) const {
    double longest = 0;
    for (const Mode mode : space_.modes) {
      if (!traits(mode).sharded) continue;
      for (const bool again : {false, true}) {
        const Transfer t = links_.gathers(bytes, times, mode, again);
        const double copied = traits(mode).on_host ? copy(bytes).alone_s() : 0;
        longest = std::max(longest, copied + t.alone_s() + t.more_s());
      }
    }
    return longest;
  }
  double pair(const NeighbourPair& p, Recompute way) const {
    const double weight = weight_of(p);
    return weight > 0 ? waits(p, way) * weight : 0;
  }
  // Recomputation between the two is subtracted whatever the plan, which must leave computation above 0.
  bool recomputed(const NeighbourPair& p) const {
    return p.in_recompute && device_.recompute_slowdown <= NeighbourPair::kMostSlowdown;
  }
  int64_t recomputed_between(const NeighbourPair& p) const {
    if (!recomputed(p)) return 0;
    return static_cast<int64_t>(
        std::ceil(static_cast<double>(p.forward_per_sample) * device_.recompute_slowdown));
  }
  // What the later one's reduction takes longer than what is computed until the earlier one's is submitted,
  // at least: Note [Turns] in step_bound.hpp.
  double turn(const NeighbourPair& p) const { return turn(p, p.later_sent_bytes, 0); }
  // The same of a reduction of so many bytes, after which the later one itself computes for `further`
  // seconds.
  double turn(const NeighbourPair& p, int64_t bytes, double further) const {
    const Half& b = halves_.backward;
    if (!takes_turns() || !p.in_turn || p.later_bytes == 0 || are_neighbours(p)) return 0;
    double least = -1;
    for (const Mode mode : space_.modes) {
      if (!traits(mode).sharded) continue;
      const double alone = b.last_reduction(links_.reduce(bytes, mode));
      least = least < 0 ? alone : std::min(least, alone);
    }
    const double computed = static_cast<double>(p.turn_fixed) + static_cast<double>(p.turn_per_sample) *
                                                                    static_cast<double>(space_.of_sizes.most);
    return std::max(0.0, least - b.x * (computed * 1e-12 + further));
  }
  // Whether they do not fit into the budget together.
  bool are_neighbours(const NeighbourPair& p) const {
    return p.earlier_bytes + p.later_bytes > space_.gather.most;
  }
  bool takes_turns() const {
    return space_.divided && space_.of_sizes.most > 0 && !space_.stage.once() && !space_.separate_reductions;
  }
  double weighed_turn(const NeighbourPair& p) const { return turn(p) * weight_of(p); }
  double most_of_pair(const NeighbourPair& p) const {
    return std::max(
        {pair(p, Recompute::None), pair(p, Recompute::Hold), pair(p, Recompute::Regather), weighed_turn(p)});
  }
  double weight_of(const NeighbourPair& p) const {
    for (const PairWeight& w : space_.pairs)
      if (w.earlier_bytes == p.earlier_bytes && w.later_bytes == p.later_bytes)
        return static_cast<double>(w.weight) / StepShares::kWhole;
    return 0;
  }
  // Of both pairs of the operator: the later one of a pair has its constant.
  double pairs(const Candidate& c) const {
    if (space_.pairs.empty()) return 0;
    const bool whole = c.granularity == 1 && traits(c.mode).sharded && !traits(c.mode).kept;
    return (whole ? pair(at_.later, recompute_) : 0) - (whole ? 0 : pair(at_.earlier, recompute_)) + turns(c);
  }

  // As the earlier one of a pair it waits for the later one's reduction, and is waited for as the later one.
  double turns(const Candidate& c) const {
    const double as_later = turn(at_.earlier);
    const bool at_once = at_.later.together || recompute_ == Recompute::None;
    if (c.granularity == 1) {
      const bool sharded = traits(c.mode).sharded;
      return (sharded && at_once ? weighed_turn(at_.later) : 0) -
             (sharded ? 0 : as_later * weight_of(at_.earlier));
    }
    // Of the earlier one in slices, the first slice waits; of the later one, the last slice is waited for.
    const double launches = slices_s(op_, space_, c.granularity), backward = most_backward();
    const auto slices = static_cast<double>(c.granularity), own = static_cast<double>(c.sharded_slices);
    const bool computes_less = op_.look_ups == 0 && launches <= (slices - 1) * backward;
    const Slices parts(op_, c.granularity, c.sharded_slices, c.split);
    const Tensor& weight = op_.tensors[op_.split_tensor];
    const double of_slice = as_later > 0 && op_.look_ups == 0 && weight.trainable
                                ? turn(at_.earlier, parts.bytes(weight.reduce_bytes(), parts.small),
                                       (backward + launches) * (1 - own / slices))
                                : 0;
    return (computes_less && at_once ? weighed_turn(at_.later) : 0) -
           std::max(0.0, as_later - of_slice) * weight_of(at_.earlier);
  }

  int64_t collectives(const Candidate& c) const {
    return (space_.pairs.empty() ? 6 : 12) +
           (c.granularity > 1 ? (traits(c.mode).on_host ? 6 : 4) * c.sharded_slices * at_.slice_calls
                              : at_.forward_gathers);
  }
  // What the option lets backward save, in the bound.
  double saved(const Candidate& c) const {
    const bool stays = traits(c.mode).kept && space_.stage.once();  // is requested in one micro-batch alone
    const bool lets = c.granularity == 1 && (!traits(c.mode).sharded || stays || at_.lets_any);
    return end_saved(c) + (lets && recompute_ != Recompute::None ? most_slice_saved() : 0);
  }
  // The gather of another operator's slice that a recomputation has used last.
  double most_slice_saved() const {
    if (at_.lets_slice_bytes == 0) return 0;
    const Transfer t = links_.gather(at_.lets_slice_bytes, Mode::FullShard);
    const Half& b = halves_.backward;
    return space_.gather.most < kLargestSum ? b.whole(t) : b.of(t);
  }
  double end_saved(const Candidate& c) const {
    const bool replicated = c.granularity == 1 && !traits(c.mode).sharded;
    const bool freed = c.granularity == 1 && traits(c.mode).sharded && !traits(c.mode).kept;
    if (!replicated && !freed && !at_.end_unknown) return 0;
    if (!freed) return most_saved(at_.lets_end_bytes, at_.lets_end_gathers, space_.gather.most < kLargestSum);
    if (at_.ends_forward_gathers == 0) return 0;
    // Another unit, in another mode, may begin where this one does.
    const bool waits = waited_for(at_.ends_forward_bytes);
    return at_.end_unknown ? most_saved(at_.ends_forward_bytes, at_.ends_forward_gathers, waits)
                           : saved_in(c.mode, at_.ends_forward_bytes, at_.ends_forward_gathers, waits);
  }

 private:
  double saved_in(Mode mode, int64_t bytes, int64_t latencies, bool waits) const {
    const auto in = [&](const Half& h, bool again) {
      const Transfer t = links_.gathers(bytes, latencies, mode, again);
      return waits ? h.whole(t) : h.at_most(t);
    };
    const double backward = in(halves_.backward, true);
    return at_.saved_in_forward ? std::max(backward, in(halves_.forward, false)) : backward;
  }
  double most_saved(int64_t bytes, int64_t latencies, bool waits) const {
    double most = 0;
    if (bytes == 0 && latencies == 0) return 0;
    for (const Mode mode : space_.modes)
      if (traits(mode).sharded && !traits(mode).kept)
        most = std::max(most, saved_in(mode, bytes, latencies, waits));
    return most;
  }

  // Whether a unit with so many bytes is gathered only when it is used, since it does not fit beside another.
  bool waited_for(int64_t bytes) const { return bytes > space_.gather.most; }

  Transfer in_unit(Transfer t) const {
    const double part = static_cast<double>(at_.latency) / static_cast<double>(StepPosition::kLatency);
    if (!space_.every_latency) t.latency_s *= part, t.more_latency_s *= part;
    return t;
  }

  // Of a transfer that nothing runs beside. Where others of its unit may count their parts of the latency as
  // alone, too, since delays are longer, each has its part.
  static const Transfer& ending(const Transfer& whole, const Transfer& part) {
    return whole.more_s() > 0 ? part : whole;
  }

  double replicated() const {
    const Transfer all = links_.all_reduce(sent_);
    Transfer in_bucket = all;
    const double part =
        std::min(1.0, static_cast<double>(trained_) / static_cast<double>(space_.bucket_bytes));
    in_bucket.latency_s *= part, in_bucket.more_latency_s *= part;
    const Half& b = halves_.backward;
    return b.of_reduction(in_bucket) + (at_.first ? b.last_reduction(ending(all, in_bucket)) : 0);
  }

  double sharded(Mode mode) const {
    const Half &f = halves_.forward, &b = halves_.backward;
    const Transfer gather = links_.gather(gathered_, mode), again = links_.gather_again(gathered_, mode),
                   reduce = links_.reduce(sent_, mode), average = links_.average(sent_, mode);
    const bool kept = traits(mode).kept;
    const auto further = kept ? 0 : static_cast<double>(at_.forward_gathers - 1);
    const double backwards = kept ? 0 : recompute_ == Recompute::Regather && at_.gathered_again ? 2 : 1;
    double sum = f.of(in_unit(gather)) + f.of(in_unit(again)) * further + b.of(in_unit(again)) * backwards;
    if (!kept && waited_for(gathered_))
      sum += (at_.first ? 0 : f.exposed(in_unit(gather))) + f.exposed(in_unit(again)) * further +
             b.exposed(in_unit(again)) * backwards;
    sum += b.of_reduction(in_unit(reduce)) + b.of_average(in_unit(average));
    if (traits(mode).on_host) sum += copies(mode);
    if (at_.first) {
      // Where others of its unit may count what they wait for, each has its part of the latency.
      const bool others_wait = space_.gather.most < kLargestSum;
      sum += f.alone(others_wait ? in_unit(gather) : ending(gather, in_unit(gather))) +
             b.last_reduction(ending(reduce, in_unit(reduce))) +
             b.averaged_alone(ending(average, in_unit(average))) + b.lane * average.alone_s();
    }
    if (at_.last && reduced_between(traits(mode)))
      sum += (b.averages + (space_.separate_reductions ? 0 : b.link + b.reductions)) * reduce.alone_s();
    return sum;
  }

  // Of an offloaded operator's rows for one gather in forward, and of its gradient after the reduction, which
  // is on the other lane where it is averaged between hosts. Other gathers may be saved.
  double copies(Mode mode) const {
    const int64_t ranks = device_.ranks / (traits(mode).inside_hosts ? device_.hosts : 1);
    int64_t rows = 0, trained = 0;
    for (const Tensor& t : op_.tensors) {
      if (!t.shardable) continue;
      rows += t.part_bytes(ranks);
      if (t.trainable) trained += t.part_bytes(ranks);
    }
    return halves_.forward.of(copy(rows)) +
           (traits(mode).inside_hosts ? 0 : halves_.backward.of_reduction(copy(trained)));
  }
  Transfer copy(int64_t bytes) const {
    return {0, static_cast<double>(bytes) * device_.host.copy.beta_s_per_byte};
  }

  double sliced(const Candidate& c) const {
    const Half &f = halves_.forward, &b = halves_.backward;
    const Tensor& weight = op_.tensors[op_.split_tensor];
    const auto slices = static_cast<double>(c.sharded_slices);
    const Slices parts(op_, c.granularity, c.sharded_slices, c.split);
    const auto sent = [&](int64_t part) {
      return weight.trainable ? parts.bytes(weight.reduce_bytes(), part) : 0;
    };
    const auto gather_of = [&](int64_t part) {
      return links_.gather(parts.bytes(weight.compute_bytes(), part), Mode::FullShard);
    };
    const auto reduce_of = [&](int64_t part) { return links_.reduce(sent(part), Mode::FullShard); };
    // What each slice waits for at least: with delays a longer one may wait for less.
    const auto least_exposed = [&](const Half& h) {
      return std::min(h.exposed(gather_of(parts.small)), h.exposed(gather_of(parts.large)));
    };
    const double f_waits = least_exposed(f), b_waits = least_exposed(b);
    const bool again = recompute_ != Recompute::None;
    // Every call acquires all slices in forward and makes their gradients; look-ups acquire none in backward.
    const auto calls = static_cast<double>(at_.slice_calls);
    const auto products = static_cast<double>(at_.slice_calls - std::min(op_.look_ups, at_.slice_calls));
    const double backwards = products + (again ? 1 : 0);
    double sum = parts.sum([&](int64_t part) {
      return f.of(gather_of(part)) * calls + b.of(gather_of(part)) * backwards +
             b.of_reduction(reduce_of(part)) * calls;
    });
    if (traits(c.mode).on_host) {
      const int64_t item = weight.bytes() / (parts.rows * parts.columns), ranks = device_.ranks;
      const int64_t rows = parts.sum([&](int64_t part) {
        return (parts.rows_of(part) + ranks - 1) / ranks * parts.columns_of(part) * item;
      });
      sum += f.of(copy(rows)) + (weight.trainable ? b.of_reduction(copy(rows)) : 0);
    }
    const int64_t slice = parts.bytes(weight.compute_bytes(), parts.small);
    const bool stays = again && products > 0 && at_.recomputed_last;  // the slice that backward begins with
    if (stays) sum -= b.of(gather_of(parts.large)) + (waited_for(slice) ? b_waits : 0);
    // Slices that do not fit beside each other are gathered one by one, each after the reduction of the one
    // before it.
    if (waited_for(2 * slice)) {
      const double waits = waited_for(slice) ? slices : slices - 1;
      sum += waits * (f_waits * (calls - (looked_up_first(op_) ? 1 : 0)) + b_waits * backwards);
      if (b.other_lanes == 0) {
        const double alone =
            std::min(b.reduced_alone(reduce_of(parts.small)), b.reduced_alone(reduce_of(parts.large)));
        sum += (slices - 1) * alone * products;
      }
      if (at_.slice_calls == 1 && op_.look_ups == 0) sum += idle_lane(c);
    } else if (takes_turns() && at_.slice_calls == 1 && op_.look_ups == 0) {
      sum += slices_in_turn(c, reduce_of(parts.small));
    }
    int64_t others = 0;
    for (const Tensor& t : op_.tensors) others += t.trainable && &t != &weight ? t.reduce_bytes() : 0;
    const Transfer replicated = links_.all_reduce(sent(parts.whole));
    sum += space_.stage.part() * (b.of_reduction(links_.all_reduce(others)) + b.of_reduction(replicated));
    if (looked_up_first(op_)) {
      const double ends = parts.sum(
          [&](int64_t part) { return f.alone(gather_of(part)) + b.last_reduction(reduce_of(part)); });
      return sum + ends + space_.stage.part() * b.last_reduction(replicated);
    }
    // A third of the launches is in forward, and again in recomputation.
    const double launches = slices_s(op_, space_, c.granularity);
    return sum + launches * (f.x / 3 + b.x * (again ? 1.0 : 2.0 / 3));
  }

  // Of a micro-batch of `size`: forward, backward, and a recomputation, in seconds.
  static std::array<double, 3> computation(const ComputeTime& t, int64_t size) {
    const auto n = static_cast<double>(size);
    const double both = t.both_fixed + t.both_per_sample * n, again = t.again_fixed + t.again_per_sample * n;
    return {std::min(both, again), std::max(0.0, both - again), again};
  }
  std::array<double, 3> computation(int64_t size) const { return computation(op_.time(), size); }
  // The least of each for the sizes in question: at one of the ends.
  std::array<double, 3> least_computation() const { return least_computation(op_.time()); }
  std::array<double, 3> least_computation(const ComputeTime& t) const {
    std::array<double, 3> least = computation(t, space_.of_sizes.least);
    const std::array<double, 3> of_most = computation(t, space_.of_sizes.most);
    for (size_t k = 0; k < least.size(); ++k) least[k] = std::min(least[k], of_most[k]);
    return least;
  }
  double most_backward() const {
    return std::max(computation(space_.of_sizes.least)[1], computation(space_.of_sizes.most)[1]);
  }

  // The last operator, or its last slice, is computed in forward after all gathers, and in backward before
  // all reductions.
  double lane_at_ends(const Candidate& c) const {
    if (!at_.last || space_.of_sizes.most == 0) return 0;
    const auto [forward, backward, again] = least_computation();
    const Half &f = halves_.forward, &b = halves_.backward;
    const auto slices = static_cast<double>(c.granularity);
    return (f.lane * forward + b.reductions * backward) / slices + b.averages * backward;
  }

  // No slice's reduction is submitted before that of the one before it is over.
  double slices_in_turn(const Candidate& c, const Transfer& reduction) const {
    const Half& b = halves_.backward;
    const double backward = most_backward() + slices_s(op_, space_, c.granularity);
    const double longer = b.last_reduction(reduction) - b.x * backward / static_cast<double>(c.granularity);
    return static_cast<double>(c.sharded_slices - 1) * std::max(0.0, longer);
  }

  // In the lane form: while slices are computed of which no two fit, the lane has nothing to transfer. But
  // beside the last slice the next unit may be gathered, and beside the first one in backward, or in a
  // recomputation, the unit before may be reduced, if the slice was gathered beside that.
  double idle_lane(const Candidate& c) const {
    const auto [forward, backward, again] = least_computation();
    const Half &f = halves_.forward, &b = halves_.backward;
    const auto between = static_cast<double>(c.sharded_slices - 1),
               of_all = static_cast<double>(c.granularity);
    double sum = f.lane * between * forward;
    if (!space_.separate_reductions) {
      const double inner = std::max(0.0, between - 1);
      sum += b.lane * (at_.last ? between : inner) * backward;
      if (recompute_ != Recompute::None) sum += b.lane * inner * again * device_.recompute_slowdown;
    }
    return sum / of_all;
  }

  const Operator& op_;
  const StepPosition& at_;
  const Space& space_;
  const Device& device_;
  const Recompute recompute_;
  const Links& links_;
  const Halves& halves_;
  int64_t gathered_ = 0, trained_ = 0, sent_ = 0;
};

// Times are at least 0, as knapsacks need: what the options of this operator save is added to all of them,
// and subtracted from the constant part.
double shift_s(const Operator& op, const OptionBound& bound) {
  if (op.tensors.empty()) return 0;
  double most = 0;
  for (const ModeTraits& m : kModes) {
    Candidate c;
    c.mode = m.mode;
    most = std::max(most, bound.end_saved(c));
  }
  return most + bound.most_slice_saved() + bound.most_of_pair(op.position.earlier);
}

}  // namespace

std::function<int64_t(const Candidate&)> option_bound_ps(const Operator& op, const Device& device,
                                                         const Space& space, Recompute recompute) {
  if (moves_nothing(device, space)) return [](const Candidate&) { return int64_t{0}; };
  const Weights weights(device, space);
  const double shift = shift_s(op, OptionBound(op, weights, recompute));
  return [&op, weights, recompute, shift](const Candidate& c) {
    const OptionBound bound(op, weights, recompute);
    const double seconds = bound.seconds(c) + shift - bound.saved(c) + bound.pairs(c);
    const auto ps = static_cast<double>(picoseconds(std::max(0.0, seconds), "operator", op.name));
    return std::max<int64_t>(0, static_cast<int64_t>(ps * kBelow) - kRoundingPs * bound.collectives(c));
  };
}

namespace {

// Of forward and backward together, forward takes the time of a recomputation, but no more than both: the
// shorter of two lines in the batch. For batches from `least` to `most`: a line that is not above it, and one
// that is not below it. They are the same where one of the two is the shorter for all of these batches.
struct ForwardTime {
  Linear not_above, not_below;
};
ForwardTime forward_time(const Linear& both, const Linear& again, int64_t least, int64_t most) {
  const auto shorter = [&](int64_t batch) {
    return again.fixed - both.fixed + static_cast<int128>(again.per_sample - both.per_sample) * batch <= 0;
  };
  const bool at_least = shorter(least), at_most = shorter(most);
  if (at_least && at_most) return {again, again};
  if (!at_least && !at_most) return {both, both};
  return {{std::min(both.fixed, again.fixed), std::min(both.per_sample, again.per_sample)}, both};
}

}  // namespace

Linear step_bound_compute(const Model& model, const Request& request) {
  const StepShares x = *request.space.shares;
  const auto [least, most] = request.micro_batches();
  int128 fixed = 0, per_sample = 0;
  double shift = 0;
  const Weights weights(request.device, request.space);
  for (const Operator& op : model.operators) {
    const auto ps = [&](double seconds) { return picoseconds(seconds, "operator", op.name); };
    if (!request.moves_nothing()) shift += shift_s(op, OptionBound(op, weights, Recompute::None));
    if (request.device.ranks > 1 && looked_up_first(op) && may_be_sliced(op, request.space))
      continue;  // it may run beside its transfers
    const Linear both{ps(op.compute_s_fixed), ps(op.compute_s_per_sample)};
    const Linear again{ps(op.recompute_s_fixed), ps(op.recompute_s_per_sample)};
    const int64_t more = x.forward - x.backward;  // forward's share, beside that of both
    const ForwardTime forward = forward_time(both, again, least, most);
    const Linear& line = more >= 0 ? forward.not_above : forward.not_below;
    fixed += static_cast<int128>(x.backward) * both.fixed + static_cast<int128>(more) * line.fixed;
    per_sample +=
        static_cast<int128>(x.backward) * both.per_sample + static_cast<int128>(more) * line.per_sample;
  }
  const auto shift_ps = static_cast<int128>(std::ceil(shift * 1e12)) + 1;
  for (const Operator& op : model.operators) {  // what neighbours do not wait for
    const NeighbourPair& p = op.position.earlier;
    if (request.moves_nothing() || p.later_bytes == 0) continue;
    const OptionBound bound(op, weights, Recompute::None);
    if (!bound.are_neighbours(p) || bound.most_of_pair(p) == 0) continue;
    const auto weight = static_cast<int64_t>(bound.weight_of(p) * StepShares::kWhole);
    const auto part = [&](int64_t share, int64_t ps) {
      return (static_cast<int128>(share) * weight * ps + StepShares::kWhole - 1) / StepShares::kWhole;
    };
    const int64_t again = bound.recomputed_between(p);
    per_sample -= part(x.forward, p.forward_per_sample) + part(x.backward, again) +
                  part(x.backward, p.backward_per_sample);
    fixed -= part(x.backward, p.backward_fixed);
  }
  const auto down = [](int128 n) { return n / StepShares::kWhole - (n < 0 ? 1 : 0); };
  return {static_cast<int64_t>(down(fixed) - (shift > 0 ? shift_ps : 0)),
          static_cast<int64_t>(down(per_sample))};
}

double pair_bound_ps(const Operator& later, const Request& request, Recompute recompute,
                     const PairTaken& taken, int64_t batch) {
  const NeighbourPair& p = later.position.earlier;
  if (p.later_bytes == 0 || request.moves_nothing()) return 0;
  const Weights weights(request.device, request.space);
  const OptionBound bound(later, weights, recompute);
  if (!bound.are_neighbours(p)) return 1e12 * bound.turn(p) * static_cast<double>(taken.reduced - 1);
  if (bound.waits(p, Recompute::None) + bound.waits(p, Recompute::Regather) == 0) return 0;
  const auto share = [](int64_t s) { return static_cast<double>(s) / StepShares::kWhole; };
  const auto per_sample = [](int64_t ps, int64_t size) {
    return static_cast<double>(ps) * static_cast<double>(size);
  };
  const double computed = share(request.space.shares->forward) * per_sample(p.forward_per_sample, batch) +
                          share(request.space.shares->backward) *
                              (per_sample(p.backward_per_sample + bound.recomputed_between(p), batch) +
                               static_cast<double>(p.backward_fixed));
  return 1e12 * bound.waits(p, recompute) * static_cast<double>(taken.gathered - 1) - computed;
}

}  // namespace osdp::search
