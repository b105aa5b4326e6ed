// RecomputedCall: the tensors that one call of a recomputed block would save for backward, which a second
// forward makes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace osdp::runtime {

// Note [Saved by a second forward]
// While a recomputed block runs, autograd is given places in the place of the tensors that it saves: the
// first is 0, the next 1. When a backward asks for one of them, the block's forward runs again, and the
// tensors that autograd saves then are the ones asked for: both forwards save the same tensors in the same
// order. What autograd asks is Python's hooks for saved tensors (torch.autograd.graph.saved_tensors_hooks),
// which bindings/recomputed_call.cpp implements as C functions: they run for every tensor that is saved, 30
// to 50 times in a block of a transformer.
//
// - A backward has one second forward for each call that it reaches, and each has its own tensors. So two
//   backwards of one graph (retain_graph=True) do not meet, whether they run one after the other, one inside
//   the other or in two threads.
// - The second forward ends when the last tensor has been saved: nothing after that is needed.
// - A tensor is handed out once, and from then on belongs to the one who asked. One that nobody asks for
//   lives until the node that would have is released, as if it were that node's own: after its turn in
//   backward, or with the graph.
// - A backward inside the block's forward (torch.autograd.grad of a part) asks when only some have been
//   saved: the second forward ends with the last of these. What it released is not kept in later ones either.
// - Nested: a call inside of another's forward has its own hooks, so that the outer one sees only its inputs;
//   they count among what it saves. torch.utils.checkpoint follows the same rules, so the two nest in each
//   other.
// - A second forward that fails leaves nothing: the next backward begins again.
//
// Errors are ShardingErrors: the second forward saved fewer tensors, or others (of another shape, dtype or
// device); a tensor was asked for twice in one backward; a second forward was asked for inside of itself.
// That it would save more is not seen, since it has ended then.
//
// All of it is protected by the GIL. It may be given up while a forward runs, so only references to a
// SecondForward are kept across one: they stay valid while others begin and end.
class RecomputedCall {
 public:
  explicit RecomputedCall(std::string name) : name_(std::move(name)) {}

  // First forward: autograd saves `tensor`. Returns its place.
  size_t save(const at::Tensor& tensor);
  // Nobody will ask for the tensor at `place` any more.
  void release(size_t place);

  // The second forward for one backward.
  struct SecondForward {
    int64_t backward;
    size_t saved = 0;    // how many it has saved so far
    bool ended = false;  // all have been saved, or it has run to its end
    // By place; undefined before they are saved, and after they are handed out or released.
    std::vector<at::Tensor> tensors{};
  };
  // Begins the second forward for a backward, or returns nullptr if that one has run to its end already.
  SecondForward* begin(int64_t backward);
  // It saves `tensor`. Returns whether that was the last.
  bool save_again(SecondForward& second, at::Tensor tensor);
  // It has run to its end, or was ended: checks that it saved what the first did.
  void end(SecondForward& second);
  // It failed.
  void forget(int64_t backward);

  // Hands out the tensor at `place` of the second forward for this backward, which has ended.
  at::Tensor take(size_t place, int64_t backward);

 private:
  struct Saved {
    c10::SymDimVector sizes;
    at::ScalarType dtype;
    at::Device device;
    bool released = false;

    explicit Saved(const at::Tensor& tensor);
    bool is_like(const Saved& other) const;
    std::string text() const;
  };
  SecondForward* find(int64_t backward);

  std::string name_;  // of the block
  std::vector<Saved> saved_;
  std::list<SecondForward> second_;
};

}  // namespace osdp::runtime
