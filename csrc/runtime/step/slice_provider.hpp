// The slices of a split weight, for the split product: NO_SHARD ones are views of what this rank holds,
// sharded ones are units that are gathered for one use.
#pragma once

#include <memory>

#include "ops/slice_source.hpp"

namespace osdp::runtime {

class Runtime;

class RuntimeSlices final : public ops::SliceSource {
 public:
  RuntimeSlices(std::weak_ptr<Runtime> runtime, int64_t param)
      : runtime_(std::move(runtime)), param_(param) {}

  at::Tensor acquire(int64_t index, int64_t next) override;
  void release(int64_t index) noexcept override;
  void put_grad(int64_t index, at::Tensor grad) override;
  std::string name() const override;

 private:
  std::weak_ptr<Runtime> runtime_;
  int64_t param_;
};

}  // namespace osdp::runtime
