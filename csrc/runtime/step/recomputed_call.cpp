#include "runtime/step/recomputed_call.hpp"

#include <algorithm>
#include <utility>

#include "faults/errors.hpp"

namespace osdp::runtime {
namespace {

constexpr const char* kAdvice =
    ". What it computes must depend on nothing that changes between its forward and backward (a counter, a "
    "flag, training mode, a global); use a plan that does not recompute it, or describe the model the way it "
    "is called";

}  // namespace

RecomputedCall::Saved::Saved(const at::Tensor& tensor)
    : sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end()),
      dtype(tensor.scalar_type()),
      device(tensor.device()) {}

bool RecomputedCall::Saved::is_like(const Saved& other) const {
  return dtype == other.dtype && device == other.device && sizes.size() == other.sizes.size() &&
         std::equal(sizes.begin(), sizes.end(), other.sizes.begin(),
                    [](const c10::SymInt& a, const c10::SymInt& b) { return a == b; });
}

std::string RecomputedCall::Saved::text() const {
  return faults::joined(c10::SymIntArrayRef(sizes), " ", dtype, " on ", device);
}

size_t RecomputedCall::save(const at::Tensor& tensor) {
  saved_.emplace_back(tensor);
  return saved_.size() - 1;
}

void RecomputedCall::release(size_t place) {
  saved_[place].released = true;
  for (SecondForward& second : second_)
    if (place < second.tensors.size()) second.tensors[place].reset();
}

RecomputedCall::SecondForward* RecomputedCall::find(int64_t backward) {
  const auto found = std::ranges::find(second_, backward, &SecondForward::backward);
  return found == second_.end() ? nullptr : &*found;
}

RecomputedCall::SecondForward* RecomputedCall::begin(int64_t backward) {
  if (const SecondForward* before = find(backward)) {
    OSDP_CHECK(
        before->ended, Sharding, "OSDP: the recomputation of '", name_,
        "' needs a tensor that it has yet to compute: a backward inside its forward, or on another thread, "
        "counts as the same backward");
    return nullptr;
  }
  SecondForward& second = second_.emplace_back(SecondForward{backward});
  second.tensors.resize(saved_.size());
  return &second;
}

bool RecomputedCall::save_again(SecondForward& second, at::Tensor tensor) {
  const size_t place = second.saved++;
  if (place < second.tensors.size() && !saved_[place].released) second.tensors[place] = std::move(tensor);
  second.ended = second.saved >= second.tensors.size();
  return second.ended;
}

void RecomputedCall::end(SecondForward& second) {
  const size_t first = second.tensors.size();
  OSDP_CHECK(second.saved == first, Sharding, "OSDP: the forward of '", name_, "' saved ", first,
             " tensors for backward, its recomputation ", second.saved, kAdvice);
  for (size_t i = 0; i < first; ++i) {
    if (!second.tensors[i].defined()) continue;
    const Saved again(second.tensors[i]);
    OSDP_CHECK(saved_[i].is_like(again), Sharding, "OSDP: tensor ", i, " that the forward of '", name_,
               "' saved for backward is ", saved_[i].text(), ", that of its recomputation ", again.text(),
               kAdvice);
  }
  second.ended = true;
}

void RecomputedCall::forget(int64_t backward) {
  std::erase_if(second_, [&](const SecondForward& second) { return second.backward == backward; });
}

at::Tensor RecomputedCall::take(size_t place, int64_t backward) {
  SecondForward* second = find(backward);
  OSDP_CHECK(second && place < second->tensors.size() && second->tensors[place].defined(), Sharding,
             "OSDP: a tensor that '", name_,
             "' saved for backward is read twice in one backward; the block is recomputed, so it is there "
             "once: read ctx.saved_tensors once, or use a plan that does not recompute this block");
  return std::exchange(second->tensors[place], {});
}

}  // namespace osdp::runtime
