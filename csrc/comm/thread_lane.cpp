// A lane that is a thread: on the CPU.
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/lane_kinds.hpp"
#include "comm/work_state.hpp"
#include "faults/errors.hpp"

namespace osdp::comm {
namespace {

constexpr auto kLastTasks = std::chrono::seconds(2);

std::exception_ptr ended() {
  return faults::make_error(faults::ErrorKind::Rank,
                            "OSDP: the process group was destroyed, or the process is ending");
}

std::exception_ptr forked() {
  return faults::make_error(
      faults::ErrorKind::Sharding,
      "OSDP: this process was forked from a rank, and the threads that communicate are not in it: use the "
      "sharded model in the process that sharded it, or give the child full values (model.state_dict())");
}

class ThreadLane final : public Lane {
 public:
  explicit ThreadLane(std::shared_ptr<faults::GroupHealth> health)
      : Lane(std::move(health)), thread_([this] { work(); }) {}

  ~ThreadLane() override { end(); }

  void end() override {
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    // Nothing on this rank waits for the remaining tasks, but other ranks may need them; or they may be gone.
    const bool in_time = changed_.wait_for(lock, kLastTasks, [this] { return over_; });
    lock.unlock();
    if (!in_time) health_->interrupt(ended());
    if (thread_.joinable()) thread_.join();
  }

  Work submit(faults::TaskNamePtr name, Task task, EarlySend early) override {
    auto state = std::make_shared<Work::State>(health_);
    state->name = name;
    if (getpid() != process_) {  // before any lock, which the thread may have held
      state->finish(forked());
      return Work(std::move(state));
    }
    tracker_.submitted();
    std::lock_guard lock(mutex_);
    if (ending_) {
      state->finish(ended());
      return Work(std::move(state));
    }
    queue_.push_back({{std::move(name), std::move(early)},
                      std::move(task),
                      state,
                      at::get_record_function_tls_(),
                      c10::ThreadLocalDebugInfo::current()});
    tracker_.set_upcoming(&queue_.front());
    changed_.notify_one();
    return Work(std::move(state));
  }

 private:
  struct Item : Upcoming {
    Task task;
    std::shared_ptr<Work::State> state;
    // The submitter's profiler, so that a timeline shows the lane's work too.
    at::RecordFunctionTLS recording;
    std::shared_ptr<c10::ThreadLocalDebugInfo> debug_info;
  };

  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) {
        over_ = true;
        changed_.notify_all();
        return;
      }
      Item item = std::move(queue_.front());
      queue_.pop_front();
      tracker_.set_upcoming(queue_.empty() ? nullptr : &queue_.front());
      lock.unlock();
      item.early = {};
      at::set_record_function_tls_(item.recording);
      c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::move(item.debug_info));
      const auto begin = std::chrono::steady_clock::now();
      if (!broken_) broken_ = run_task(item.name, item.task, tracker_, *health_);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      item.task = nullptr;  // releases its captures before completion is signalled
      item.state->finish(broken_, took.count());
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool ending_ = false, over_ = false;  // over: the thread takes no more tasks
  std::exception_ptr broken_;
  const pid_t process_ = getpid();
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Lane> thread_lane(std::shared_ptr<faults::GroupHealth> health) {
  return std::make_shared<ThreadLane>(std::move(health));
}

}  // namespace osdp::comm
