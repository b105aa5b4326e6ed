// Arena: the memory that parameters are gathered into.
//
// Note [Blocks that come and go]
// A step gathers into the same few blocks over and over: the unit in use and the one that arrives. Blocks
// that were let go are kept and used again. But they may not stand idle while a gradient leaves: then there
// would be four full-size tensors instead of three. So the runtime gives idle blocks back (`trim`) when it
// begins a reduction, and never more is reserved than is in use, except between two gathers in a row.
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

  // A block of at least `bytes`; let go when the DataPtr is destroyed, which may be after the arena. Any
  // thread. Throws OutOfMemoryError (errors.hpp): what was asked for and predicted.
  c10::DataPtr allocate(size_t bytes);

  // Where blocks come from, if not from the device's allocator; before the first.
  using Source = std::function<c10::DataPtr(size_t bytes)>;
  void set_source(Source source);

  // What the plan predicted, for the error's text: a sentence and a space.
  void set_budget(std::string sentence);

  // Gives idle blocks back to the device's allocator.
  void trim();

  size_t in_use_bytes() const;
  size_t reserved_bytes() const;  // in use and idle

  struct Blocks;

 private:
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace osdp::runtime
