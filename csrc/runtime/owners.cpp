#include "runtime/owners.hpp"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "runtime/runtime.hpp"

namespace osdp::runtime {
namespace {

struct RuntimeRegistry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Runtime>> runtimes;
};

RuntimeRegistry& runtime_registry() {
  static RuntimeRegistry* made = new RuntimeRegistry;  // outlives every model
  return *made;
}

// Where a tensor's elements begin. Empty tensors cannot collide: each has a storage of its own.
struct MemoryKey {
  const void* storage;
  int64_t offset;
  bool operator==(const MemoryKey&) const = default;
};
struct HashMemoryKey {
  size_t operator()(const MemoryKey& key) const {
    return reinterpret_cast<uintptr_t>(key.storage) / 16 + static_cast<size_t>(key.offset);
  }
};

bool has_memory(const at::Tensor& t) {
  return t.defined() && t.layout() == at::kStrided && t.unsafeGetTensorImpl()->has_storage();
}

MemoryKey memory_of(const at::Tensor& t) {
  return {.storage = t.storage().unsafeGetStorageImpl(), .offset = t.storage_offset()};
}

// Whether `view`, which begins where `own` does in the same memory, is a view of all of its elements.
bool shows_all(const at::Tensor& view, const at::Tensor& own) {
  if (view.sizes() == own.sizes()) return true;
  return view.numel() == own.numel() && view.scalar_type() == own.scalar_type() &&
         view.is_non_overlapping_and_dense() && own.is_non_overlapping_and_dense();
}

// The bytes of its storage that a tensor spans: the first, and the one after the last.
std::pair<size_t, size_t> span_of(const at::Tensor& t) {
  const size_t begin = static_cast<size_t>(t.storage_offset()) * t.itemsize();
  return {begin, begin + at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize())};
}

// Of two tensors of one storage.
bool overlap(const at::Tensor& one, const at::Tensor& other) {
  const auto [begin, end] = span_of(one);
  const auto [other_begin, other_end] = span_of(other);
  return std::max(begin, other_begin) < std::min(end, other_end);
}

}  // namespace

void add_runtime(const std::shared_ptr<Runtime>& runtime) {
  const std::scoped_lock lock(runtime_registry().mutex);
  std::erase_if(runtime_registry().runtimes, [](const auto& weak) { return weak.expired(); });
  runtime_registry().runtimes.push_back(runtime);
}

void remove_runtime(const Runtime& runtime) {
  const std::scoped_lock lock(runtime_registry().mutex);
  std::erase_if(runtime_registry().runtimes, [&](const auto& weak) { return weak.lock().get() == &runtime; });
}

std::vector<std::shared_ptr<Runtime>> live_runtimes() {
  const std::scoped_lock lock(runtime_registry().mutex);
  std::vector<std::shared_ptr<Runtime>> live;
  for (const auto& weak : runtime_registry().runtimes)
    if (auto runtime = weak.lock()) live.push_back(std::move(runtime));
  return live;
}

std::vector<Owner> owners_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Owner> owners(tensors.size());
  std::unordered_multimap<MemoryKey, size_t, HashMemoryKey> asked;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (has_memory(tensors[i])) asked.emplace(memory_of(tensors[i]), i);
  for (const auto& runtime : live_runtimes()) {
    if (runtime->full_params().summoned()) continue;
    for (size_t p = 0; p < runtime->shards().params().size(); ++p) {
      const at::Tensor& parameter = runtime->parameter(static_cast<int64_t>(p)).tensor();
      for (const at::Tensor& own : {parameter, parameter.grad()}) {
        if (!has_memory(own)) continue;
        const auto [first, last] = asked.equal_range(memory_of(own));
        for (auto it = first; it != last; ++it)
          if (shows_all(tensors[it->second], own))
            owners[it->second] = {.runtime = runtime, .param = static_cast<int64_t>(p), .whole = own};
      }
    }
  }
  return owners;
}

std::pair<size_t, const Parameter*> find_part(const std::vector<at::Tensor>& tensors,
                                              const std::vector<Owner>& owners) {
  std::unordered_multimap<const void*, size_t> others;  // by their storage
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!owners[i].runtime && has_memory(tensors[i])) others.emplace(memory_of(tensors[i]).storage, i);
  if (others.empty()) return {0, nullptr};
  for (const auto& runtime : live_runtimes()) {
    if (runtime->full_params().summoned()) continue;
    for (const auto& parameter : runtime->shards().params()) {
      if (parameter->whole()) continue;
      for (const at::Tensor& own : {parameter->tensor(), parameter->tensor().grad()}) {
        if (!has_memory(own)) continue;
        const auto [first, last] = others.equal_range(memory_of(own).storage);
        for (auto it = first; it != last; ++it)
          if (overlap(tensors[it->second], own)) return {it->second, parameter.get()};
      }
    }
  }
  return {0, nullptr};
}

bool has_reducer(const at::Tensor& tensor) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
  if (!node) return false;
  const auto& hooks = node->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const torch::autograd::utils::LambdaPostHook*>(hook.get()) != nullptr;
  });
}

}  // namespace osdp::runtime
