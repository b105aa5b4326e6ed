#include "comm/transports/shared_memory.hpp"

#ifdef __linux__

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <stdexcept>

#include "comm/transports/system_call.hpp"

namespace osdp::comm {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

struct flock lock_of(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

void Queue::push(const void* data, int64_t bytes_of_it, uint64_t digest) {
  const uint64_t at = written.load(), slot = at % kSlots;
  std::memcpy(slots[slot], data, bytes_of_it);
  bytes[slot] = bytes_of_it;
  digests[slot] = digest;
  written.store(at + 1);
}

Queue::Message Queue::front() const {
  const uint64_t slot = read.load() % kSlots;
  return {digests[slot], bytes[slot], slots[slot]};
}

// An anonymous memory file: nothing remains, however the process ends.
SharedQueue::SharedQueue() : descriptor_(checked(memfd_create("osdp-queue", MFD_CLOEXEC), "memfd_create")) {
  try {
    checked(ftruncate(descriptor_, sizeof(Queue)), "ftruncate");
    struct flock lock = lock_of(F_WRLCK);  // not inherited by forked children
    checked(fcntl(descriptor_, F_SETLK, &lock), "fcntl(F_SETLK)");
    map();
    if (getrandom(&queue_->secret, sizeof queue_->secret, 0) != sizeof queue_->secret)
      checked(-1, "getrandom");
  } catch (...) {
    if (queue_) munmap(queue_, sizeof(Queue));
    close(descriptor_);
    throw;
  }
}

SharedQueue::SharedQueue(const Address& address) : ours_(address.process == getpid()) {
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  descriptor_ = checked(open(path.c_str(), O_RDWR | O_CLOEXEC), path.c_str());
  try {
    if (lseek(descriptor_, 0, SEEK_END) != static_cast<off_t>(sizeof(Queue)))
      throw std::runtime_error(path + " is not a queue of this build of OSDP");
    map();
    if (queue_->secret != address.secret) throw std::runtime_error(path + " belongs to another process");
  } catch (...) {
    if (queue_) munmap(queue_, sizeof(Queue));
    close(descriptor_);
    throw;
  }
}

SharedQueue::~SharedQueue() {
  munmap(queue_, sizeof(Queue));
  close(descriptor_);
}

void SharedQueue::map() {
  void* memory = mmap(nullptr, sizeof(Queue), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) checked(-1, "mmap");
  queue_ = static_cast<Queue*>(memory);  // a new file's zeros are a queue's initial state
}

SharedQueue::Address SharedQueue::address() const { return {getpid(), descriptor_, queue_->secret}; }

bool SharedQueue::owner_lives() const {
  if (ours_) return true;  // a process does not see its own locks
  struct flock lock = lock_of(F_WRLCK);
  return fcntl(descriptor_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void SharedQueue::ring() const {
  queue_->bell.fetch_add(1);
  if (queue_->sleeping.load()) syscall(SYS_futex, &queue_->bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void SharedQueue::sleep(uint32_t heard, std::chrono::milliseconds limit) const {
  const timespec time{limit.count() / 1000, limit.count() % 1000 * 1000000};
  queue_->sleeping.store(1);
  if (queue_->bell.load() == heard) syscall(SYS_futex, &queue_->bell, FUTEX_WAIT, heard, &time, nullptr, 0);
  queue_->sleeping.store(0);
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[64] = {};
  if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0) return "";
  utsname names{};
  if (uname(&names) != 0) return "";
  return boot + " " + network + " " + names.nodename;
}

}  // namespace osdp::comm

#else

namespace osdp::comm {
std::string host_identity() { return ""; }
}  // namespace osdp::comm

#endif
