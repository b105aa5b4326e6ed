// Ranks for the C++ tests, with a store and messages between them: threads of one process, which the thread
// sanitizer sees together, or processes of their own, which can die.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/early_send.hpp"
#include "comm/peers.hpp"
#include "faults/group_health.hpp"
#include "faults/store.hpp"

namespace ranks {

namespace comm = osdp::comm;
namespace faults = osdp::faults;

// What has come for a rank and was not asked for yet.
class Mailbox {
 public:
  void put(int from, int tag, std::vector<char> message) {
    std::lock_guard lock(mutex_);
    arrived_[{from, tag}].push_back(std::move(message));
    changed_.notify_all();
  }
  void close(int from) {
    std::lock_guard lock(mutex_);
    closed_.insert(from);
    changed_.notify_all();
  }

  class Receipt final : public comm::Peers::Message {
   public:
    Receipt(Mailbox& box, comm::Range into, int from, int tag, std::chrono::milliseconds timeout)
        : box_(box), into_(into), from_(from), tag_(tag), timeout_(timeout) {}
    void wait() override {
      std::unique_lock lock(box_.mutex_);
      auto& waiting = box_.arrived_[{from_, tag_}];
      const auto over = [&] { return aborted_ || !waiting.empty() || box_.closed_.count(from_); };
      if (!box_.changed_.wait_for(lock, timeout_, over)) throw std::runtime_error("timed out");
      if (aborted_) throw std::runtime_error("aborted");
      if (waiting.empty()) throw std::runtime_error("connection closed by peer");
      if (static_cast<int64_t>(waiting.front().size()) != into_.bytes()) throw std::runtime_error("length");
      std::memcpy(into_.data, waiting.front().data(), into_.bytes());
      waiting.pop_front();
    }
    void abort() noexcept override {
      std::lock_guard lock(box_.mutex_);
      aborted_ = true;
      box_.changed_.notify_all();
    }

   private:
    Mailbox& box_;
    comm::Range into_;
    int from_, tag_;
    std::chrono::milliseconds timeout_;
    bool aborted_ = false;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> arrived_;
  std::set<int> closed_;
};

using Deliver = std::function<void(int to, int tag, std::vector<char> message)>;

class MailPeers final : public comm::Peers {
 public:
  MailPeers(int rank, int world, Mailbox& box, Deliver deliver, std::chrono::milliseconds timeout)
      : rank_(rank), world_(world), box_(box), deliver_(std::move(deliver)), timeout_(timeout) {}
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  std::shared_ptr<Message> send(const comm::Range& range, int to, int tag) override {
    deliver_(to, tag, {range.data, range.data + range.bytes()});
    return std::make_shared<Sent>();
  }
  std::shared_ptr<Message> receive(const comm::Range& range, int from, int tag) override {
    return std::make_shared<Mailbox::Receipt>(box_, range, from, tag, timeout_);
  }

 private:
  struct Sent final : Message {
    void wait() override {}
    void abort() noexcept override {}
  };
  int rank_, world_;
  Mailbox& box_;
  Deliver deliver_;
  std::chrono::milliseconds timeout_;
};

struct Rank {
  int rank, world;
  std::shared_ptr<comm::Peers> peers;
  std::shared_ptr<faults::Store> store;
};

// As a lane does it: one collective after the other under the tracker, each knowing the next.
class Lane {
 public:
  explicit Lane(std::shared_ptr<faults::GroupHealth> health)
      : health_(std::move(health)), tracker_(health_->add_lane()) {}
  faults::GroupHealth& health() { return *health_; }
  faults::CollectiveTracker& tracker() { return tracker_; }
  // Throws what ended it, as Work::wait does. `next`: what runs after it.
  void run(const std::string& label, const std::function<void()>& work,
           const comm::Upcoming* next = nullptr) {
    if (auto over = health_->interruption()) std::rethrow_exception(over);
    tracker_.submitted();
    tracker_.set_upcoming(next);
    const faults::CollectiveTracker::Here here(&tracker_);
    tracker_.begin(faults::task_name(label));
    try {
      work();
    } catch (...) {
      std::rethrow_exception(health_->explain({label, std::current_exception()}));
    }
    tracker_.end();
  }
  // As a lane does that only enqueues.
  void enqueue(const std::string& label, std::function<bool()> begun, std::function<bool()> over) {
    run(label, [] {});
    tracker_.enqueued({std::move(begun), std::move(over)});
  }

 private:
  std::shared_ptr<faults::GroupHealth> health_;
  faults::CollectiveTracker& tracker_;
};

// --- ranks that are threads

class MemoryStore final : public faults::Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    check();
    values_[key] = value;
  }
  std::optional<std::string> get(const std::string& key) override {
    std::lock_guard lock(mutex_);
    check();
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string set_first(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    check();
    return values_.try_emplace(key, value).first->second;
  }
  void fail() {  // from now on
    std::lock_guard lock(mutex_);
    failed_ = true;
  }

 private:
  void check() const {
    if (failed_) throw std::runtime_error("the store does not answer");
  }
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  bool failed_ = false;
};

inline void on_threads(int world, const std::function<void(Rank&)>& work,
                       std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  std::vector<Mailbox> boxes(world);
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(world);
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      const Deliver deliver = [&, r](int to, int tag, std::vector<char> m) {
        boxes[to].put(r, tag, std::move(m));
      };
      Rank rank{r, world, std::make_shared<MailPeers>(r, world, boxes[r], deliver, timeout), store};
      try {
        work(rank);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// --- ranks that are processes

// Between processes: a table in memory that they share, under a lock that outlives who holds it.
class SharedStore final : public faults::Store {
 public:
  SharedStore() {
    void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap");
    table_ = static_cast<Table*>(memory);
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&table_->mutex, &kind);
  }
  ~SharedStore() override { munmap(table_, sizeof(Table)); }
  void set(const std::string& key, const std::string& value) override {
    const Lock lock(*table_);
    write(of(key), value);
  }
  std::optional<std::string> get(const std::string& key) override {
    const Lock lock(*table_);
    const Entry& entry = of(key);
    return entry.length < 0 ? std::nullopt : std::optional(std::string(entry.value, entry.length));
  }
  std::string set_first(const std::string& key, const std::string& value) override {
    const Lock lock(*table_);
    Entry& entry = of(key);
    if (entry.length < 0) write(entry, value);
    return {entry.value, static_cast<size_t>(entry.length)};
  }

 private:
  struct Entry {
    char key[64];
    char value[2048];
    int length;
  };
  struct Table {
    pthread_mutex_t mutex;
    int count;
    Entry entries[64];
  };
  struct Lock {
    explicit Lock(Table& table) : mutex(table.mutex) {
      if (pthread_mutex_lock(&mutex) == EOWNERDEAD) pthread_mutex_consistent(&mutex);
    }
    ~Lock() { pthread_mutex_unlock(&mutex); }
    pthread_mutex_t& mutex;
  };
  Entry& of(const std::string& key) {
    for (int i = 0; i < table_->count; ++i)
      if (key == table_->entries[i].key) return table_->entries[i];
    Entry& entry = table_->entries[table_->count++];
    key.copy(entry.key, sizeof entry.key - 1);
    entry.length = -1;
    return entry;
  }
  static void write(Entry& entry, const std::string& value) {
    entry.length = static_cast<int>(value.copy(entry.value, sizeof entry.value));
  }
  Table* table_;
};

// How a rank's process ended: what its work returned, or threw; "" where it died.
struct Ending {
  std::string text;
  int status = 0;
};

namespace detail {

inline bool read_all(int descriptor, void* into, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t moved = read(descriptor, static_cast<char*>(into) + done, bytes - done);
    if (moved <= 0) return false;
    done += moved;
  }
  return true;
}

struct Letter {
  int tag;
  int64_t bytes;
};

// Reads what `from` sends until its end closes.
inline void deliver_from(int descriptor, int from, Mailbox& box) {
  Letter letter;
  while (read_all(descriptor, &letter, sizeof letter)) {
    std::vector<char> message(letter.bytes);
    if (!read_all(descriptor, message.data(), message.size())) break;
    box.put(from, letter.tag, std::move(message));
  }
  box.close(from);
}

[[noreturn]] inline void be_rank(int rank, const std::vector<std::vector<int>>& ends, int result, int stay,
                                 const std::shared_ptr<faults::Store>& store,
                                 const std::function<std::string(Rank&)>& work,
                                 std::chrono::milliseconds timeout) {
  const int world = static_cast<int>(ends.size());
  for (int r = 0; r < world; ++r)
    for (int other = 0; other < world; ++other)
      if (r != rank && r != other) close(ends[r][other]);
  auto* box = new Mailbox();  // its readers go on until the process ends
  for (int other = 0; other < world; ++other)
    if (other != rank)
      std::thread([box, other, from = ends[rank][other]] { deliver_from(from, other, *box); }).detach();
  const Deliver deliver = [&](int to, int tag, std::vector<char> message) {
    const Letter letter{tag, static_cast<int64_t>(message.size())};
    const auto* head = reinterpret_cast<const char*>(&letter);
    std::vector<char> all(head, head + sizeof letter);
    all.insert(all.end(), message.begin(), message.end());
    for (size_t done = 0; done < all.size();) {
      const ssize_t moved = ::send(ends[rank][to], all.data() + done, all.size() - done, MSG_NOSIGNAL);
      if (moved <= 0) throw std::runtime_error("connection closed by peer");
      done += moved;
    }
  };
  Rank me{rank, world, std::make_shared<MailPeers>(rank, world, *box, deliver, timeout), store};
  std::string text;
  try {
    text = work(me);
  } catch (const std::exception& e) {
    text = e.what();
  }
  if (write(result, text.data(), text.size()) < 0) _exit(1);
  close(result);
  char nothing;
  (void)!read(stay, &nothing, 1);  // alive until all have told, so that none learns of its end
  _exit(0);
}

}  // namespace detail

// Each rank a process. Those that die are expected to; a stuck one is killed when the others have ended.
inline std::vector<Ending> on_processes(int world, const std::function<std::string(Rank&)>& work,
                                        std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const auto store = std::make_shared<SharedStore>();
  std::vector<std::vector<int>> ends(world, std::vector<int>(world, -1));
  for (int a = 0; a < world; ++a)
    for (int b = a + 1; b < world; ++b) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) throw std::runtime_error("socketpair");
      ends[a][b] = pair[0], ends[b][a] = pair[1];
    }
  int stay[2];
  if (pipe(stay) != 0) throw std::runtime_error("pipe");
  std::vector<pid_t> processes;
  std::vector<int> results;
  std::fflush(nullptr);
  for (int r = 0; r < world; ++r) {
    int result[2];
    if (pipe(result) != 0) throw std::runtime_error("pipe");
    const pid_t child = fork();
    if (child == 0) {
      close(stay[1]);
      close(result[0]);
      for (const int other : results) close(other);
      detail::be_rank(r, ends, result[1], stay[0], store, work, timeout);
    }
    close(result[1]);
    processes.push_back(child);
    results.push_back(result[0]);
  }
  for (const auto& row : ends)
    for (const int end : row)
      if (end >= 0) close(end);
  close(stay[0]);
  std::vector<Ending> endings(world);
  for (int r = 0; r < world; ++r) {
    char buffer[4096];
    for (ssize_t moved; (moved = read(results[r], buffer, sizeof buffer)) > 0;)
      endings[r].text.append(buffer, moved);
    close(results[r]);
  }
  close(stay[1]);
  for (int r = 0; r < world; ++r) waitpid(processes[r], &endings[r].status, 0);
  return endings;
}

}  // namespace ranks
