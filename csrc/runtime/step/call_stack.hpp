// CallStack: the calls under way, the innermost last, and what other ranks are told of them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/phase_range.hpp"
#include "faults/group_health.hpp"
#include "runtime/store/unit.hpp"

namespace osdp::runtime {

class CallStack {
 public:
  struct Frame {
    Call* call;
    std::shared_ptr<Invocation> invocation;  // null unless it reads frozen parameters that train others
    PhaseRange range;
    bool in_forward = false;  // its forward has begun
    bool grad = false;        // it records a graph
  };

  explicit CallStack(GroupHealth& health) : health_(health) {}

  bool empty() const { return frames_.empty(); }
  Frame& innermost() { return frames_.back(); }
  const std::vector<Frame>& frames() const { return frames_; }
  Frame& push(Frame frame) { return frames_.emplace_back(std::move(frame)); }
  void pop() { frames_.pop_back(); }

  // Where this rank is, for the other ranks' errors: the innermost call under way.
  void tell_place(bool in_backward) {
    const std::string* place = nullptr;
    if (!empty()) place = in_backward ? innermost().call->in_recomputation : innermost().call->in_forward;
    health_.at(place);
  }
  void tell_backward_of(const Call& call) { health_.at(call.in_backward); }
  // The exception, in words, that ends the calls under way or the backward; and that it has ended them.
  void note_exception(std::string text) { exception_text_ = std::move(text); }
  void tell_raised() { health_.raised(std::exchange(exception_text_, "")); }

 private:
  std::vector<Frame> frames_;
  GroupHealth& health_;
  std::string exception_text_;
};

}  // namespace osdp::runtime
