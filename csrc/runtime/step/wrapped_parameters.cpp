#include "runtime/step/wrapped_parameters.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/store/storage_access.hpp"

namespace osdp::runtime {
namespace {

// `inner` is given the data that the parameter shows.
void mirror(Wrapped& w) {
  const at::Tensor& shown = w.param->tensor();
  const auto storage_of = [](const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); };
  if (storage_of(w.inner) == storage_of(shown) && w.inner.scalar_type() == shown.scalar_type()) return;
  w.inner.set_data(shown.variable_data());
}

// A tensor like the full one, whose every read is an error.
at::Tensor without_memory(const Wrapped& w) {
  const auto sizes = w.param->full_sizes();
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  const auto options = w.inner.options().requires_grad(false);
  const size_t bytes = c10::multiply_integers(sizes) * w.inner.element_size();
  at::Tensor nowhere =
      at::empty({0}, options)
          .set_(c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, w.param->device()),
                             /*allocator=*/nullptr, /*resizable=*/false),
                0, sizes, strides);
  set_unreadable(
      *nowhere.storage().unsafeGetStorageImpl(),
      "OSDP: parameter '" + w.param->name() +
          "' was read outside of a forward or backward, through a DTensor that was kept from one. Read "
          "it within, or use osdp.summon_full_params(model).");
  return nowhere;
}

// The graph begins at the parameter's AccumulateGrad node, if it needs a gradient now.
void lead_to_gradient(Wrapped& w) {
  using torch::autograd::Edge;
  if (!w.param->tensor().requires_grad()) {
    if (w.outer.requires_grad()) torch::autograd::impl::set_gradient_edge(w.outer, Edge());
    return;
  }
  const auto accumulator = torch::autograd::impl::grad_accumulator(w.param->tensor());
  if (w.node->num_outputs() == 0)
    w.node->add_next_edge(Edge(accumulator, 0));
  else if (w.node->next_edge(0).function.get() != accumulator.get())
    w.node->set_next_edge(0, Edge(accumulator, 0));
  if (!w.param->device().is_cpu()) {  // its stream is the one that was current when its input was described
    w.node->clear_input_metadata();
    w.node->add_input_metadata(w.outer);
  }
  if (!w.outer.requires_grad()) torch::autograd::impl::set_gradient_edge(w.outer, Edge(w.node, 0));
}

}  // namespace

void WrappedParameters::set(std::vector<Wrapped> wrapped, Place place) {
  wrapped_ = std::move(wrapped);
  place_ = std::move(place);
  for (Wrapped& w : wrapped_) {
    w.node->add_input_metadata(w.outer);
    w.nowhere = without_memory(w);
    w.inner.set_data(w.nowhere);
    w.param->set_wrapper(w.outer);
  }
}

void WrappedParameters::show() {
  if (wrapped_.empty() && !on_pass_) return;
  for (Wrapped& w : wrapped_) {
    if (w.param->absent()) continue;
    mirror(w);
    lead_to_gradient(w);
  }
  if (std::exchange(shown_, true)) return;
  if (place_) place_(true);
  if (on_pass_) on_pass_(true);
}

void WrappedParameters::hide() {
  if (!std::exchange(shown_, false)) return;
  for (Wrapped& w : wrapped_)
    if (w.param->whole() && w.param->compute_dtype() != w.param->own_dtype()) w.inner.set_data(w.nowhere);
  if (on_pass_) on_pass_(false);
  if (place_) place_(false);
}

}  // namespace osdp::runtime
