#include "runtime/step/gradient_buckets.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "comm/arithmetic.hpp"
#include "comm/packing.hpp"
#include "ops/accumulate.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/store/precision.hpp"

namespace osdp::runtime {

at::Tensor GradientBuckets::Item::gradient() const {
  const at::Tensor& grad = param->local_grad();
  if (!grad.defined() || !param->split()) return grad;
  return grad.narrow(0, 0, param->whole_rows());
}

namespace {

// Large gradients are averaged in place, except those that cannot be: one that is not contiguous, or whose
// memory another gradient shares (it would be summed twice), is averaged in a copy. Small ones share one flat
// copy, sent after the large ones.
struct Gradients {
  comm::Tensors large, small;
  std::vector<char> in_place;  // of the large ones

  explicit Gradients(const comm::Tensors& all) {
    std::set<const void*> memory;
    for (const at::Tensor& g : all) {
      if (all.size() > 1 && g.nbytes() <= comm::kSmallBytes) {
        small.push_back(g);
        continue;
      }
      large.push_back(g);
      in_place.push_back(g.is_contiguous() && memory.insert(g.storage().unsafeGetStorageImpl()).second);
    }
  }

  // The leading tensors that can be sent before the lane has made copies.
  comm::Tensors first() const {
    comm::Tensors flat;
    for (size_t i = 0; i < large.size() && in_place[i]; ++i) flat.push_back(large[i].view({-1}));
    return flat;
  }
};

// Groups parameters whose gradients can be averaged together: those of equal dtypes.
std::vector<std::vector<Parameter*>> alike_in_precision(const std::vector<Parameter*>& params) {
  std::vector<std::vector<Parameter*>> groups;
  for (Parameter* p : params) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
      return g[0]->own_dtype() == p->own_dtype() && g[0]->reduce_dtype() == p->reduce_dtype() &&
             g[0]->mixed() == p->mixed();
    });
    if (group == groups.end())
      groups.push_back({p});
    else
      group->push_back(p);
  }
  return groups;
}

// One all-reduce of all gradients.
void average_together(comm::Collectives& collectives, const Gradients& gradients) {
  comm::Tensors together;
  for (size_t i = 0; i < gradients.large.size(); ++i) {
    const at::Tensor& g = gradients.large[i];
    together.push_back((gradients.in_place[i] ? g : g.clone(at::MemoryFormat::Contiguous)).view({-1}));
  }
  std::optional<comm::FlatPack> pack;
  comm::Batch there, back;
  if (!gradients.small.empty()) {
    std::vector<int64_t> counts;
    for (const at::Tensor& g : gradients.small) counts.push_back(g.numel());
    pack.emplace(counts, gradients.small[0].options());
    for (size_t i = 0; i < counts.size(); ++i) there.set(pack->parts[i], gradients.small[i]);
    together.push_back(pack->flat);
  }
  there.run();
  collectives.all_reduce_mean(together);
  for (size_t i = 0; i < gradients.large.size(); ++i)
    if (const at::Tensor& g = gradients.large[i]; !gradients.in_place[i])
      back.set(g, together[i].view(g.sizes()));
  for (size_t i = 0; i < gradients.small.size(); ++i)
    back.set(gradients.small[i], pack->parts[i].view(gradients.small[i].sizes()));
  back.run();
}

}  // namespace

void GradientBuckets::add(const std::string& name, const std::vector<Parameter*>& params) {
  for (const std::vector<Parameter*>& alike : alike_in_precision(params)) open(name, alike);
}

void GradientBuckets::open(const std::string& name, const std::vector<Parameter*>& params) {
  Bucket bucket;
  std::vector<std::string> names;
  for (Parameter* param : params) {
    bucket.items.push_back(std::make_unique<Item>(param, buckets_.size()));
    if (item_of_.size() <= param->index()) item_of_.resize(param->index() + 1);
    item_of_[param->index()] = bucket.items.back().get();
    names.push_back(param->name());
  }
  bucket.names = faults::TaskNames(name + " all-reduce", model_, std::move(names));
  buckets_.push_back(std::move(bucket));
}

void GradientBuckets::close_all() {
  item_of_.clear();
  buckets_.clear();
}

at::Tensor& GradientBuckets::split_gradient(Parameter& param) {
  Item* item = item_of(param);
  if (item && !param.local_grad().defined()) item->first = step_.syncs(param);
  return param.ensure_local_grad();
}

void GradientBuckets::arrived(const Parameter& param) {
  Item& item = *item_of(param);
  item.dirty = true;
  if (!step_.sync) return;
  item.queued = param.sync();
  Bucket& bucket = buckets_[item.bucket];
  const auto expected = [&] {
    int64_t count = 0;
    for (const auto& other : bucket.items) count += in_graph_task(other->param->accumulator().get());
    return count;
  };
  if (bucket.arrivals.add(current_graph_task(), expected)) launch(bucket);
}

void GradientBuckets::await(const Parameter& param) {
  Item* item = item_of(param);
  if (!item) return;
  item->in_flight.wait();
  item->in_flight = comm::Work();
}

at::Tensor* GradientBuckets::averaged_alone(const Parameter& param) {
  Item* item = item_of(param);
  return item && step_.syncs(param) && item->averages_alone() ? &item->pending : nullptr;
}

void GradientBuckets::add_slice_gradient(Parameter& p, int64_t slice, const at::Tensor& gradient) {
  at::Tensor kept = split_gradient(p);
  if (Item* item = item_of(p)) {
    await(p);
    const bool alone = p.mixed() && step_.syncs(p) && item->averages_alone() && !item->first;
    item->dirty = true;
    if (alone) {
      if (!item->pending.defined()) item->pending = at::zeros_like(kept.narrow(0, 0, p.whole_rows()));
      kept = item->pending;
    }
  }
  const Piece& piece = p.pieces()[slice];
  ops::accumulate(kept.narrow(0, piece.local_begin, piece.local_count), gradient);
}

void GradientBuckets::launch(Bucket& bucket) {
  std::vector<Item*> launched;
  std::vector<Averaged> gradients = take(bucket, launched);
  if (gradients.empty()) return;
  const faults::TaskNamePtr name = bucket.names.of(bucket.parts, step_.accumulates);
  const bool mixed = bucket.items[0]->param->mixed();
  works_.push_back(mixed ? submit_mixed(name, std::move(gradients)) : submit_in_place(name, gradients));
  for (Item* item : launched) item->in_flight = works_.back();
}

std::vector<Averaged> GradientBuckets::take(Bucket& bucket, std::vector<Item*>& taken) {
  std::vector<Averaged> gradients;
  bucket.parts.assign(bucket.items.size(), faults::TaskNames::Part::None);
  for (size_t i = 0; i < bucket.items.size(); ++i) {
    Item* item = bucket.items[i].get();
    if (!item->queued) continue;
    item->queued = item->dirty = false;
    item->param->note_reduced();
    const bool alone = item->pending.defined(), first = std::exchange(item->first, false);
    if (alone && (item->param->split() || item->pending.numel() == 0)) item->param->ensure_local_grad();
    at::Tensor kept = item->gradient();
    at::Tensor gradient = alone ? std::exchange(item->pending, at::Tensor()) : kept;
    if (!gradient.defined()) continue;
    OSDP_CHECK(gradient.layout() == at::kStrided, Sharding, "OSDP: parameter '", item->param->name(),
               "' got a sparse gradient, which is not supported. Use sparse=False in its module.");
    if (gradient.numel() == 0) continue;
    taken.push_back(item);
    const bool with_kept = item->param->mixed() && !alone && !first;
    bucket.parts[i] = with_kept ? faults::TaskNames::Part::WithKept : faults::TaskNames::Part::Gradient;
    gradients.push_back({item->param, std::move(gradient), std::move(kept), !alone});
  }
  return gradients;
}

comm::Work GradientBuckets::submit_in_place(const faults::TaskNamePtr& name,
                                            const std::vector<Averaged>& averaged) {
  comm::Tensors all;
  for (const Averaged& each : averaged) all.push_back(each.gradient);
  const Gradients gradients(all);
  comm::EarlySend early = collectives_->early_send_of_all_reduce(gradients.first());
  return lane_->submit(
      name, [gradients, collectives = collectives_] { average_together(*collectives, gradients); },
      std::move(early));
}

comm::Work GradientBuckets::submit_mixed(const faults::TaskNamePtr& name, std::vector<Averaged> averaged) {
  const auto gradients = std::make_shared<std::vector<Averaged>>(std::move(averaged));
  const at::ScalarType reduce = gradients->front().param->reduce_dtype();
  // At most one bucket is being averaged while the gradients of the next are computed, as plans count it.
  if (!works_.empty()) works_.back().wait();
  // A stream's lane keeps the tensors that it reads until the computing stream has waited for it. So it gets
  // a copy, and the gradients themselves are freed as soon as they have been copied.
  const at::NoGradGuard no_grad;
  at::Tensor copy = lane_->keeps() ? joined(collectives_->world(), reduce, *gradients) : at::Tensor();
  return lane_->submit(name, [gradients, reduce, copy = std::move(copy), collectives = collectives_] {
    average(*collectives, copy.defined() ? copy : joined(collectives->world(), reduce, *gradients),
            *gradients);
  });
}

void GradientBuckets::flush() {
  for (Bucket& bucket : buckets_) {
    bool any = false;
    for (const auto& item : bucket.items) any |= item->queued = item->dirty && item->param->sync();
    if (any) launch(bucket);
  }
}

void GradientBuckets::wait_all() {
  for (const comm::Work& work : works_) work.wait();
  works_.clear();
}

Parameter* GradientBuckets::unreduced(const std::vector<const Parameter*>& among) const {
  for (const Parameter* param : among) {
    const Item* item = item_of(*param);
    const at::Tensor gradient = item && item->dirty ? item->gradient() : at::Tensor();
    if (gradient.defined() && gradient.any().item<bool>()) return item->param;
  }
  return nullptr;
}

void GradientBuckets::forget() {
  for (const comm::Work& work : works_) {
    try {
      work.wait();
    } catch (
        const std::exception&) {  // the error that led here, or a consequence of it, already reaches the user
    }
  }
  works_.clear();
  for (Bucket& bucket : buckets_) {
    bucket.arrivals.forget();
    for (const auto& item : bucket.items) {
      item->queued = item->dirty = item->first = false;
      item->in_flight = comm::Work();
      item->pending.reset();
    }
  }
}

}  // namespace osdp::runtime
