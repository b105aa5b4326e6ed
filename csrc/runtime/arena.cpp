#include "runtime/arena.hpp"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>

namespace osdp::runtime {
namespace {

constexpr size_t kAlignment = 512;

size_t aligned(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

struct Arena::Slabs {
  struct Slab {
    c10::DataPtr memory;
    size_t bytes;
    std::map<size_t, size_t> gaps;  // offset -> length; disjoint, never adjacent

    bool empty() const { return gaps.size() == 1 && gaps.begin()->second == bytes; }
  };

  c10::Device device;
  c10::Allocator* allocator;
  mutable std::mutex mutex;
  std::list<Slab> slabs;  // a list: blocks point at their slab
  size_t in_use = 0;
  size_t high_water = 0;
  size_t next_slab = 0;  // size of the slab that the next step opens; 0 before it is known

  explicit Slabs(c10::Device d) : device(d), allocator(c10::GetAllocator(d.type())) {}

  size_t reserved() const {
    size_t sum = 0;
    for (const Slab& slab : slabs) sum += slab.bytes;
    return sum;
  }

  void drop_empty() {
    slabs.remove_if([](const Slab& slab) { return slab.empty(); });
  }

  // The smallest gap that fits, over all slabs.
  bool find(size_t bytes, Slab*& slab, std::map<size_t, size_t>::iterator& gap) {
    slab = nullptr;
    for (Slab& candidate : slabs)
      for (auto it = candidate.gaps.begin(); it != candidate.gaps.end(); ++it)
        if (it->second >= bytes && (!slab || it->second < gap->second)) slab = &candidate, gap = it;
    return slab != nullptr;
  }

  void give_back(Slab& slab, size_t offset, size_t bytes) {
    std::lock_guard lock(mutex);
    in_use -= bytes;
    auto next = slab.gaps.lower_bound(offset);
    if (next != slab.gaps.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = slab.gaps.erase(next);
    }
    if (next != slab.gaps.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        previous->second += bytes;
        return;
      }
    }
    slab.gaps.emplace(offset, bytes);
  }
};

namespace {

struct Block {
  std::shared_ptr<Arena::Slabs> owner;
  Arena::Slabs::Slab* slab;
  size_t offset;
  size_t bytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  block->owner->give_back(*block->slab, block->offset, block->bytes);
  delete block;
}

}  // namespace

Arena::Arena(c10::Device device) : slabs_(std::make_shared<Slabs>(device)) {}

c10::DataPtr Arena::allocate(size_t bytes) {
  bytes = aligned(bytes);
  Slabs& s = *slabs_;
  std::lock_guard lock(s.mutex);
  Slabs::Slab* slab = nullptr;
  std::map<size_t, size_t>::iterator gap;
  if (!s.find(bytes, slab, gap)) {
    s.drop_empty();
    const size_t size = std::max(bytes, s.slabs.empty() ? s.next_slab : 0);
    s.slabs.push_back({s.allocator->allocate(size), size, {{0, size}}});
    slab = &s.slabs.back();
    gap = slab->gaps.begin();
  }
  const size_t offset = gap->first;
  const size_t left = gap->second - bytes;
  slab->gaps.erase(gap);
  if (left > 0) slab->gaps.emplace(offset + bytes, left);
  s.in_use += bytes;
  s.high_water = std::max(s.high_water, s.in_use);
  auto* data = static_cast<char*>(slab->memory.get()) + offset;
  return {data, new Block{slabs_, slab, offset, bytes}, &free_block, s.device};
}

void Arena::settle() {
  Slabs& s = *slabs_;
  std::lock_guard lock(s.mutex);
  if (s.in_use > 0) return;
  if (s.slabs.size() > 1 || s.next_slab < s.high_water) {
    // The mark alone once did not suffice: the blocks' order leaves gaps; then what was reserved does.
    s.next_slab = s.next_slab < s.high_water ? s.high_water : s.reserved();
    s.slabs.clear();
  }
  s.high_water = 0;
}

void Arena::trim() {
  std::lock_guard lock(slabs_->mutex);
  slabs_->drop_empty();
}

size_t Arena::in_use_bytes() const {
  std::lock_guard lock(slabs_->mutex);
  return slabs_->in_use;
}

size_t Arena::reserved_bytes() const {
  std::lock_guard lock(slabs_->mutex);
  return slabs_->reserved();
}

}  // namespace osdp::runtime
