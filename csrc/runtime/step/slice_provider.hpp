// SliceProvider: gives the split matrix product the slices of split weights. NO_SHARD slices are views of the
// local tensor; sharded slices are units that are gathered for one use.
//
// Invariant: a slice is readable from acquire to release; the product that acquires it releases it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "ops/slice_source.hpp"
#include "runtime/step/backward.hpp"

namespace osdp::runtime {

class FullParams;

class SliceProvider {
 public:
  SliceProvider(const ModelShards& shards, UnitScheduler& units, GradientBuckets& buckets,
                const CallStack& stack, BackwardPass& backward, const FullParams& full_params)
      : shards_(shards),
        units_(units),
        buckets_(buckets),
        stack_(stack),
        backward_(backward),
        full_params_(full_params) {}
  ~SliceProvider();

  // Registers the slices of a split parameter; source_of returns their id (see ops::register_source).
  // `handle` keeps the whole runtime alive while locked.
  void open(int64_t param, const std::weak_ptr<SliceProvider>& handle);
  int64_t source_of(int64_t param) const { return sources_.at(param); }

  at::Tensor acquire(int64_t param, int64_t slice);
  void release(int64_t param, int64_t slice) noexcept;
  void put_gradient(int64_t param, int64_t slice, at::Tensor gradient);
  const std::string& name_of(int64_t param) const { return shards_.parameter(param).name(); }

 private:
  Unit& unit_of(const Parameter& param, int64_t slice) const;  // of a sharded slice

  const ModelShards& shards_;
  UnitScheduler& units_;
  GradientBuckets& buckets_;
  const CallStack& stack_;
  BackwardPass& backward_;
  const FullParams& full_params_;
  std::unordered_map<int64_t, int64_t> sources_;  // split parameter -> source id
};

}  // namespace osdp::runtime
