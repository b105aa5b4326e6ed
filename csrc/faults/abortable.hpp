// Operations of one thread that another thread may abort.
#pragma once

namespace osdp::faults {

// For example the pending operations of an accelerator's backend: streams wait for them, so there is no
// single message to abort.
class Abortable {
 public:
  virtual ~Abortable() = default;
  virtual void abort() noexcept = 0;  // thread-safe; may take a while
};

// For example a message. wait() throws a std::exception if it fails or is aborted.
class AbortableWait : public Abortable {
 public:
  virtual void wait() = 0;  // blocks until complete
};

}  // namespace osdp::faults
