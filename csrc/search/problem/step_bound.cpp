#include "search/problem/step_bound.hpp"

#include <algorithm>
#include <cmath>

#include "search/problem/collective_time.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

constexpr double kBelow = 1 - 1e-12;
constexpr int64_t kRoundingPs = 4;  // of a collective

// A collective: the time that its link is busy, and its latency.
struct Transfer {
  double busy_s = 0, latency_s = 0;
};

class Links {
 public:
  Links(const Device& device) : collectives_(device) {}

  Transfer gather(int64_t bytes, Mode mode) const { return time(collectives_.gather(mode), bytes); }
  Transfer reduce(int64_t bytes, Mode mode) const { return time(collectives_.reduce(mode), bytes); }
  Transfer all_reduce(int64_t bytes) const { return time(collectives_.all_reduce(), bytes); }
  Transfer average(int64_t bytes, Mode mode) const {
    return traits(mode).inside_hosts ? time(collectives_.average(), bytes) : Transfer{};
  }
  // At most what gathers of so many bytes together take.
  Transfer gathers(int64_t bytes, int64_t times, Mode mode) const {
    const CollectiveTime of = collectives_.gather(mode);
    return {of.transfer_s(bytes), static_cast<double>(times) * of.largest_latency_s()};
  }

 private:
  static Transfer time(const CollectiveTime& of, int64_t bytes) {
    if (bytes == 0) return {};
    return {of.transfer_s(bytes), of.latency_s(bytes)};
  }
  const Collectives collectives_;
};

// The bound's weights of one half of a micro-batch, forward or backward.
struct Half {
  double x = 0;                    // share of the compute form
  double stolen = 0;               // of computation, per second of transfer
  bool latencies = true;           // in the lane form
  bool reductions_in_lane = true;  // reductions count in the lane form,
  bool reductions_steal = true;    // in the compute form,
  bool averages_steal = true;      // and averages between hosts
  bool every_latency = false;
  int other_lanes = 0;           // on which transfers may run beside a gather
  bool averages_beside = false;  // averages may run beside the last reduction, and steal
  double of(const Transfer& t, bool in_lane = true, bool steals = true) const {
    return x * (steals ? stolen * (t.busy_s + (every_latency ? t.latency_s : 0)) : 0) +
           (1 - x) * (in_lane ? t.busy_s + (latencies ? t.latency_s : 0) : 0);
  }
  double of_reduction(const Transfer& t) const { return of(t, reductions_in_lane, reductions_steal); }
  double of_average(const Transfer& t) const { return of(t, false, averages_steal); }
  // What a transfer adds to the compute form by running alone, beside what it steals there.
  double alone(const Transfer& t, bool steals = true) const {
    return x * ((1 - (steals ? stolen : 0)) * t.busy_s + t.latency_s);
  }
  // What a gather adds for which computation waits from its begin to its end. Other lanes may transfer
  // meanwhile, and steal nothing.
  double exposed(const Transfer& t) const {
    return std::max(0.0, alone(t) - other_lanes * x * stolen * (t.busy_s + t.latency_s));
  }
  // The same of the last reduction, beside which averages of others may run that count as stealing.
  double last_reduction(const Transfer& t) const {
    return std::max(
        0.0, alone(t, reductions_steal) - (averages_beside ? x * stolen * (t.busy_s + t.latency_s) : 0));
  }
};

struct Halves {
  Half forward, backward;
  Halves(const Device& device, const Space& space) {
    const double whole = StepShares::kWhole;
    forward.x = static_cast<double>(space.shares->forward) / whole;
    backward.x = static_cast<double>(space.shares->backward) / whole;
    const bool one_link = device.hosts == 1, both_steal = one_link || 2 * device.stolen <= 1;
    for (Half* h : {&forward, &backward}) {
      h->stolen = std::min(1.0, device.stolen);
      h->averages_steal = both_steal;
      h->every_latency = space.every_latency;
      h->averages_beside = !one_link && both_steal;
      if (h == &backward) h->other_lanes = (one_link ? 0 : 1) + (space.separate_reductions ? 1 : 0);
      if (!space.separate_reductions) continue;
      h->reductions_steal = both_steal;
      h->reductions_in_lane = one_link;
      h->latencies = !one_link;
    }
  }
};

class OptionBound {
 public:
  OptionBound(const Operator& op, const Device& device, const Space& space, Recompute recompute)
      : op_(op),
        at_(op.position),
        space_(space),
        recompute_(recompute),
        links_(device),
        halves_(device, space) {
    for (const Tensor& t : op.tensors) {
      gathered_ += t.compute_bytes();
      if (t.trainable) trained_ += t.bytes(), sent_ += t.reduce_bytes();
    }
  }

  double seconds(const Candidate& c) const {
    if (c.granularity > 1) return sliced(c);
    return traits(c.mode).sharded ? sharded(c.mode) : whole();
  }
  int64_t collectives(const Candidate& c) const {
    return 6 + (c.granularity > 1 ? 4 * c.sharded_slices : at_.forward_gathers);
  }
  // What the option lets backward save, in the bound.
  double saved(const Candidate& c) const {
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
    const Transfer t = links_.gathers(bytes, latencies, mode);
    const auto in = [&](const Half& h) { return h.of(t) + (waits ? h.exposed(t) : 0); };
    // Those after the first call of a module that is called several times are saved in forward.
    return std::max(in(halves_.backward), in(halves_.forward));
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
    if (!space_.every_latency)
      t.latency_s *= static_cast<double>(at_.latency) / static_cast<double>(StepPosition::kLatency);
    return t;
  }

  double whole() const {
    const Transfer all = links_.all_reduce(sent_);
    Transfer in_bucket = all;
    in_bucket.latency_s *=
        std::min(1.0, static_cast<double>(trained_) / static_cast<double>(space_.bucket_bytes));
    const Half& b = halves_.backward;
    return b.of_reduction(in_bucket) + (at_.first ? b.last_reduction(all) : 0);
  }

  double sharded(Mode mode) const {
    const Half &f = halves_.forward, &b = halves_.backward;
    const Transfer gather = links_.gather(gathered_, mode), reduce = links_.reduce(sent_, mode),
                   average = links_.average(sent_, mode);
    const bool kept = traits(mode).kept;
    const auto forwards = kept ? 1 : static_cast<double>(at_.forward_gathers);
    const double backwards = kept ? 0 : recompute_ == Recompute::Regather && at_.gathered_again ? 2 : 1;
    double sum = f.of(in_unit(gather)) * forwards + b.of(in_unit(gather)) * backwards;
    if (!kept && waited_for(gathered_))
      sum += f.exposed(in_unit(gather)) * (forwards - (at_.first ? 1 : 0)) +
             b.exposed(in_unit(gather)) * backwards;
    sum += b.of_reduction(in_unit(reduce)) + b.of_average(in_unit(average));
    if (at_.first) {
      // Where others of its unit may count what they wait for, each has its part of the latency.
      const bool others_wait = space_.gather.most < kLargestSum;
      sum += f.alone(others_wait ? in_unit(gather) : gather) + b.last_reduction(reduce) +
             b.alone(average, b.averages_steal);
    }
    return sum;
  }

  double sliced(const Candidate& c) const {
    const Half &f = halves_.forward, &b = halves_.backward;
    const Tensor& weight = op_.tensors[op_.split_tensor];
    const auto slices = static_cast<double>(c.sharded_slices);
    const Transfer gather = links_.gather(weight.compute_bytes() / c.granularity, Mode::FullShard);
    const int64_t sent = weight.trainable ? weight.reduce_bytes() / c.granularity : 0;
    const Transfer reduce = links_.reduce(sent, Mode::FullShard);
    const bool again = recompute_ != Recompute::None;
    double sum = slices * (f.of(gather) + b.of(gather) * (again ? 2 : 1) + b.of_reduction(reduce));
    const int64_t slice = weight.compute_bytes() / c.granularity;
    // Slices that do not fit beside each other are gathered one by one, each after the reduction of the one
    // before it.
    if (waited_for(2 * slice)) {
      const double waits = waited_for(slice) ? slices : slices - 1;
      sum += waits * (f.exposed(gather) + b.exposed(gather) * (again ? 2 : 1));
      if (b.other_lanes == 0) sum += (slices - 1) * b.alone(reduce);
    }
    int64_t others = 0;
    for (const Tensor& t : op_.tensors) others += t.trainable && &t != &weight ? t.reduce_bytes() : 0;
    sum += b.of_reduction(links_.all_reduce(others)) +
           b.of_reduction(links_.all_reduce((c.granularity - c.sharded_slices) * sent));
    // A third of the launches is in forward, and again in recomputation.
    const double launches = slices_s(op_, space_, c.granularity);
    return sum + launches * (f.x / 3 + b.x * (again ? 1.0 : 2.0 / 3));
  }

  const Operator& op_;
  const StepPosition& at_;
  const Space& space_;
  const Recompute recompute_;
  const Links links_;
  const Halves halves_;
  int64_t gathered_ = 0, trained_ = 0, sent_ = 0;
};

// Times are at least 0, as knapsacks need: what the options of this operator save is added to all of them,
// and subtracted from the constant part.
double shift_s(const Operator& op, const OptionBound& bound) {
  if (op.tensors.empty()) return 0;
  double most = 0;
  for (const Mode mode : {Mode::NoShard, Mode::FullShard, Mode::HybridShard}) {
    Candidate c;
    c.mode = mode;
    most = std::max(most, bound.saved(c));
  }
  return most;
}

}  // namespace

int64_t step_bound_ps(const Operator& op, const Device& device, const Space& space, Recompute recompute,
                      const Candidate& c) {
  if (device.ranks == 1) return 0;
  const OptionBound bound(op, device, space, recompute);
  const double seconds = bound.seconds(c) + shift_s(op, bound) - bound.saved(c);
  const auto ps = static_cast<double>(picoseconds(std::max(0.0, seconds), "operator", op.name));
  return std::max<int64_t>(0, static_cast<int64_t>(ps * kBelow) - kRoundingPs * bound.collectives(c));
}

Linear step_bound_compute(const Model& model, const Request& request) {
  const StepShares x = *request.space.shares;
  int128 fixed = 0, per_sample = 0;
  double shift = 0;
  for (const Operator& op : model.operators) {
    const auto ps = [&](double seconds) { return picoseconds(seconds, "operator", op.name); };
    const Linear both{ps(op.compute_s_fixed), ps(op.compute_s_per_sample)};
    const Linear again{ps(op.recompute_s_fixed), ps(op.recompute_s_per_sample)};
    // Of forward and backward together, forward takes the time of a recomputation, but no more than both; and
    // where it would be that of both for some batches, backward's is left out.
    const Linear forward{std::min(both.fixed, again.fixed), std::min(both.per_sample, again.per_sample)};
    fixed += static_cast<int128>(x.forward) * forward.fixed;
    per_sample += static_cast<int128>(x.forward) * forward.per_sample;
    if (again.fixed <= both.fixed && again.per_sample <= both.per_sample) {
      fixed += static_cast<int128>(x.backward) * (both.fixed - forward.fixed);
      per_sample += static_cast<int128>(x.backward) * (both.per_sample - forward.per_sample);
    }
    if (request.device.ranks > 1)
      shift += shift_s(op, OptionBound(op, request.device, request.space, Recompute::None));
  }
  const auto shift_ps = static_cast<int128>(std::ceil(shift * 1e12)) + 1;
  fixed = fixed / StepShares::kWhole - (shift > 0 ? shift_ps : 0);
  return {static_cast<int64_t>(fixed), static_cast<int64_t>(per_sample / StepShares::kWhole)};
}

}  // namespace osdp::search
