// Memory that two ranks of one host share: a queue of messages from one rank to another, and a bell by which
// they wake each other. Linux.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace osdp::runtime {

// Note [A queue in shared memory]
// One rank writes messages into slots, the other reads them where they lie and frees the slots: `written` and
// `read` count messages and only grow, each written by one side. Who finds the queue full or empty sleeps on
// its own rank's bell, a counter which the other side raises after each change. To raise it costs a system
// call only when somebody sleeps: the sleeper first says so and then looks again, the waker first raises and
// then looks whether anybody sleeps, all sequentially consistent, so that one of the two always sees the
// other.
struct Queue {
  static constexpr int64_t kSlots = 4;
  static constexpr int64_t kSlotBytes = 64 * 1024;

  uint64_t secret;  // by which a peer knows that it opened the right memory
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
  void push(const void* data, int64_t bytes, uint64_t digest);  // by its writer, unless it is full
  Message front() const;                                        // by its reader, unless it is empty
  void pop() { read.store(read.load() + 1); }
};

// A queue mapped into this process: its reader's own, or a peer's.
class SharedQueue {
 public:
  // Where a peer finds a queue: process, file descriptor and secret. Plain bytes, sent between ranks.
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
  // Whether the process that made it still runs: it holds a lock on the file until it ends. Forked children
  // do not inherit the lock (Note [A dead rank's children]).
  bool owner_lives() const;

  void ring() const;  // wakes the queue's owner
  // The owner sleeps until the bell is no longer `heard`, at most for `limit`.
  void sleep(uint32_t heard, std::chrono::milliseconds limit) const;

 private:
  void map();
  bool ours_ = true;  // made by this process
  int descriptor_ = -1;
  Queue* queue_ = nullptr;
};

// What ranks that can share memory have in common: machine, boot, network namespace, host name. Containers
// with networks of their own are hosts of their own.
std::string host_identity();

}  // namespace osdp::runtime
