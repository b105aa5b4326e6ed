// PendingGradient: this rank's full gradient of one slot, from its accumulation to its reduction.
//
//   none --add--> pending --take--> none
//   pending --keep--> kept --add, resume--> pending     (under no_sync; see Note [Gradients kept under
//   no_sync])
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace osdp::runtime {

class PendingGradient {
 public:
  bool pending() const { return pending_.defined(); }
  bool kept() const { return kept_.defined(); }

  // Adds a gradient to the pending one, together with what was kept. Sums are at least as wide as `own`, the
  // parameter's dtype.
  void add(at::Tensor gradient, at::ScalarType own);
  at::Tensor take() { return std::exchange(pending_, at::Tensor()); }
  void keep() {
    if (pending()) kept_ = take();
  }
  // What was kept is pending again, if this backward has added nothing to it.
  void resume() {
    if (!pending()) pending_ = std::exchange(kept_, at::Tensor());
  }
  void drop_kept() { kept_.reset(); }
  void drop_pending() { pending_.reset(); }

 private:
  at::Tensor pending_, kept_;
};

}  // namespace osdp::runtime
