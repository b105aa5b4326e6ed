// Arena: the memory that parameters are gathered into.
//
// Note [Blocks that come and go]
// A step gathers into blocks of the same few sizes over and over, and new memory is slow to write to for the
// first time. So a released block is kept for the next gather. But it must not stay where none comes soon:
// operators that are not sharded may follow, and their activations are not computed beside idle blocks. So
// idle blocks exist only from a unit's release to the next request of a unit, the next reduction or the end
// of the pass, whichever is first: a request that gathers nothing and a reduction return them to the device's
// allocator (`trim`), and a gather those that it does not use. What a plan predicts counts them
// (Note [Peaks of every timing] in search/simulate/largest_peak.hpp).
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace osdp::runtime {

class Arena {
 public:
  explicit Arena(c10::Device device);

  // Blocks of these sizes; no idle block is left. Each is released when its DataPtr is destroyed, which may
  // be after the arena. Thread-safe. Throws OutOfMemoryError (errors.hpp), which states the requested and the
  // predicted memory.
  std::vector<c10::DataPtr> allocate(const std::vector<size_t>& sizes);

  // Replaces the device's allocator as the source of blocks. Must be called before the first allocation.
  using Source = std::function<c10::DataPtr(size_t bytes)>;
  void set_source(Source source);

  // What the plan predicted, for the error's text: a sentence followed by a space.
  void set_budget(std::string sentence);

  // Returns idle blocks to the device's allocator.
  void trim();

  size_t in_use_bytes() const;
  size_t reserved_bytes() const;  // in use and idle

  struct Blocks;

 private:
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace osdp::runtime
