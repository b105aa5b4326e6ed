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

  void let_go_of_idle() {
    idle.clear();
    idle_bytes = 0;
  }

  c10::DataPtr fresh(size_t bytes) const {
    try {
      return source(bytes);
    } catch (const c10::Error& e) {
      const auto mib = [](size_t n) { return c10::str(static_cast<double>(n) / (1 << 20), " MiB"); };
      faults::throw_error(
          faults::ErrorKind::Memory,
          c10::str("out of memory: ", mib(bytes), " were requested to gather parameters, in addition to ",
                   mib(in_use_bytes), " already in use for that (", e.what_without_backtrace(), "). ", budget,
                   "Search with a smaller memory=, or use a smaller batch."));
    }
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

}  // namespace

Arena::Arena(c10::Device device) : blocks_(std::make_shared<Blocks>(device)) {}

std::vector<c10::DataPtr> Arena::allocate(const std::vector<size_t>& sizes) {
  Blocks& b = *blocks_;
  std::vector<c10::DataPtr> blocks;  // before the lock, which releasing them takes
  std::vector<c10::DataPtr> reused(sizes.size());
  std::lock_guard lock(b.mutex);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto found = b.idle.find(std::max<size_t>(sizes[i], 1));
    if (found == b.idle.end()) continue;
    reused[i] = std::move(found->second);
    b.idle.erase(found);
  }
  b.let_go_of_idle();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t bytes = std::max<size_t>(sizes[i], 1);
    auto block = std::make_unique<Block>();
    block->owner = blocks_;
    block->bytes = bytes;
    block->memory = reused[i] ? std::move(reused[i]) : b.fresh(bytes);
    b.in_use_bytes += bytes;
    void* data = block->memory.get();
    blocks.emplace_back(data, block.release(), &let_go, b.device);
  }
  return blocks;
}

void Arena::set_source(Source source) { blocks_->source = std::move(source); }

void Arena::set_budget(std::string sentence) {
  std::lock_guard lock(blocks_->mutex);
  blocks_->budget = std::move(sentence);
}

void Arena::trim() {
  std::lock_guard lock(blocks_->mutex);
  blocks_->let_go_of_idle();
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
