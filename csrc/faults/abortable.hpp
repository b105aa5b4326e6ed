// What one thread has under way, or waits for, and another may end.
#pragma once

namespace osdp::runtime {

// What an accelerator's backend has under way, where streams wait that no message's end would wake.
class Abortable {
 public:
  virtual ~Abortable() = default;
  virtual void abort() noexcept = 0;  // ends it, from any thread; may take a while
};

// A message, say: its wait() throws a std::exception where it fails or is aborted.
class AbortableWait : public Abortable {
 public:
  virtual void wait() = 0;  // until it is complete
};

}  // namespace osdp::runtime
