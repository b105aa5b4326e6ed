#include "search/simulate/step_of_plan.hpp"

#include <algorithm>
#include <utility>

#include "search/problem/equivalence_classes.hpp"
#include "search/problem/problem.hpp"
#include "search/problem/slices.hpp"
#include "search/problem/validate.hpp"

namespace osdp::search {
namespace {

// By block: whether an operator without parameters comes after its last one with parameters, or is what a
// module around that one computes by itself, which may be the block's end.
std::vector<bool> bare_ends(const Model& model) {
  std::vector<bool> bare(model.blocks.size(), true);
  std::vector<const Operator*> last(model.blocks.size(), nullptr);
  for (const Operator& op : model.operators) {
    if (op.block < 0) continue;
    bare[op.block] = op.tensors.empty();
    if (!op.tensors.empty()) last[op.block] = &op;
  }
  for (const Operator& op : model.operators) {
    if (op.block < 0 || !op.tensors.empty() || bare[op.block]) continue;
    const std::string& end = last[op.block]->name;
    bare[op.block] = end.starts_with(op.name) && end.size() > op.name.size() && end[op.name.size()] == '.';
  }
  return bare;
}

class Builder {
 public:
  Builder(const Model& model, const Request& request, const PlainPlan& plan, const LaneTimes& links,
          ChoiceCandidates& candidates)
      : model_(model),
        request_(request),
        plan_(plan),
        links_(links),
        candidates_(candidates),
        modes_(model.operators.size(), Mode::NoShard),
        sliced_(model.operators.size()),
        kept_gradients_(model.operators.size()) {
    validate(model, plan);
    const PipelineStage& stage = request_.space.stage;
    if (stage.once() && plan.batch.accumulation != stage.micro_batches)
      throw InvalidProblem("a stage of " + std::to_string(stage.micro_batches) +
                           " micro-batches is played with " + std::to_string(plan.batch.accumulation));
  }

  Step build(std::vector<PlannedUnit> units, Lanes lanes) {
    step_.operators.reserve(model_.operators.size());
    step_.units.reserve(units.size());
    step_.accumulation = plan_.batch.accumulation;
    step_.prefetch = plan_.prefetch;
    step_.gather_bytes = plan_.gather_bytes;
    step_.lanes = lanes;
    step_.held_bytes = of_batch(model_.buffer_bytes, model_.input_bytes_per_sample);
    const std::vector<bool> bare = bare_ends(model_);
    for (size_t b = 0; b < model_.blocks.size(); ++b) {
      step_.blocks.push_back({plan_.blocks[b] == Recompute::Hold,
                              of_batch(0, model_.blocks[b].input_bytes_per_sample), bare[b]});
    }
    for (size_t i = 0; i < model_.operators.size(); ++i) add_operator(i);
    leave_out_waiting_gradients();
    hold_others_in_flight();
    step_.buckets_once = request_.space.stage.once();
    for (PlannedUnit& unit : units) add_unit(std::move(unit));
    for (const auto& [from, to] : gradients_begin_at_) {
      const int64_t bytes = std::exchange(step_.operators[from].whole_gradient_bytes, 0);
      step_.operators[to].whole_gradient_bytes = Linear{step_.operators[to].whole_gradient_bytes, bytes}(1);
      const int64_t summed = std::exchange(step_.operators[from].summed_gradient_bytes, 0);
      step_.operators[to].summed_gradient_bytes += summed;  // at most the former
    }
    return std::move(step_);
  }

 private:
  // Throws InvalidProblem if it overflows 2^61.
  int64_t of_batch(int64_t fixed, int64_t per_sample) const {
    return Linear{fixed, per_sample}(plan_.batch.size);
  }

  void add_operator(size_t i) {
    const Operator& op = model_.operators[i];
    const auto ps = [&](double seconds) { return picoseconds(seconds, "operator", op.name); };
    const Recompute way = op.block < 0 ? Recompute::None : plan_.blocks[op.block];
    StepOperator& o = step_.operators.emplace_back();
    o.name = op.name;
    o.block = way == Recompute::None ? -1 : op.block;
    const int64_t forward = of_batch(ps(op.recompute_s_fixed), ps(op.recompute_s_per_sample));
    const int64_t both = of_batch(ps(op.compute_s_fixed), ps(op.compute_s_per_sample));
    o.forward_ps = std::min(forward, both);
    o.backward_ps = both - o.forward_ps;
    o.recompute_ps = recompute_ps(op, request_.device)(plan_.batch.size);
    o.saved_bytes = of_batch(op.saved_bytes_fixed, op.saved_bytes_per_sample);
    o.work_bytes = of_batch(op.work_bytes_fixed, op.work_bytes_per_sample);
    if (op.tensors.empty()) return;
    const PlainPlan::Choice& choice = plan_.choices[i];
    const Candidate& c = candidates_.of(i, op, way, choice);
    modes_[i] = c.mode;
    o.resident_bytes = c.state_bytes - c.gradient_bytes;
    // Backward of the first slice allocates the gradients that this rank keeps of all slices.
    o.whole_gradient_bytes = c.granularity > 1 ? c.gradient_bytes : c.whole_gradient_bytes;
    if (c.granularity > 1) o.summed_gradient_bytes = summed_in_place(op, c);
    o.parts = c.granularity;
    sliced_[i] = c.granularity > 1;
    if (sliced_[i]) {  // each further slice launches three more products, one of them in forward
      const int64_t launches = ps(slices_s(op, request_.space, c.granularity));
      o.forward_ps += launches / 3;
      o.recompute_ps += launches / 3;
      o.backward_ps += launches - launches / 3;
    }
    kept_gradients_[i] = c.gradient_bytes - o.whole_gradient_bytes;
    step_.optimizer_ps = Linear{step_.optimizer_ps, c.optimizer_ps}(1);
  }

  // Note [Gradients that wait] in problem/phases.hpp. Where only some such weights are in slices, nothing is
  // known of the others' part.
  void leave_out_waiting_gradients() {
    for (size_t i = 0; i < model_.operators.size(); ++i)
      if (sums_gradients(model_.operators[i]) && !sliced_[i]) return;
    int64_t less = 0;  // of operators up to this one
    for (size_t i = 0; i < model_.operators.size(); ++i) {
      const Operator& op = model_.operators[i];
      const auto [after, own] = less_in_slices(op);
      less = Linear{less, after}(1);
      StepOperator& o = step_.operators[i];
      o.work_bytes -= std::min({op.waiting_gradient_bytes, Linear{less, own}(1), o.work_bytes});
    }
  }

  // Of the weight of a split operator: the slices that every rank has.
  static int64_t whole_bytes(const Operator& op, int64_t granularity, int64_t sharded, Split split) {
    const Slices slices(op, granularity, sharded, split);
    return slices.bytes(op.tensors.at(op.split_tensor).bytes(), slices.whole);
  }

  // The gradients of slices that a further micro-batch adds in place: under mixed precision those of sharded
  // ones, the others wait for their bucket (StepBucket::further_bytes).
  static int64_t summed_in_place(const Operator& op, const Candidate& c) {
    const Tensor& weight = op.tensors.at(op.split_tensor);
    if (!weight.trainable) return 0;
    int64_t bytes = c.gradient_bytes;
    for (const Tensor& t : op.tensors)
      if (&t != &weight && t.trainable) bytes -= t.bytes();
    const bool mixed = weight.compute_bytes() != weight.bytes() || weight.reduce_bytes() != weight.bytes();
    return bytes - (mixed ? whole_bytes(op, c.granularity, c.sharded_slices, c.split) : 0);
  }

  // What the other micro-batches in flight have saved: of recomputed blocks their inputs.
  void hold_others_in_flight() {
    int128 one = of_batch(0, model_.input_bytes_per_sample);
    for (const StepOperator& o : step_.operators)
      if (o.block < 0) one += o.saved_bytes;
    std::vector<bool> counted(step_.blocks.size());
    for (const StepOperator& o : step_.operators) {
      if (o.block < 0 || counted[o.block]) continue;
      counted[o.block] = true;
      one += step_.blocks[o.block].input_bytes;
    }
    const int128 all = step_.held_bytes + (request_.space.stage.in_flight - 1) * one;
    if (all > kLargestSum) throw InvalidProblem("the micro-batches in flight: more than 2^61 bytes");
    step_.held_bytes = static_cast<int64_t>(all);
  }

  // Products of slices in 16 bits are summed in float (csrc/ops/products.hpp): outputs of input slices in
  // forward, the input's gradient of output slices in backward. Beside the float sum forward has what the
  // model has then: the sum's result, an input that no backward needs, and values that are read later. A
  // recomputation has the first two, and the gradients on their way, which are part of what the backward of
  // the block's end takes.
  // `o`, `at`: where the product with the weight of `op` is; elsewhere than `op` if that is tied.
  void add_sum_of_slices(StepOperator& o, const Operator& at, const Operator& op, Split split) const {
    const Tensor& weight = op.tensors[op.split_tensor];
    if (!sums_in_float(op)) return;
    const auto rows_of = [&](int64_t row) {
      const int128 all = static_cast<int128>(op.rows_per_sample) * row;
      if (all > kLargestSum) throw InvalidProblem("operator '" + op.name + "': more than 2^61 bytes");
      return of_batch(0, static_cast<int64_t>(all));
    };
    const auto add = [](int64_t a, int64_t b) { return Linear{a, b}(1); };
    if (split == Split::Out) {
      o.work_bytes = add(o.work_bytes, rows_of(op.in_features * int64_t{sizeof(float)}));
      return;
    }
    const int64_t sum = rows_of(op.out_features * int64_t{sizeof(float)});
    const int64_t ends = rows_of(2 * (op.out_features + (weight.trainable ? 0 : op.in_features)));
    const int64_t values = of_batch(at.forward_work_bytes_fixed, at.forward_work_bytes_per_sample);
    o.forward_work_bytes = add(sum, std::max(ends, values));
    if (o.block < 0) return;
    o.forward_work_bytes =
        add(o.forward_work_bytes, rows_of(2 * op.in_features));  // not saved by this forward
    const auto of_block = [&](const Operator& other) { return other.block == at.block; };
    const Operator& end = *std::find_if(model_.operators.rbegin(), model_.operators.rend(), of_block);
    const int64_t gradients = of_batch(end.backward_work_bytes_fixed, end.backward_work_bytes_per_sample);
    o.recompute_work_bytes = add(add(sum, ends), gradients);
  }

  // A look-up copies the rows that it has found in a slice, as many as a slice has at most, to the result,
  // which is among the values that later operators read. Slices of rows need the indices in order, where they
  // were, and those of one slice. Columns of the gradient are copied in backward.
  void add_copies_of_look_up(StepOperator& o, const Operator& at, int64_t slice_bytes, int64_t row_bytes,
                             int64_t granularity, Split split) const {
    const int64_t values = of_batch(at.forward_work_bytes_fixed, at.forward_work_bytes_per_sample);
    const int64_t indices = split == Split::Out ? values / row_bytes * 3 * int64_t{sizeof(int64_t)} : 0;
    const int64_t copies = Linear{std::min(slice_bytes, values), indices}(1);
    o.forward_work_bytes = std::max(o.forward_work_bytes, Linear{copies, values}(1));
    if (o.block >= 0) o.recompute_work_bytes = std::max(o.recompute_work_bytes, o.forward_work_bytes);
    if (split == Split::In) o.work_bytes = Linear{o.work_bytes, o.work_bytes / granularity}(1);
  }

  // A slice of a convolution makes a part of the outputs, which is copied to its place; in backward it reads
  // a copy of their gradient, makes a whole gradient of the input, which is added to the sum (a float one in
  // 16 bits), and is there while its own gradient is made. Its operator works on the gradients of both, and
  // on copies of the weight, of which it makes fewer.
  void add_terms_of_convolution(StepOperator& o, const Operator& at, const Operator& op, const Slices& slices,
                                int64_t granularity) const {
    const Tensor& weight = op.tensors[op.split_tensor];
    const int64_t element = weight.compute_bytes() / (op.out_features * op.in_features);
    const int128 a_sample = static_cast<int128>(op.rows_per_sample) * op.out_features * element;
    if (a_sample > kLargestSum) throw InvalidProblem("operator '" + op.name + "': more than 2^61 bytes");
    const int64_t outputs = of_batch(0, static_cast<int64_t>(a_sample));
    const int64_t part = (outputs + granularity - 1) / granularity;
    const int64_t input = std::max<int64_t>(0, of_batch(0, at.work_bytes_per_sample) - outputs);
    const int64_t fewer = &at == &op ? fewer_copies(op, slices) : 0;
    const auto add = [](int64_t a, int64_t b) { return Linear{a, b}(1); };
    const int64_t values = of_batch(at.forward_work_bytes_fixed, at.forward_work_bytes_per_sample);
    o.forward_work_bytes = std::max(o.forward_work_bytes, add(values, part) - std::min(fewer, values));
    if (o.block >= 0) o.recompute_work_bytes = std::max(o.recompute_work_bytes, o.forward_work_bytes);
    o.work_bytes = add(add(o.work_bytes, part), element == 2 ? add(input, input) : input);
    if (weight.trainable)
      o.work_bytes = add(o.work_bytes, slices.bytes(weight.compute_bytes(), slices.large));
    o.work_bytes -= std::min(fewer, o.work_bytes);
  }

  void add_unit(PlannedUnit unit) {
    for (int i : unit.operators) {
      if (i < 0 || static_cast<size_t>(i) >= model_.operators.size()) {
        throw InvalidProblem("unit '" + unit.name + "' has an unknown operator");
      }
    }
    if (unit.operators.empty()) return;
    Mode mode = Mode::NoShard;  // unless an operator of it is sharded
    for (int i : unit.operators)
      if (modes_[i] != Mode::NoShard) mode = modes_[i];
    if (request_.device.ranks == 1 && mode == Mode::NoShard) return;  // nobody to average with
    const auto first = static_cast<size_t>(unit.operators.front());
    if (model_.operators[first].tensors.empty())
      throw InvalidProblem("unit '" + unit.name + "' begins with an operator that has no parameters");
    if (sliced_[first]) return add_slices(unit);
    size_t tensors = 0, trained = 0;  // of all members
    for (int i : unit.operators)
      for (const Tensor& t : model_.operators[i].tensors) ++tensors, trained += t.trainable;
    int128 all = 0, sent = 0, made = 0, kept = 0, copies = 0, packed = 0, means = 0, cast = 0;
    for (int i : unit.operators) {
      StepOperator& o = step_.operators[i];
      int64_t gradients = 0;  // in the compute or the reduce dtype, whichever is larger
      for (const Tensor& t : model_.operators[i].tensors) {
        all += t.compute_bytes();
        if (t.trainable) sent += t.reduce_bytes(), gradients += std::max(t.compute_bytes(), t.reduce_bytes());
      }
      kept += kept_gradients_[i];
      if (modes_[i] != Mode::NoShard)
        for (const Tensor& t : model_.operators[i].tensors) {
          const bool small = t.compute_bytes() <= kSmallTensorBytes;
          copies += small && trained > 1 && t.trainable ? t.reduce_bytes() : copied(t, modes_[i]);
          if (small && tensors > 1) packed += t.compute_bytes();
          if (t.trainable && t.reduce_bytes() != t.bytes()) {
            means += part_of(t.reduce_bytes(), modes_[i]);
            cast += part_of(t.bytes(), modes_[i]);
          }
        }
      if (o.whole_gradient_bytes == 0) o.full_gradient_bytes = gradients;
      made += o.full_gradient_bytes;
    }
    const Offloaded away = offloaded(unit.operators, mode);
    kept += away.trained;
    if (std::max({away.rows, all, sent, made, kept, copies, packed, means, cast}) > kLargestSum)
      throw InvalidProblem("unit '" + unit.name + "': more than 2^61 bytes");
    if (mode == Mode::NoShard) return add_bucket(std::move(unit.name), std::move(unit.operators));
    StepUnit& u = step_.units.emplace_back();
    u.name = std::move(unit.name);
    u.members = std::move(unit.operators);
    u.calls = std::move(unit.calls);
    u.repeats = unit.repeats;
    u.keeps = traits(mode).kept;
    u.gather = links_.gather(static_cast<int64_t>(all), mode);
    u.reduce = links_.reduce(static_cast<int64_t>(sent), mode);
    u.average = links_.average(static_cast<int64_t>(sent), mode);
    u.full_bytes = static_cast<int64_t>(all);
    u.gradient_bytes = static_cast<int64_t>(made);
    u.kept_gradient_bytes = static_cast<int64_t>(kept);
    u.copied_bytes = static_cast<int64_t>(copies);
    u.mean_bytes = static_cast<int64_t>(means),
    u.cast_bytes = std::min(u.kept_gradient_bytes, static_cast<int64_t>(cast));
    u.packed_bytes = static_cast<int64_t>(packed);
    u.frozen_part = trained < tensors;
    u.once = u.keeps && request_.space.stage.once();
    if (traits(mode).on_host) add_copies(u, away, traits(mode).inside_hosts);
    if (traits(mode).by_hosts) add_second(u, mode);
  }

  // What the ranks in the same place of all hosts exchange, of a gather and of a reduction.
  void add_second(StepUnit& u, Mode mode) const {
    const Device& device = request_.device;
    int128 second = 0, reduced = 0;
    for (int i : u.members)
      for (const Tensor& t : model_.operators[i].tensors) {
        const int128 rows = t.rows_of_places(device.ranks, device.hosts);
        second += rows * t.compute_row();
        if (t.trainable) reduced += rows * t.reduce_row();
      }
    if (std::max(second, reduced) > kLargestSum)
      throw InvalidProblem("unit '" + u.name + "': more than 2^61 bytes");
    (traits(mode).second ? u.second_bytes : u.brought_bytes) = static_cast<int64_t>(second);
    u.of_host_bytes = static_cast<int64_t>(reduced);
    if (traits(mode).second) u.gather_again = links_.gather_again(u.full_bytes, mode);
  }

  // What a rank has of a unit in host memory: rows, those of them that are trained, and those that are
  // brought to the device in another dtype than they are gathered in.
  struct Offloaded {
    int128 rows = 0, trained = 0, brought = 0;
  };
  Offloaded offloaded(const std::vector<int>& members, Mode mode) const {
    Offloaded away;
    if (!traits(mode).on_host) return away;
    const int64_t ranks = ranks_that_share(mode);
    for (int i : members)
      for (const Tensor& t : model_.operators[i].tensors) {
        if (!t.shardable) continue;
        const int64_t part = t.part_bytes(ranks);
        away.rows += part;
        if (t.trainable) away.trained += part;
        if (t.compute_bytes() != t.bytes()) away.brought += part;
      }
    return away;
  }

  // A gather begins with the copy of this rank's rows from the host, and the last of the reductions ends with
  // that of the gradient's to it. Copies are waits of the lane: they use another link than collectives do,
  // and take nothing from computation.
  void add_copies(StepUnit& u, const Offloaded& away, bool averaged) const {
    const auto longer = [](LaneTime& time, int64_t ps) { time.alone_ps += ps, time.beside_ps += ps; };
    u.host_gradient_bytes = static_cast<int64_t>(away.trained);
    u.brought_bytes = static_cast<int64_t>(away.brought);
    u.further_ps = links_.copy_ps(u.host_gradient_bytes);
    longer(u.gather, links_.copy_ps(static_cast<int64_t>(away.rows)));
    longer(averaged ? u.average : u.reduce, u.further_ps);
  }

  // The same of a slice of `part` of a weight. Of several calls that make its gradient, all but the first add
  // to what is on the host.
  void add_copies_of_slice(StepUnit& u, const Tensor& weight, const Slices& slices, int64_t part) const {
    const int64_t item = weight.bytes() / (slices.rows * slices.columns), ranks = request_.device.ranks;
    const int64_t rows = (slices.rows_of(part) + ranks - 1) / ranks * slices.columns_of(part) * item;
    Offloaded away{rows, weight.trainable ? rows : 0, 0};
    if (weight.compute_bytes() != weight.bytes()) away.brought = rows;
    if (weight.trainable) {
      if (weight.reduce_bytes() != weight.bytes()) u.mean_bytes = u.kept_gradient_bytes, u.cast_bytes = rows;
      u.kept_gradient_bytes = rows;
    }
    add_copies(u, away, false);
    if (u.calls.size() > 1) u.reduce.alone_ps += u.further_ps, u.reduce.beside_ps += u.further_ps;
  }

  // The bytes of the gradient of `t`, or of a slice of it with so many `rows` and bytes, that are copied to
  // be sent: it is padded if the ranks cannot share its rows evenly, and cast if it is reduced in another
  // dtype.
  int64_t copied(const Tensor& t, Mode mode) const { return copied(t, t.rows, t.reduce_bytes(), mode); }
  int64_t copied(const Tensor& t, int64_t rows, int64_t sent, Mode mode) const {
    const bool even = rows % ranks_that_share(mode) == 0 && t.reduce_bytes() == t.compute_bytes();
    return even || !t.trainable ? 0 : sent;
  }

  int64_t part_of(int64_t bytes, Mode mode) const {
    return (bytes + ranks_that_share(mode) - 1) / ranks_that_share(mode);
  }

  int64_t ranks_that_share(Mode mode) const {
    return traits(mode).inside_hosts ? request_.device.ranks / request_.device.hosts : request_.device.ranks;
  }

  // Adds the bucket of replicated operators.
  void add_bucket(std::string name, std::vector<int> members) {
    std::vector<const Tensor*> tensors;
    for (int i : members) {
      for (const Tensor& t : model_.operators[i].tensors)
        if (t.trainable) tensors.push_back(&t);
    }
    int64_t sent = 0, small = 0;
    bool mixed = false;
    for (const Tensor* t : tensors) {
      sent += t->reduce_bytes();
      if (t->bytes() <= kSmallTensorBytes && tensors.size() > 1) small += t->bytes();
      mixed |= t->compute_bytes() != t->bytes() || t->reduce_bytes() != t->bytes();
    }
    add_bucket(std::move(name), std::move(members), sent, mixed ? sent : small);
    if (mixed && sent > 0) cast_gradients(step_.buckets.back());
  }

  // Backward produces the gradients of the bucket in the compute dtype; the means are kept in the
  // parameters'.
  void cast_gradients(StepBucket& bucket) {
    for (int i : bucket.members) {
      StepOperator& o = step_.operators[i];
      bucket.mean_bytes += std::exchange(o.whole_gradient_bytes, 0);
      for (const Tensor& t : model_.operators[i].tensors)
        if (t.trainable) o.cast_gradient_bytes += t.compute_bytes();
      bucket.cast_bytes += o.cast_gradient_bytes;
    }
  }

  // `copied`: the part of `bytes` that is sent from a copy: small tensors travel together in one, and in
  // mixed precision there is always one, in the dtype of averaging.
  void add_bucket(std::string name, std::vector<int> members, int64_t bytes, int64_t copied) {
    if (bytes == 0) return;
    StepBucket& bucket = step_.buckets.emplace_back();
    bucket.name = std::move(name);
    bucket.members = std::move(members);
    bucket.reduce = links_.all_reduce(bytes);
    bucket.buffer_bytes = copied;
  }

  // The calls that acquire slices of a split operator: its own, and those of others that it is tied to.
  std::vector<Span> acquiring_calls(const PlannedUnit& unit) const {
    const int own = unit.operators.front();
    if (unit.calls.size() < 2) return {{own, own}};
    std::vector<Span> calls = unit.calls;
    for (const Span& s : calls)
      if (s.last < 0 || static_cast<size_t>(s.last) >= model_.operators.size())
        throw InvalidProblem("unit '" + unit.name + "' is gathered at an unknown operator");
    if (std::none_of(calls.begin(), calls.end(), [&](const Span& s) { return s.last == own; }))
      calls.front() = {own, own};
    return calls;
  }

  // Adds each sharded slice as a unit; the other slices and the other parameters form buckets.
  void add_slices(const PlannedUnit& unit) {
    const int i = unit.operators.front();
    const Operator& op = model_.operators[i];
    const PlainPlan::Choice& choice = plan_.choices[i];
    const Tensor& weight = op.tensors.at(op.split_tensor);
    const Slices slices(op, choice.granularity, choice.sharded_slices, choice.split);
    const int64_t largest = slices.bytes(weight.compute_bytes(), slices.large);
    const int64_t whole = choice.granularity - choice.sharded_slices;
    const std::vector<Span> acquired = acquiring_calls(unit);
    int64_t calls = 0;
    int last = i;
    for (const Span& s : acquired) {
      last = std::max(last, s.last);
      StepOperator& o = step_.operators[s.last];
      const Operator& at = model_.operators[s.last];
      if (s.last != i) o.parts = (o.parts == 1 ? 0 : o.parts) + choice.granularity;
      if (whole > 0 && weight.trainable) o.slice_gradient_bytes = std::max(o.slice_gradient_bytes, largest);
      if (whole > 0 && weight.copy_bytes() > 0) o.slice_copy_bytes = std::max(o.slice_copy_bytes, largest);
      if (calls++ < op.look_ups)
        add_copies_of_look_up(o, at, largest, weight.compute_bytes() / op.out_features, choice.granularity,
                              choice.split);
      else if (op.convolution)
        add_terms_of_convolution(o, at, op, slices, choice.granularity);
      else
        add_sum_of_slices(o, at, op, choice.split);
    }
    if (last > i) gradients_begin_at_.emplace_back(i, last);
    for (int64_t s = whole; s < choice.granularity; ++s) {
      const int64_t part = slice_begin(slices.length, choice.granularity, s + 1) -
                           slice_begin(slices.length, choice.granularity, s);
      const int64_t slice = slices.bytes(weight.compute_bytes(), part),
                    sent = slices.bytes(weight.reduce_bytes(), part);
      StepUnit& u = step_.units.emplace_back();
      u.name = unit.name + " slice " + std::to_string(s);
      u.members = {i};
      u.slice = true;
      u.calls = acquired, u.repeats = unit.repeats, u.look_ups = op.look_ups;
      u.gather = links_.gather(slice, choice.mode);
      u.full_bytes = slice;
      if (weight.trainable)
        u.reduce = links_.reduce(sent, choice.mode), u.gradient_bytes = std::max(slice, sent);
      if (weight.trainable)
        u.kept_gradient_bytes = (sent + request_.device.ranks - 1) / request_.device.ranks,
        u.copied_bytes = copied(weight, slices.rows_of(part), sent, choice.mode);
      if (traits(choice.mode).on_host) add_copies_of_slice(u, weight, slices, part);
    }
    int64_t others = 0;
    for (const Tensor& t : op.tensors) others += t.trainable && &t != &weight ? t.reduce_bytes() : 0;
    const bool mixed = weight.compute_bytes() != weight.bytes() || weight.reduce_bytes() != weight.bytes();
    add_bucket(unit.name + " bias", {i}, others, mixed ? others : 0);
    if (!weight.trainable || whole == 0) return;
    const int64_t replicated = slices.bytes(weight.reduce_bytes(), slices.whole);
    add_bucket(unit.name, {i}, replicated, mixed ? replicated : 0);
    if (mixed) step_.buckets.back().further_bytes = slices.bytes(weight.bytes(), slices.whole);
  }

  const Model& model_;
  const Request& request_;
  const PlainPlan& plan_;
  const LaneTimes& links_;
  ChoiceCandidates& candidates_;
  Step step_;
  std::vector<Mode> modes_;  // by operator: its actual mode
  std::vector<bool> sliced_;
  std::vector<int64_t> kept_gradients_;  // by operator: this rank's part
  // Split operators, and those in whose backward the gradients of their slices begin: the last that reads
  // them.
  std::vector<std::pair<int, int>> gradients_begin_at_;
};

}  // namespace

ChoiceCandidates::ChoiceCandidates(const Request& request) : device_(request.device), space_(request.space) {
  space_.stage = {};  // of what lasts through micro-batches the units know
}

const Candidate& ChoiceCandidates::of(size_t i, const Operator& op, Recompute way,
                                      const PlainPlan::Choice& choice) {
  known_.resize(std::max(known_.size(), i + 1));
  for (const Known& k : known_[i])
    if (k.way == way && k.choice == choice) return k.candidate;
  known_[i].push_back({way, choice,
                       candidate_of(op, device_, space_, way, choice.mode, choice.granularity,
                                    choice.sharded_slices, choice.split)});
  return known_[i].back().candidate;
}

Step StepBuilder::build(const Model& model, const PlainPlan& plan, std::vector<PlannedUnit> units) {
  return Builder(model, request_, plan, links_, candidates_).build(std::move(units), lanes_);
}

}  // namespace osdp::search
