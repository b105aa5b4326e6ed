// The registry of slice sources: see slice_source.hpp. It is locked because backward runs on threads of the
// autograd engine.
#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_map>

#include "ops/slice_source.hpp"

namespace osdp::ops {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<int64_t, std::shared_ptr<SliceSource>> sources;
  int64_t last_id = 0;
};

Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: static objects may unregister at exit
  return *instance;
}

}  // namespace

int64_t register_source(std::shared_ptr<SliceSource> source) {
  TORCH_CHECK(source != nullptr, "osdp: register_source needs a slice source");
  auto& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.sources.emplace(++r.last_id, std::move(source));
  return r.last_id;
}

void unregister_source(int64_t id) {
  std::shared_ptr<SliceSource> last;  // destroyed after the unlock: its destructor may take other locks
  auto& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  const auto found = r.sources.find(id);
  if (found == r.sources.end()) return;
  last = std::move(found->second);
  r.sources.erase(found);
}

std::shared_ptr<SliceSource> find_source(int64_t id) {
  auto& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  const auto found = r.sources.find(id);
  TORCH_CHECK(
      found != r.sources.end(), "osdp: slice source ", id,
      " is not registered (the sharded model that owned it was destroyed before this forward or backward?)");
  return found->second;
}

}  // namespace osdp::ops
