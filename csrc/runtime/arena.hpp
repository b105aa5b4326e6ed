// Arena: the memory that parameters are gathered into.
//
// Blocks live from a gather to its release and come and go in the same order every step, so one slab that
// fits the high-water mark serves them without fragmentation. The first step finds that mark: until then each
// block that does not fit opens a slab of its own, and slabs that are empty are given back before another is
// opened, so that never more is reserved than was in use at once, plus the gaps between blocks.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <memory>

namespace osdp::runtime {

class Arena {
 public:
  explicit Arena(c10::Device device);

  // A block of at least `bytes`, 512-byte aligned relative to its slab; freed when the DataPtr is destroyed,
  // which may be after the arena. Any thread. Throws c10::OutOfMemoryError or c10::Error from the device's
  // allocator.
  c10::DataPtr allocate(size_t bytes);

  // Between steps: if no block is in use, and more than one slab was needed, forgets the slabs so that the
  // next step opens a single one of the size that the last step needed.
  void settle();

  // Gives back every slab that holds no block.
  void trim();

  size_t in_use_bytes() const;
  size_t reserved_bytes() const;

  struct Slabs;

 private:
  std::shared_ptr<Slabs> slabs_;
};

}  // namespace osdp::runtime
