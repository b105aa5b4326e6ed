#include "search/planner/step_positions.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "search/problem/cost.hpp"
#include "search/problem/problem.hpp"

namespace osdp::search {
namespace {

// Operators that may be grouped into one unit, of one dtype and block: those that a group of small ones
// joins, or all that the same modules gather unseen.
struct Joinable {
  int64_t operators = 0, small_bytes = 0, largest = 0, all_bytes = 0;
  bool ends_block = false;
};

class Positions {
 public:
  Positions(Model& model, const Manner& manner)
      : model_(model), manner_(manner), block_end_(model.blocks.size(), -1) {
    for (size_t i = 0; i < model.operators.size(); ++i) {
      if (const int block = model.operators[i].block; block >= 0) block_end_[block] = static_cast<int>(i);
      const Place& place = manner.places[i];
      if (!place.parameters) continue;
      int64_t compute = 0, reduce = 0;
      for (const Tensor& t : model.operators[i].tensors)
        compute += t.compute_bytes(), reduce += t.reduce_bytes();
      largest_ = std::max({largest_, place.gathered_bytes, compute, reduce});
      Joinable& all = joinable_[key(i)];
      ++all.operators;
      all.all_bytes += place.gathered_bytes;
      (small(place) ? all.small_bytes : all.largest) =
          small(place) ? all.small_bytes + place.gathered_bytes : std::max(all.largest, place.gathered_bytes);
      all.ends_block |= ends_block(i);
    }
  }

  void set(bool blocks) {
    bool first = true;
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      Operator& op = model_.operators[i];
      op.position = {};
      const Place& place = manner_.places[i];
      if (place.parameters) {
        StepPosition& at = op.position;
        at.latency = latency(i);
        if (alone(i) && place.calls.size() == 1) at.forward_gathers = std::max<int64_t>(1, place.repeats);
        at.gathered_again = place.modules == 1 && !joinable_.at(key(i)).ends_block;
        at.slice_calls = distinct_calls(place);
        at.first = first;
      }
      first &= !place.parameters && op.compute_s_per_sample == 0 && op.compute_s_fixed == 0 &&
               op.recompute_s_per_sample == 0 && op.recompute_s_fixed == 0;
    }
    set_last();
    set_ends();
    set_recomputed_last();
    set_neighbours();
    if (blocks && manner_.lanes.enqueue) set_left();
  }

 private:
  // Calls of different modules at the same place are one (play_plan.cpp).
  static int64_t distinct_calls(const Place& place) {
    std::vector<Span> calls = place.calls;
    std::sort(calls.begin(), calls.end());
    return std::max<int64_t>(1, std::unique(calls.begin(), calls.end()) - calls.begin());
  }

  // Dtype, block, the modules of untraced ones, and the operator itself where it is never joined.
  using Key = std::tuple<int, int, int, int>;

  bool small(const Place& place) const { return place.gathered_bytes < manner_.small_unit_bytes; }
  Key key(size_t i) const {
    const Place& place = manner_.places[i];
    if (place.mixed || place.modules > 1) return {place.dtype, place.block, -1, static_cast<int>(i)};
    return {place.dtype, place.block, place.traced ? -1 : place.gathered_at, -1};
  }
  bool alone(size_t i) const {
    const Place& place = manner_.places[i];
    if (place.mixed || place.modules > 1) return true;
    const Joinable& all = joinable_.at(key(i));
    return all.operators == 1 || (place.traced && all.small_bytes == 0);
  }
  // Of operators that are all small, a unit has no more bytes than all of them, or than the largest
  // transient.
  int64_t latency(size_t i) const {
    const Place& place = manner_.places[i];
    if (alone(i) || (place.traced && !small(place))) return StepPosition::kLatency;
    const Joinable& all = joinable_.at(key(i));
    const int64_t unit = place.traced ? std::min(all.all_bytes, largest_) : all.all_bytes;
    if (unit == 0 || (place.traced && all.largest > 0)) return 0;
    return static_cast<int64_t>(static_cast<int128>(StepPosition::kLatency) * place.gathered_bytes / unit);
  }
  bool ends_block(size_t i) const {
    const int block = model_.operators[i].block;
    return block >= 0 && std::any_of(manner_.places[i].calls.begin(), manner_.places[i].calls.end(),
                                     [&](const Span& s) { return s.last >= block_end_[block]; });
  }

  // The most bytes of a unit that holds the operator.
  int64_t unit_bytes(size_t i) const {
    const Place& place = manner_.places[i];
    if (alone(i)) return place.gathered_bytes;
    const Joinable& all = joinable_.at(key(i));
    if (!place.traced) return all.all_bytes;
    return all.small_bytes + (small(place) ? all.largest : place.gathered_bytes);
  }

  // The last operator with parameters, unless another's are read at or after it, or it is unknown where.
  void set_last() {
    int last = -1;
    for (size_t i = 0; i < model_.operators.size(); ++i)
      if (manner_.places[i].parameters) last = static_cast<int>(i);
    if (last < 0) return;
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const Place& place = manner_.places[i];
      if (!place.parameters) continue;
      const bool before = place.traced && place.repeats == 1 &&
                          std::all_of(place.calls.begin(), place.calls.end(), [&](const Span& s) {
                            return static_cast<int>(i) == last ? s == Span{last, last} : s.last < last;
                          });
      if (!before || place.calls.empty()) return;
    }
    model_.operators[last].position.last = true;
  }

  // The unit that ends forward is the one whose last call begins last. From the end: a sharded operator saves
  // the gather of its unit if all after it are replicated. The last operator's own options say whether it is
  // sharded; each replicated one adds what those before it may save more.
  void set_ends() {
    std::map<int, std::vector<size_t>, std::greater<>> by_begin;
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const Place& place = manner_.places[i];
      const auto& tensors = model_.operators[i].tensors;
      const bool rows = std::any_of(tensors.begin(), tensors.end(),
                                    [](const Tensor& t) { return t.shardable && t.bytes() > 0; });
      if (!place.parameters || !rows || place.calls.empty()) continue;
      int begin = 0;
      for (const Span& s : place.calls) begin = std::max(begin, s.first);
      by_begin[begin].push_back(i);
    }
    struct Saved {
      size_t op;
      int64_t bytes, gathers;
    };
    std::vector<Saved> saved;  // from the end
    const bool repeated = std::any_of(manner_.places.begin(), manner_.places.end(), [](const Place& place) {
      return place.repeats > 1 || place.calls.size() > 1;
    });
    for (const auto& [begin, operators] : by_begin) {
      int64_t bytes = 0, gathers = 1;
      for (size_t i : operators) {
        const int64_t times = std::max<int64_t>(1, manner_.places[i].repeats);
        bytes = std::max(bytes, times * unit_bytes(i)), gathers = std::max(gathers, times);
      }
      for (size_t i : operators) {
        StepPosition& at = model_.operators[i].position;
        at.end_unknown = operators.size() > 1 || manner_.places[i].calls.size() > 1;
        at.saved_in_forward = repeated;
        saved.push_back({i, bytes, gathers});
      }
    }
    int64_t bytes = 0, gathers = 0;  // the most of those after the last one
    for (size_t k = 0; k + 1 < saved.size(); ++k) {
      StepPosition& at = model_.operators[saved[k].op].position;
      at.lets_end_bytes = std::max<int64_t>(0, saved[k + 1].bytes - bytes);
      at.lets_end_gathers = std::max<int64_t>(0, saved[k + 1].gathers - gathers);
      bytes = std::max(bytes, saved[k + 1].bytes), gathers = std::max(gathers, saved[k + 1].gathers);
    }
    if (saved.empty()) return;
    StepPosition& last = model_.operators[saved[0].op].position;
    last.ends_forward_bytes = saved[0].bytes, last.ends_forward_gathers = saved[0].gathers;
  }

  // A block's last operator with parameters requests its unit or its slices last, unless it is replicated, or
  // its unit is requested for a module around it. Slices of tied operators may be acquired anywhere.
  void set_recomputed_last() {
    std::vector<int> last(model_.blocks.size(), -1);
    for (size_t i = 0; i < model_.operators.size(); ++i)
      if (model_.operators[i].block >= 0 && manner_.places[i].parameters)
        last[model_.operators[i].block] = static_cast<int>(i);
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      Operator& op = model_.operators[i];
      if (op.block < 0 || !manner_.places[i].parameters) continue;
      const int at = static_cast<int>(i), end = last[op.block];
      op.position.recomputed_last = at == end || op.position.slice_calls > 1;
      if (at == end) {
        const std::vector<Span>& calls = manner_.places[i].calls;
        op.position.lets_any = calls.size() != 1 || calls[0] != Span{at, at};
      } else if (op.split_tensor >= 0) {  // a slice is at most half of it, and half a line
        const int64_t bytes = op.tensors[op.split_tensor].compute_bytes();
        const int64_t lines = std::max<int64_t>(1, std::min(op.out_features, op.in_features));
        int64_t& most = model_.operators[end].position.lets_slice_bytes;
        most = std::max(most, bytes / 2 + bytes / lines + 1);
      }
    }
  }

  // Whether the operator's unit has no other operator as large, is gathered once in forward, right before the
  // operator, and requested by it alone.
  bool stands_alone(size_t i, const std::vector<int>& begins, const std::vector<int>& ends) const {
    const Place& place = manner_.places[i];
    const int at = static_cast<int>(i);
    return place.parameters && place.traced && !place.mixed && place.modules == 1 && place.repeats == 1 &&
           !small(place) && place.calls.size() == 1 && place.calls[0] == Span{at, at} && begins[i] == 1 &&
           ends[i] == 1 && model_.operators[i].position.latency == StepPosition::kLatency;
  }

  NeighbourPair pair_of(size_t earlier, size_t later) const {
    const Operator &a = model_.operators[earlier], &b = model_.operators[later];
    NeighbourPair p;
    for (const Tensor& t : a.tensors) p.earlier_bytes += t.compute_bytes();
    for (const Tensor& t : b.tensors)
      p.later_bytes += t.compute_bytes(), p.later_sent_bytes += t.trainable ? t.reduce_bytes() : 0;
    p.together = a.block >= 0 && a.block == b.block;
    p.in_backward = p.together || a.block < 0 || ends_block(earlier);
    p.in_recompute = p.together && b.position.gathered_again;
    p.in_turn = manner_.lanes.enqueue && reduced(a) && reduced(b);
    p.earlier_time = a.time(), p.later_time = b.time();
    p.ends_block = p.together && block_end_[b.block] == static_cast<int>(later);
    return p;
  }
  static bool reduced(const Operator& op) {
    return std::any_of(op.tensors.begin(), op.tensors.end(),
                       [](const Tensor& t) { return t.trainable && t.shardable && t.bytes() > 0; });
  }

  static constexpr int64_t kRoundingPs = 4;  // of what an operator computes

  // Notes [Neighbours] and [Turns] in problem/step_bound.hpp.
  void set_neighbours() {
    const size_t n = model_.operators.size();
    std::vector<int> begins(n), ends(n);
    std::vector<int64_t> begun_bytes(n);   // gathered where their calls begin
    std::vector<bool> acquires_slices(n);  // whether its own or a tied table's
    for (size_t i = 0; i < n; ++i) {
      const Place& place = manner_.places[i];
      if (!place.parameters) continue;
      for (const Span& s : place.calls) {
        begins[s.first] += static_cast<int>(place.repeats), ++ends[s.last];
        begun_bytes[s.first] += place.repeats * place.gathered_bytes;
        if (model_.operators[i].split_tensor >= 0) acquires_slices[s.last] = true;
      }
    }
    int128 forward = 0, backward = 0;                         // all computation
    int128 waits_forward = 0, waits_backward = 0, pairs = 0;  // what pairs subtract of it, at most
    int earlier = -1;
    NeighbourPair between;
    Linear in_turn;       // of backward, with the earlier one's own
    bool broken = false;  // by what may be sliced or recomputed between the two, or is not small
    for (size_t i = 0; i < n; ++i) {
      Operator& op = model_.operators[i];
      const auto ps = [&](double seconds) { return picoseconds(seconds, "operator", op.name); };
      const int64_t both = ps(op.compute_s_per_sample), again = ps(op.recompute_s_per_sample);
      const int64_t own_backward = both - std::min(both, again);
      const int64_t fixed = ps(op.compute_s_fixed), fixed_again = ps(op.recompute_s_fixed);
      const Linear own{fixed - std::min(fixed, fixed_again) + kRoundingPs, own_backward};
      forward += std::min(both, again), backward += own_backward;
      if (stands_alone(i, begins, ends)) {
        if (earlier >= 0 && !broken) {
          NeighbourPair p = pair_of(static_cast<size_t>(earlier), i);
          p.forward_per_sample = between.forward_per_sample;
          p.backward_per_sample = between.backward_per_sample, p.backward_fixed = between.backward_fixed;
          p.turn_per_sample = in_turn.per_sample;
          p.turn_fixed = in_turn.fixed;
          p.between_bytes = between.between_bytes, p.between_gathers = between.between_gathers;
          waits_forward += p.forward_per_sample, ++pairs;
          waits_backward += p.backward_per_sample;
          if (p.in_recompute) waits_backward += NeighbourPair::kMostSlowdown * p.forward_per_sample + 1;
          if (p.earlier_bytes > 0 && p.later_bytes > 0)
            model_.operators[earlier].position.later = op.position.earlier = p;
        }
        earlier = static_cast<int>(i), between = {}, broken = false;
        in_turn = own;
        continue;
      }
      between.between_bytes += begun_bytes[i], between.between_gathers += begins[i];
      const Place& place = manner_.places[i];
      broken |= place.parameters && (!small(place) || op.split_tensor >= 0);
      broken |= acquires_slices[i];
      broken |= op.block >= 0 && earlier >= 0 && op.block != model_.operators[earlier].block &&
                block_end_[op.block] == static_cast<int>(i);
      // What does not grow with the batch is counted for every sample: the wait for it is at most that long.
      between.forward_per_sample += again + ps(op.recompute_s_fixed);
      between.backward_per_sample += own_backward;
      between.backward_fixed += ps(op.compute_s_fixed);
      in_turn.fixed += own.fixed, in_turn.per_sample += own.per_sample;
    }
    if (waits_forward + waits_backward > 0 &&
        (forward - waits_forward <= pairs || backward - waits_backward <= 3 * pairs))
      for (Operator& op : model_.operators) op.position.earlier = op.position.later = {};
  }

  // Note [Gradients that are left] in problem/phases.hpp. Where one of the two is much smaller, another phase
  // decides.
  void set_left() {
    constexpr int64_t kMuchLess = 8;
    std::vector<bool> reduces(model_.operators.size());
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      if (model_.operators[i].split_tensor < 0) continue;
      for (const Span& s : manner_.places[i].calls)
        if (s.last != static_cast<int>(i)) reduces[s.last] = true;
    }
    size_t earlier = 0;
    bool none = true;
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const int block = model_.operators[i].block;
      none |= block < 0 || reduces[i] || (i > 0 && model_.operators[i - 1].block != block);
      if (!manner_.places[i].parameters) continue;
      const auto [less, more] =
          std::minmax(manner_.places[i].gathered_bytes, manner_.places[earlier].gathered_bytes);
      if (!none && less >= more / kMuchLess) {
        model_.operators[i].position.left_phases = static_cast<int64_t>(i - earlier);
        for (size_t j = earlier; j < i; ++j) model_.operators[j].position.sees_left = true;
      }
      earlier = i, none = reduces[i];
    }
  }

  Model& model_;
  const Manner& manner_;
  std::vector<int> block_end_;
  std::map<Key, Joinable> joinable_;
  int64_t largest_ = 0;  // of any operator
};

}  // namespace

void set_step_positions(Model& model, const Manner& manner, bool blocks) {
  Positions(model, manner).set(blocks);
}

}  // namespace osdp::search
