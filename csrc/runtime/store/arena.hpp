// Arena: the caching allocator for the memory that parameters are gathered into.
//
// Note [Blocks that come and go]
// A step gathers into the same few blocks over and over: one for the unit in use and one for the unit being
// gathered. Released blocks are therefore cached and reused. But a block must not stay cached while a
// gradient is being reduced, or four full-size tensors would exist instead of three. So the runtime returns
// cached blocks to the device's allocator (`trim`) when it begins a reduction, and reserved memory exceeds
// memory in use only between two consecutive gathers.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace osdp::runtime {

class Arena {
 public:
  explicit Arena(c10::Device device);

  // A block of at least `bytes`; released when the DataPtr is destroyed, which may be after the arena.
  // Thread-safe. Throws OutOfMemoryError (errors.hpp), which states the requested and the predicted memory.
  c10::DataPtr allocate(size_t bytes);

  // Replaces the device's allocator as the source of blocks. Must be called before the first allocation.
  using Source = std::function<c10::DataPtr(size_t bytes)>;
  void set_source(Source source);

  // What the plan predicted, for the error's text: a sentence followed by a space.
  void set_budget(std::string sentence);

  // Returns cached blocks to the device's allocator.
  void trim();

  size_t in_use_bytes() const;
  size_t reserved_bytes() const;  // in use and cached

  struct Blocks;

 private:
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace osdp::runtime
