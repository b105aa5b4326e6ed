#include "runtime/step/slice_provider.hpp"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "runtime/step/full_params.hpp"
#include "runtime/step/graph_task.hpp"
#include "runtime/step/no_inference.hpp"

namespace osdp::runtime {
namespace {

// The slices of one weight, through the interface that the split product uses.
class WeightSlices final : public ops::SliceSource {
 public:
  WeightSlices(std::weak_ptr<SliceProvider> provider, int64_t param)
      : provider_(std::move(provider)), param_(param) {}

  // The hint `next` is ignored: slices are units of the prefetch order, which also knows the unit that
  // follows the last slice.
  at::Tensor acquire(int64_t index, int64_t) override {
    const auto provider = provider_.lock();
    OSDP_CHECK(provider, Sharding, "OSDP: a split layer was called after its sharded model was destroyed");
    return provider->acquire(param_, index);
  }
  void release(int64_t index) noexcept override {
    if (const auto provider = provider_.lock()) provider->release(param_, index);
  }
  void put_grad(int64_t index, at::Tensor grad) override {
    const auto provider = provider_.lock();
    OSDP_CHECK(provider, Sharding,
               "OSDP: a split layer's backward ran after its sharded model was destroyed");
    provider->put_gradient(param_, index, std::move(grad));
  }
  std::string name() const override {
    const auto provider = provider_.lock();
    return provider ? provider->name_of(param_) : "weight";
  }

 private:
  std::weak_ptr<SliceProvider> provider_;
  int64_t param_;
};

}  // namespace

SliceProvider::~SliceProvider() {
  for (const auto& [param, source] : sources_) ops::unregister_source(source);
}

void SliceProvider::open(int64_t param, const std::weak_ptr<SliceProvider>& handle) {
  if (sources_.contains(param)) return;
  sources_[param] = ops::register_source(std::make_shared<WeightSlices>(handle, param));
}

Unit& SliceProvider::unit_of(const Parameter& param, int64_t slice) const {
  return *shards_.place_of(param).slices[slice - param.split()->whole_slices()];
}

at::Tensor SliceProvider::acquire(int64_t param, int64_t slice) {
  NoInference no_inference;
  at::NoGradGuard no_grad;
  if (stack_.empty() && current_graph_task() != -1) backward_.begin();
  const Parameter& p = shards_.parameter(param);
  if (full_params_.lends()) return full_params_.slice_of_summoned(p, slice);
  const Piece& piece = p.pieces()[slice];
  if (piece.replicated)
    return p.local().narrow(0, piece.local_begin, piece.local_count).to(p.compute_dtype());
  return units_.begin_slice(unit_of(p, slice), !stack_.empty());
}

void SliceProvider::release(int64_t param, int64_t slice) noexcept {
  const Parameter& p = *shards_.params()[param];
  if (slice >= p.split()->whole_slices()) units_.end_slice(unit_of(p, slice));
}

void SliceProvider::put_gradient(int64_t param, int64_t slice, at::Tensor gradient) {
  NoInference no_inference;
  Parameter& p = shards_.parameter(param);
  OSDP_CHECK(
      !at::GradMode::is_enabled(), Sharding, "OSDP: backward(create_graph=True) goes through parameter '",
      p.name(),
      "', which is computed in slices and cannot be differentiated twice. Give its operator granularity 1 "
      "in the plan.");
  at::NoGradGuard no_grad;
  backward_.begin();
  if (!p.tensor().requires_grad()) return;  // frozen since the forward, as AccumulateGrad asks
  if (p.gradient_scale() != 1) gradient.mul_(p.gradient_scale());
  if (slice < p.split()->whole_slices()) return buckets_.add_slice_gradient(p, slice, gradient);
  units_.slice_gradient_arrived(unit_of(p, slice), std::move(gradient));
}

}  // namespace osdp::runtime
