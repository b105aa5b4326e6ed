#include "search/certificate/bound_cost.hpp"

#include <algorithm>
#include <cmath>

#include "search/certificate/collective_cost.hpp"
#include "search/certificate/option_cost.hpp"
#include "search/certificate/weight_in_slices.hpp"

namespace osdp::search {
namespace {

constexpr int128 kShare = StepShares::kWhole;

using Seconds = CollectiveCost;

// Transfers differ in what they delay: gathers and reductions share a lane unless reductions have their own;
// averages between hosts always have their own.
enum class Kind { Gather, Reduction, Average };

bool table_comes_first(const Operator& op) { return op.position.first && op.look_ups > 0; }

class Bound {
 public:
  Bound(const Operator& op, const Request& request, Recompute recompute)
      : op_(op),
        at_(op.position),
        request_(request),
        device_(request.device),
        recompute_(recompute),
        links_(request.device) {
    for (const Tensor& t : op.tensors) {
      gathered_ += t.compute_bytes();
      if (t.trainable) trained_ += t.bytes(), sent_ += t.reduce_bytes();
    }
  }

  // Seconds that the option takes in the bound, without what it lets other units save.
  double taken(const PlainPlan::Choice& c) const {
    if (c.granularity > 1) return in_slices(c);
    // Once a step, of whose micro-batches this is one.
    if (!traits(c.mode).sharded) return replicated() / micro_batches();
    return traits(c.mode).kept ? sharded(c.mode) / micro_batches() : sharded(c.mode);
  }

  double saved(const PlainPlan::Choice& c) const { return at_forwards_end(c) + at_recomputations_end(c); }

  // Of how many collectives `taken` is the sum, at most; each may be rounded in the simulator.
  int64_t collectives(const PlainPlan::Choice& c) const {
    if (c.granularity == 1) return 6 + at_.forward_gathers;
    return 6 + (traits(c.mode).on_host ? 6 : 4) * c.sharded_slices * at_.slice_calls;
  }

 private:
  // --- saved

  // Another operator's slice may be what a recomputation has used last, which is still there for backward.
  double at_recomputations_end(const PlainPlan::Choice& c) const {
    if (c.granularity > 1 || recompute_ == Recompute::None || at_.lets_slice_bytes == 0) return 0;
    const bool requested = traits(c.mode).sharded && !(traits(c.mode).kept && request_.space.stage.once());
    if (requested && !at_.lets_any) return 0;
    return in_backward(Kind::Gather, links_.gather(at_.lets_slice_bytes, Mode::FullShard));
  }

  double at_forwards_end(const PlainPlan::Choice& c) const {
    const bool one = c.granularity == 1, sharded = traits(c.mode).sharded, kept = traits(c.mode).kept;
    if (one && sharded && !kept) {
      if (at_.ends_forward_gathers == 0) return 0;
      if (at_.end_unknown) return most_in_any_mode(at_.ends_forward_bytes, at_.ends_forward_gathers);
      return gathers_saved(c.mode, at_.ends_forward_bytes, at_.ends_forward_gathers);
    }
    const bool lets_another_end = (one && !sharded) || at_.end_unknown;
    return lets_another_end ? most_in_any_mode(at_.lets_end_bytes, at_.lets_end_gathers) : 0;
  }

  // --- collectives

  bool several_hosts() const { return device_.hosts > 1; }
  // Over which a stage of a pipeline spreads what it communicates once.
  double micro_batches() const {
    return static_cast<double>(std::max<int64_t>(1, request_.space.stage.micro_batches));
  }

  // --- weights

  double forward_share() const { return static_cast<double>(request_.space.shares->forward) / 1024; }
  double backward_share() const { return static_cast<double>(request_.space.shares->backward) / 1024; }
  double link_share() const { return static_cast<double>(request_.space.shares->link) / 1024; }
  double averages_share() const { return static_cast<double>(request_.space.shares->averages) / 1024; }
  double reductions_share() const { return static_cast<double>(request_.space.shares->reductions) / 1024; }
  double stolen() const { return std::min(1.0, device_.stolen); }
  // What counts as stolen of computation. Transfers on two links at the same time steal no more than all.
  double steals(Kind kind) const {
    const bool own_lane =
        kind == Kind::Average || (kind == Kind::Reduction && request_.space.separate_reductions);
    if (!own_lane || !several_hosts()) return stolen();
    const double rest = std::min(stolen(), 1 - stolen()),
                 s_per_byte =
                     std::max(device_.all_gather.beta_s_per_byte, device_.between_hosts.beta_s_per_byte);
    // The rest counts for long delays instead.
    return rest < stolen() && device_.delay.beta_s_per_byte > rest * s_per_byte ? 0 : rest;
  }
  bool in_lane(Kind kind) const {
    if (kind == Kind::Average) return false;
    return kind == Kind::Gather || !request_.space.separate_reductions || !several_hosts();
  }
  // Over one link with two lanes the lane form is the link's, beside which latencies may pass.
  bool waits_count() const { return !request_.space.separate_reductions || several_hosts(); }

  // The shares of the compute form, and of those of the link, of averages and of reductions.
  struct Shares {
    double x, z, a, r;
    double lane() const { return 1 - x - z - a - r; }
  };
  Shares forward() const { return {forward_share(), 0, 0, 0}; }
  Shares backward() const { return {backward_share(), link_share(), averages_share(), reductions_share()}; }

  // What a transfer counts in the forms of lanes and links while nothing computes.
  double in_lanes(const Shares& w, Kind kind, const Seconds& t) const {
    const double link_form = t.between_s;
    // On one host reductions are a lane, on several they share the link with averages.
    double reductions_form = several_hosts() ? link_form : t.seconds();
    if (kind == Kind::Gather) reductions_form = 0;
    const double lane_form = in_lane(kind) ? t.busy_s + (waits_count() ? t.waiting_s : 0) : 0;
    return w.z * link_form + w.r * reductions_form + w.lane() * lane_form +
           (kind == Kind::Average ? w.a * t.seconds() : 0);
  }
  // And how much more in computation, if the transfer takes longer then.
  double longer(const Shares& w, Kind kind, const Seconds& t) const {
    if (request_.space.separate_reductions) return 0;
    const double reductions_form = !several_hosts() && kind == Kind::Reduction ? w.r : 0;
    const double of_lane = in_lane(kind) ? w.lane() : w.a;
    return (of_lane + reductions_form) * slower(t);
  }
  static double slower(const Seconds& t) { return t.slower_s + t.slower_waiting_s; }
  // The part of the compute form that transfers of averages between hosts count while nothing computes: what
  // they steal, and of what neither lane steals as much as their form has of the other shares.
  double part_of_averages(const Shares& w) const {
    if (!several_hosts()) return 0;
    const double steal = steals(Kind::Average), others = 1 - w.x;
    return others > 0 ? steal + (1 - stolen() - steal) * w.a / others : steal;
  }
  double part_alone(const Shares& w, Kind kind, bool in_backward) const {
    if (!in_backward) return 1;
    return kind == Kind::Average ? part_of_averages(w) : 1 - part_of_averages(w);
  }
  double weighed(const Shares& w, Kind kind, const Seconds& t, bool in_backward) const {
    return std::min(counted_alone(w, kind, t, in_backward), counted_beside(w, kind, t));
  }
  double counted_alone(const Shares& w, Kind kind, const Seconds& t, bool in_backward) const {
    return w.x * part_alone(w, kind, in_backward) * t.seconds() + in_lanes(w, kind, t);
  }
  double counted_beside(const Shares& w, Kind kind, const Seconds& t) const {
    return w.x * steals(kind) * t.busy_s + in_lanes(w, kind, t) + longer(w, kind, t);
  }
  double in_forward(const Seconds& t) const { return weighed(forward(), Kind::Gather, t, false); }
  double in_backward(Kind kind, const Seconds& t) const { return weighed(backward(), kind, t, true); }
  // More than what is counted, for what no computation and no other lane runs beside.
  double alone(const Shares& w, Kind kind, const Seconds& t, double counted) const {
    const double slow = request_.space.separate_reductions ? 0 : slower(t);
    const double taken = steals(kind) < stolen() ? steals(kind) : device_.stolen;
    const double in_compute_form = t.seconds() + slow - taken * t.busy_s;
    const double in_all = w.x * t.seconds() + in_lanes(w, kind, t) - counted;
    return std::max(0.0, std::min(in_all, w.x * in_compute_form));
  }
  double gathered_alone(const Seconds& t) const { return alone(forward(), Kind::Gather, t, in_forward(t)); }
  double in_backward_alone(Kind kind, const Seconds& t) const {
    return alone(backward(), kind, t, in_backward(kind, t));
  }
  // Averages of others may run beside the last reduction.
  double last(const Seconds& t) const {
    const double averages = backward_share() * part_of_averages(backward()) * t.seconds();
    return std::max(0.0, in_backward_alone(Kind::Reduction, t) - averages);
  }

  // --- options

  // Others that share the latency may count their parts of it as alone, if delays are longer.
  Seconds at_an_end(const Seconds& whole, double part) const {
    const bool delayed = !request_.space.separate_reductions && slower(whole) > 0;
    return delayed ? whole.with_waiting(part) : whole;
  }

  double replicated() const {
    const Seconds whole = links_.all_reduce(sent_);
    const double of_bucket =
        std::min(1.0, static_cast<double>(trained_) / static_cast<double>(request_.space.bucket_bytes));
    return in_backward(Kind::Reduction, whole.with_waiting(of_bucket)) +
           (at_.first ? last(at_an_end(whole, of_bucket)) : 0);
  }

  double sharded(Mode mode) const {
    const double unit = static_cast<double>(at_.latency) / static_cast<double>(StepPosition::kLatency);
    const Seconds gathered = links_.gather(gathered_, mode), later = links_.gather_again(gathered_, mode),
                  reduced = links_.reduce(sent_, mode), averaged = links_.average(sent_, mode);
    const Seconds shared = gathered.with_waiting(unit), shared_later = later.with_waiting(unit);
    double seconds = in_backward(Kind::Reduction, reduced.with_waiting(unit)) +
                     in_backward(Kind::Average, averaged.with_waiting(unit));
    seconds += in_forward(shared);
    if (!traits(mode).kept) {
      const bool again = recompute_ == Recompute::Regather && at_.gathered_again;
      seconds += static_cast<double>(at_.forward_gathers - 1) * in_forward(shared_later) +
                 (again ? 2 : 1) * in_backward(Kind::Gather, shared_later);
    }
    if (traits(mode).on_host) seconds += copy_in_forward(mode) + copy_of_gradient(mode);
    if (at_.first)
      seconds += gathered_alone(at_an_end(gathered, unit)) + last(at_an_end(reduced, unit)) +
                 in_backward_alone(Kind::Average, at_an_end(averaged, unit)) +
                 backward().lane() * averaged.seconds();
    // Averages begin after the last operator's reduction, beside which a lane with all else transfers
    // nothing.
    if (at_.last && (traits(mode).inside_hosts || traits(mode).by_hosts)) {
      seconds += averages_share() * reduced.seconds();
      if (!request_.space.separate_reductions)
        seconds += (link_share() + reductions_share()) * reduced.seconds();
    }
    return seconds;
  }

  // Between host and device, of what a rank holds; the lane waits for them.
  template <typename Which>
  Seconds copy_of(Mode mode, const Which& which) const {
    int64_t bytes = 0;
    for (const Tensor& t : op_.tensors) {
      const int64_t ranks = traits(mode).inside_hosts ? device_.ranks / device_.hosts : device_.ranks;
      if (t.shardable && which(t)) bytes += (t.rows / ranks + (t.rows % ranks != 0)) * t.row_bytes;
    }
    return {0, device_.host.copy.beta_s_per_byte * static_cast<double>(bytes)};
  }
  double copy_in_forward(Mode mode) const {  // of one gather: others may be saved
    return in_forward(copy_of(mode, [](const Tensor&) { return true; }));
  }
  double copy_of_gradient(Mode mode) const {  // not counted where it is averaged between hosts first
    if (traits(mode).inside_hosts) return 0;
    return in_backward(Kind::Reduction, copy_of(mode, [](const Tensor& t) { return t.trainable; }));
  }

  int64_t on_rank(const Tensor& weight, const WeightInSlices& slices) const {
    const int64_t element = weight.bytes() / (op_.out_features * op_.in_features), ranks = device_.ranks;
    int64_t bytes = 0;
    for (const int64_t lines : slices.sharded) {
      const int64_t rows = slices.of_rows ? lines : slices.rows,
                    columns = slices.of_rows ? slices.columns : lines;
      bytes += (rows / ranks + (rows % ranks != 0)) * columns * element;
    }
    return bytes;
  }

  double in_slices(const PlainPlan::Choice& c) const {
    const Tensor& weight = op_.tensors[op_.split_tensor];
    const WeightInSlices slices(op_, c);
    const auto sent = [&](int64_t lines) {
      return weight.trainable ? slices.part(weight.reduce_bytes(), lines) : 0;
    };
    const auto gathered = [&](int64_t lines) {
      return links_.gather(slices.part(weight.compute_bytes(), lines), Mode::FullShard);
    };
    const auto reduced = [&](int64_t lines) { return links_.reduce(sent(lines), Mode::FullShard); };
    const bool again = recompute_ != Recompute::None;
    // Look-ups read no slice in backward.
    const int64_t reads_again = std::max<int64_t>(0, at_.slice_calls - op_.look_ups) + (again ? 1 : 0);
    double largest = 0;
    double of_slices = slices.of_each([&](int64_t lines) {
      largest = std::max(largest, in_backward(Kind::Gather, gathered(lines)));
      return static_cast<double>(at_.slice_calls) *
                 (in_forward(gathered(lines)) + in_backward(Kind::Reduction, reduced(lines))) +
             static_cast<double>(reads_again) * in_backward(Kind::Gather, gathered(lines));
    });
    // The slice that a recomputation has used last may still be there.
    if (again && at_.slice_calls > op_.look_ups && at_.recomputed_last) of_slices -= largest;
    if (traits(c.mode).on_host) {  // one copy of each slice in forward, and one of its gradient
      const Seconds copied{0,
                           device_.host.copy.beta_s_per_byte * static_cast<double>(on_rank(weight, slices))};
      of_slices += in_forward(copied) + (weight.trainable ? in_backward(Kind::Reduction, copied) : 0);
    }
    const int64_t beside = sent_ - (weight.trainable ? weight.reduce_bytes() : 0);
    const Seconds others = links_.all_reduce(beside), replicated = links_.all_reduce(sent(slices.replicated));
    const double whole =
        (in_backward(Kind::Reduction, others) + in_backward(Kind::Reduction, replicated)) / micro_batches();
    if (table_comes_first(op_)) {
      // Nothing runs beside its transfers but the look-ups, which no bound counts then.
      const double ends = slices.of_each(
          [&](int64_t lines) { return gathered_alone(gathered(lines)) + last(reduced(lines)); });
      return of_slices + ends + whole + last(replicated) / micro_batches();
    }
    // A third of the launches is in forward, and once more in recomputation.
    const double launch = longer_in_slices_s(op_, request_.space, c.granularity) / 3;
    return of_slices + whole + launch * (forward_share() + backward_share() * (again ? 3 : 2));
  }

  // Several operators may let parts of a gather be saved, of which some are latencies: what bytes take
  // decides whether all parts count as beside computation or alone.
  double gathers_saved(Mode mode, int64_t bytes, int64_t times) const {
    const auto in = [&](const Shares& w, bool in_backward) {
      const Seconds t = links_.gathers(bytes, times, mode, in_backward);
      Seconds of_bytes = t;
      of_bytes.waiting_s = of_bytes.slower_waiting_s = 0;
      const double alone = counted_alone(w, Kind::Gather, of_bytes, in_backward);
      const bool beside = counted_beside(w, Kind::Gather, of_bytes) < alone * (1 - 1e-9);
      return beside ? counted_beside(w, Kind::Gather, t) : counted_alone(w, Kind::Gather, t, in_backward);
    };
    return at_.saved_in_forward ? std::max(in(forward(), false), in(backward(), true)) : in(backward(), true);
  }
  double most_in_any_mode(int64_t bytes, int64_t times) const {
    double most = 0;
    if (bytes == 0 && times == 0) return most;
    for (const Mode mode : request_.space.modes)
      if (traits(mode).sharded && !traits(mode).kept)
        most = std::max(most, gathers_saved(mode, bytes, times));
    return most;
  }

  const Operator& op_;
  const StepPosition& at_;
  const Request& request_;
  const Device& device_;
  const Recompute recompute_;
  const CollectiveCosts links_;
  int64_t gathered_ = 0, trained_ = 0, sent_ = 0;
};

}  // namespace

int128 bound_cost(const Operator& op, const Request& request, Recompute recompute,
                  const PlainPlan::Choice& choice) {
  if (request.moves_nothing()) return 0;
  PlainPlan::Choice c = choice;
  if (c.mode == Mode::NoShard) c.granularity = 1;
  const Bound bound(op, request, recompute);
  // Less by what rounding can make of it, here and in the simulator.
  const double taken = bound.taken(c) * (1 - 2e-12), saved = bound.saved(c) * (1 + 2e-12);
  const auto least = static_cast<int128>(rounded_ps(taken, op.name)) - 1 - 4 * bound.collectives(c);
  return kShare * (std::max<int128>(0, least) - (saved > 0 ? rounded_ps(saved, op.name) + 1 : 0));
}

BoundComputation bound_computation(const Operator& op, const Request& request, int64_t least, int64_t most) {
  const StepShares& x = *request.space.shares;
  // A forward takes as long as a recomputation that nothing slows, but no longer than forward and backward.
  const int128 step = rounded_ps(op.compute_s_per_sample, op.name);
  const int128 step_fixed = rounded_ps(op.compute_s_fixed, op.name);
  const int128 once = rounded_ps(op.recompute_s_per_sample, op.name);
  const int128 once_fixed = rounded_ps(op.recompute_s_fixed, op.name);
  // Where it takes the time of a recomputation for some batches and that of both for others: no less than a
  // line below the two; and if a long forward makes the bound less, as for a forward of both's time.
  const bool here = once_fixed + once * least <= step_fixed + step * least;
  const bool there = once_fixed + once * most <= step_fixed + step * most;
  const auto bound = [&](int128 of_again, int128 both) {
    int128 forward = here && there ? of_again : both;
    if (here != there && x.forward >= x.backward) forward = std::min(of_again, both);
    return x.forward * forward + x.backward * (both - forward);
  };
  const std::vector<int64_t>& slices = request.space.granularities;
  const bool sliced =
      op.split_tensor >= 0 && std::any_of(slices.begin(), slices.end(), [](int64_t g) { return g != 1; });
  BoundComputation c;
  if (!(request.device.ranks > 1 && sliced && table_comes_first(op)))
    c.per_sample = bound(once, step), c.fixed = bound(once_fixed, step_fixed);
  const auto again = [&](double seconds) {
    return static_cast<int128>(x.backward) * rounded_ps(seconds * request.device.recompute_slowdown, op.name);
  };
  c.again_per_sample = again(op.recompute_s_per_sample), c.again_fixed = again(op.recompute_s_fixed);
  return c;
}

}  // namespace osdp::search
