#include "runtime/store/arena.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "faults/errors.hpp"

namespace osdp::runtime {

struct Arena::Blocks {
  c10::Device device;
  Source source;
  mutable std::mutex mutex;
  std::multimap<size_t, c10::DataPtr> idle;  // by size
  size_t in_use_bytes = 0;
  size_t idle_bytes = 0;
  std::string budget;  // what the plan predicted: a sentence followed by a space

  explicit Blocks(c10::Device d) : device(d) {
    source = [allocator = c10::GetAllocator(d.type())](size_t bytes) { return allocator->allocate(bytes); };
  }
};

namespace {

struct Block {
  std::shared_ptr<Arena::Blocks> owner;
  c10::DataPtr memory;
  size_t bytes;
};

void let_go(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  Arena::Blocks& b = *block->owner;
  std::lock_guard lock(b.mutex);
  b.in_use_bytes -= block->bytes;
  b.idle_bytes += block->bytes;
  b.idle.emplace(block->bytes, std::move(block->memory));
}

// A cached block is reused if it exceeds the request by at most an eighth; otherwise the cache is emptied.
bool fits(size_t block_bytes, size_t bytes) { return block_bytes - bytes <= bytes / 8; }

}  // namespace

Arena::Arena(c10::Device device) : blocks_(std::make_shared<Blocks>(device)) {}

c10::DataPtr Arena::allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  Blocks& b = *blocks_;
  auto block = std::make_unique<Block>();
  block->owner = blocks_;
  std::lock_guard lock(b.mutex);
  if (auto found = b.idle.lower_bound(bytes); found != b.idle.end() && fits(found->first, bytes)) {
    block->bytes = found->first;
    block->memory = std::move(found->second);
    b.idle_bytes -= block->bytes;
    b.idle.erase(found);
  } else {
    b.idle.clear();
    b.idle_bytes = 0;
    block->bytes = bytes;
    try {
      block->memory = b.source(bytes);
    } catch (const c10::Error& e) {
      const auto mib = [](size_t n) { return c10::str(static_cast<double>(n) / (1 << 20), " MiB"); };
      faults::throw_error(
          faults::ErrorKind::Memory,
          c10::str("out of memory: ", mib(bytes), " were requested to gather parameters, in addition to ",
                   mib(b.in_use_bytes), " already in use for that (", e.what_without_backtrace(), "). ",
                   b.budget, "Search with a smaller memory=, or use a smaller batch."));
    }
  }
  b.in_use_bytes += block->bytes;
  void* data = block->memory.get();
  return {data, block.release(), &let_go, b.device};
}

void Arena::set_source(Source source) { blocks_->source = std::move(source); }

void Arena::set_budget(std::string sentence) {
  std::lock_guard lock(blocks_->mutex);
  blocks_->budget = std::move(sentence);
}

void Arena::trim() {
  std::lock_guard lock(blocks_->mutex);
  blocks_->idle.clear();
  blocks_->idle_bytes = 0;
}

size_t Arena::in_use_bytes() const {
  std::lock_guard lock(blocks_->mutex);
  return blocks_->in_use_bytes;
}

size_t Arena::reserved_bytes() const {
  std::lock_guard lock(blocks_->mutex);
  return blocks_->in_use_bytes + blocks_->idle_bytes;
}

}  // namespace osdp::runtime
