// Memory that two ranks of one host share: a queue of messages from one rank to the other, and a bell with
// which they wake each other. Linux only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace osdp::comm {

// Note [A queue in shared memory]
// One rank writes messages into slots, the other reads them in place and frees the slots. `written` and
// `read` count messages, only grow, and have one writer each. A rank that finds the queue full or empty
// sleeps on its own bell, a counter that the other side increments after each change. Ringing needs a system
// call only if the owner sleeps: the sleeper first sets `sleeping` and then rechecks the bell, the waker
// first increments the bell and then checks `sleeping`. All accesses are sequentially consistent, so at least
// one of the two sees the other's write.
struct Queue {
  static constexpr int64_t kSlots = 4;
  static constexpr int64_t kSlotBytes = 64 * 1024;

  uint64_t secret;  // lets a peer verify that it opened the right memory
  alignas(64) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeping;
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  // Of each slot's message:
  alignas(64) uint64_t digests[kSlots];  // Note [A digest in every message]
  int64_t bytes[kSlots];
  alignas(4096) char slots[kSlots][kSlotBytes];

  bool full() const { return written.load() - read.load() == kSlots; }
  bool empty() const { return written.load() == read.load(); }

  struct Message {
    uint64_t digest;
    int64_t bytes;
    const char* data;
  };
  void push(const void* data, int64_t bytes, uint64_t digest);  // by its writer; must not be full
  Message front() const;                                        // by its reader; must not be empty
  void pop() { read.store(read.load() + 1); }
};

// A queue mapped into this process: its own (it is the reader), or a peer's.
class SharedQueue {
 public:
  // How a peer opens a queue: process, file descriptor and secret. Trivially copyable, sent between ranks.
  struct Address {
    int64_t process = 0, descriptor = -1;
    uint64_t secret = 0;
  };

  SharedQueue();                                 // a new one, of this process. Throws std::system_error
  explicit SharedQueue(const Address& address);  // a peer's. Throws std::system_error, std::runtime_error
  ~SharedQueue();
  SharedQueue(const SharedQueue&) = delete;
  SharedQueue& operator=(const SharedQueue&) = delete;

  Queue* operator->() const { return queue_; }
  Address address() const;
  // Whether the process that created it still runs, which holds a lock on the file until it ends. Forked
  // children do not inherit the lock (Note [A dead rank's children]).
  bool owner_lives() const;

  void ring() const;  // wakes the queue's owner
  // The owner sleeps until the bell differs from `heard`, at most for `limit`.
  void sleep(uint32_t heard, std::chrono::milliseconds limit) const;

 private:
  void map();
  bool ours_ = true;  // created by this process
  int descriptor_ = -1;
  Queue* queue_ = nullptr;
};

// A string that is equal for ranks that can share memory: boot id, network namespace and host name.
// Containers with separate networks count as separate hosts.
std::string host_identity();

}  // namespace osdp::comm
