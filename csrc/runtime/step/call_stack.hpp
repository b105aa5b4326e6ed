// CallStack: the calls in progress, innermost last, and the position that is reported to other ranks.
#pragma once

#include <cstdint>
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
    std::shared_ptr<Invocation> invocation;  // only of units with frozen parameters; may be null
    comm::PhaseRange range;
    bool in_forward = false;  // its forward has begun
    bool grad = false;        // it records a graph
    uint64_t first_node = 0;  // sequence number of the first that it adds to the graph
  };

  explicit CallStack(faults::GroupHealth& health) : health_(health) {}

  bool empty() const { return frames_.empty(); }
  Frame& innermost() { return frames_.back(); }
  const std::vector<Frame>& frames() const { return frames_; }
  Frame& push(Frame frame) { return frames_.emplace_back(std::move(frame)); }
  void pop() { frames_.pop_back(); }

  // Reports this rank's position, the innermost call, which other ranks name in their errors.
  void tell_place(bool in_backward) {
    const std::string* place = nullptr;
    if (!empty()) place = in_backward ? innermost().call->in_recomputation : innermost().call->in_forward;
    health_.at(place);
  }
  void tell_backward_of(const Call& call) { health_.at(call.in_backward); }
  // note_exception keeps the text of the exception that is ending calls or a backward; tell_raised reports it
  // to the other ranks once they have ended.
  void note_exception(std::string text) { exception_text_ = std::move(text); }
  void tell_raised() { health_.raised(std::exchange(exception_text_, "")); }

 private:
  std::vector<Frame> frames_;
  faults::GroupHealth& health_;
  std::string exception_text_;
};

}  // namespace osdp::runtime
