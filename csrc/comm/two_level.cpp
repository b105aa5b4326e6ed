#include "comm/two_level.hpp"

#include <utility>

namespace osdp::comm {
Tensors parts_of(const Tensors& tensors, int64_t count) {
  Tensors parts;
  parts.reserve(tensors.size() * count);
  for (const at::Tensor& tensor : tensors) {
    const int64_t elements = tensor.numel() / count;
    for (int64_t i = 0; i < count; ++i) parts.push_back(tensor.narrow(0, i * elements, elements));
  }
  return parts;
}

TwoLevel::TwoLevel(const Collectives& all, std::shared_ptr<Collectives> line,
                   std::shared_ptr<Collectives> column)
    : Collectives(all), line_(std::move(line)), column_(std::move(column)) {
  memory_ = line_->memory();
}

Tensors TwoLevel::gather_between(const Tensors& inputs) const {
  Tensors second;
  second.reserve(inputs.size());
  for (const at::Tensor& input : inputs)
    second.push_back(column_->empty(hosts() * input.numel(), input.options()));
  column_->all_gather(second, inputs);
  return second;
}

void TwoLevel::gather_inside(const Tensors& outputs, const Tensors& second) const {
  line_->all_gather(parts_of(outputs, hosts()), parts_of(second, hosts()));
}

void TwoLevel::gather(const Tensors& outputs, const Tensors& inputs) {
  gather_inside(outputs, gather_between(inputs));
}

}  // namespace osdp::comm
