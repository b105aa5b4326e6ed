#include "comm/lane.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "comm/backend_memory.hpp"
#include "comm/c10d.hpp"
#include "comm/ending.hpp"
#include "comm/event_pool.hpp"
#include "comm/left_out.hpp"
#include "comm/parts.hpp"
#include "comm/phase_range.hpp"
#include "comm/transports/transports.hpp"
#include "faults/errors.hpp"
#include "faults/heartbeat.hpp"

namespace osdp::runtime {

namespace {

std::atomic<void (*)()> signal_check{nullptr};
constexpr auto kSignalCheck = std::chrono::milliseconds(100);
constexpr auto kLastTasks = std::chrono::seconds(2);

}  // namespace

// What `stream` is given from now on waits for the event.
static void block(const c10::Event& event, const c10::Stream& stream,
                  std::source_location where = std::source_location::current()) {
  if (!left_out("wait", where)) event.block(stream);
}

void set_signal_check(void (*check)()) { signal_check = check; }

struct Work::State {
  explicit State(std::shared_ptr<GroupHealth> a) : health(std::move(a)) {}
  // Also where nobody has waited for the task.
  ~State() {
    if (event && !kept.empty()) block(*event, *submitter);
  }

  std::shared_ptr<GroupHealth> health;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  double seconds = 0;
  std::exception_ptr error;
  TaskNamePtr name;
  // Accelerators.
  std::shared_ptr<const c10::Event> event;
  std::optional<c10::Stream> submitter;
  std::vector<at::Tensor> kept;  // until that stream has waited for the event

  void finish(std::exception_ptr e, double took = 0) {
    std::lock_guard lock(mutex);
    done = true;
    seconds = took;
    error = std::move(e);
    changed.notify_all();
  }

  // Once it is done, with the mutex held: the current stream waits, and what was kept is let go of.
  void order_after(std::source_location where) {
    if (!event) return;
    const c10::impl::VirtualGuardImpl guard(submitter->device_type());
    const c10::Stream here = guard.getStream(submitter->device());
    block(*event, here, where);
    if (!kept.empty() && here != *submitter) block(*event, *submitter);
    kept.clear();
  }
};

// This process was told to stop while it waited: its lanes end, and the other ranks are told.
static void give_up(GroupHealth& health) {
  const std::string why = "was interrupted by a signal (Ctrl-C?) while it waited for the others";
  Heartbeat::give_up(health, why);
  health.interrupt(make_error(ErrorKind::Rank, "OSDP: this rank cannot go on: it " + why));
}

void Work::wait(std::source_location where) const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  if (!state_->done) {
    PhaseRange range;
    range.begin("wait for", state_->name->label.c_str());
    std::exception_ptr signal;
    while (!state_->changed.wait_for(lock, kSignalCheck, [this] { return state_->done; })) {
      if (signal || !signal_check.load()) continue;
      lock.unlock();
      try {
        signal_check.load()();
      } catch (...) {
        signal = std::current_exception();
        give_up(*state_->health);
      }
      lock.lock();
    }
    if (signal) std::rethrow_exception(signal);
  }
  state_->order_after(where);
  if (state_->error) std::rethrow_exception(state_->error);
  if (state_->event) state_->health->check();  // after an abort events pass whose collectives have not ended
}

void Work::settle(std::source_location where) const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done; });
  state_->order_after(where);
}

bool Work::done() const {
  if (!state_) return true;
  std::unique_lock lock(state_->mutex);
  return state_->done && (state_->error || !state_->event || state_->event->query());
}

double Work::seconds() const {
  if (!state_) return 0;
  std::lock_guard lock(state_->mutex);
  return state_->seconds;
}

namespace {

GroupHealth::Trouble trouble_of(const std::string& label, std::exception_ptr error) {
  GroupHealth::Trouble trouble(label, error);
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    trouble.text = e.what_without_backtrace();
  } catch (...) {
  }
  return trouble;
}

// Runs the task under its label and the lane's tracker. What it throws is told as an error that knows what
// happened where; so is what interrupted the lane since.
std::exception_ptr run(const TaskNamePtr& name, const Lane::Task& task, CollectiveTracker& tracker,
                       GroupHealth& health) {
  if (auto interrupted = health.interruption()) return interrupted;
  const CollectiveTracker::Here here(&tracker);
  c10::InferenceMode no_inference(false);
  at::NoGradGuard no_grad;
  RECORD_FUNCTION(name->label, std::vector<c10::IValue>());
  tracker.begin(name);
  try {
    task();
  } catch (...) {
    return health.explain(trouble_of(name->label, std::current_exception()));
  }
  tracker.end();
  return nullptr;
}

class ThreadLane final : public Lane {
 public:
  explicit ThreadLane(std::shared_ptr<GroupHealth> health)
      : Lane(std::move(health)), thread_([this] { work(); }) {}

  ~ThreadLane() override {
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    // Nobody here waits for what is still under way. Other ranks may need it, or be gone.
    if (!changed_.wait_for(lock, kLastTasks, [this] { return ended_; })) {
      lock.unlock();
      health_->interrupt(make_error(ErrorKind::Rank, "OSDP: the process is ending"));
    } else {
      lock.unlock();
    }
    thread_.join();
  }

  Work submit(TaskNamePtr name, Task task, EarlySend early) override {
    auto state = std::make_shared<Work::State>(health_);
    tracker_.submitted();
    state->name = name;
    std::lock_guard lock(mutex_);
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
        ended_ = true;
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
      if (!broken_) broken_ = run(item.name, item.task, tracker_, *health_);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      item.task = nullptr;  // what it holds is let go before anybody is told that it is done
      item.state->finish(broken_, took.count());
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool ending_ = false, ended_ = false;
  std::exception_ptr broken_;
  std::thread thread_;
};

// An event as the tracker asks for it. The device's errors are for the thread that trains to raise.
std::function<bool()> passed(std::shared_ptr<const c10::Event> event) {
  return [event = std::move(event)] {
    try {
      return event->query();
    } catch (const std::exception&) {
      return true;
    }
  };
}

// Of the task of a stream's lane that runs here.
thread_local Work::State* running = nullptr;

class StreamLane final : public Lane {
 public:
  StreamLane(std::shared_ptr<GroupHealth> health, c10::Device device)
      : Lane(std::move(health)),
        device_(device),
        guard_(device.type()),
        stream_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {}

  ~StreamLane() override { tracker_.forget_enqueued(); }

  Work submit(TaskNamePtr name, Task task, EarlySend) override {
    auto state = std::make_shared<Work::State>(health_);
    tracker_.submitted();
    const c10::Stream current = guard_.getStream(device_);
    // A task that another lane's task submits: its memory too is that of the stream that trains.
    state->submitter = running ? *running->submitter : current;
    if (!broken_) {
      Work::State* const outer = std::exchange(running, state.get());
      try {
        const auto before = events_->record(current);
        block(*before, stream_);
        c10::StreamGuard on_lane(stream_);
        broken_ = run(name, task, tracker_, *health_);
        state->event = events_->record(stream_);
        if (!broken_ && health_->explained()) tracker_.enqueued({passed(before), passed(state->event)});
      } catch (...) {
        broken_ = std::current_exception();
      }
      running = outer;
    }
    state->finish(broken_);
    return Work(std::move(state));
  }

  bool keeps() const override { return true; }
  void synchronize() override {
    stream_.synchronize();
    health_->check();
  }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  // Its kernels are few and somebody waits for them: they go before the computation's.
  c10::Stream stream_;
  const std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
  std::exception_ptr broken_;
};

struct Registry {
  std::mutex mutex;
  std::map<std::pair<std::string, c10::Device>, std::shared_ptr<Lane>,
           decltype([](const auto& a, const auto& b) {
             return std::tuple(a.first, a.second.str()) < std::tuple(b.first, b.second.str());
           })>
      lanes;
};

Registry& registry() {
  static auto* r = new Registry();  // never destroyed: shutdown() ends the threads while torch still stands
  return *r;
}

std::string name_beside(const std::string& group, const char* what) { return group + " " + what; }

std::shared_ptr<Lane> made(std::shared_ptr<GroupHealth> health, c10::Device device) {
  if (device.is_cpu()) return std::make_shared<ThreadLane>(std::move(health));
  return std::make_shared<StreamLane>(std::move(health), device);
}

// With the registry's mutex held. `beside`: whose health a new lane has; null: one of its own.
std::shared_ptr<Lane> lane_of(const std::string& name, c10::Device device, const Lane* beside) {
  auto& lane = registry().lanes[{name, device}];
  if (!lane)
    lane = made(beside ? beside->health().shared_from_this() : std::make_shared<GroupHealth>(), device);
  return lane;
}

}  // namespace

void Lane::keep(at::Tensor tensor, std::source_location where) {
  if (running && tensor.defined() && !tensor.is_cpu() && !left_out("hold", where))
    running->kept.push_back(std::move(tensor));
}

at::Tensor Lane::empty(at::IntArrayRef sizes, const at::TensorOptions& options, const BackendMemory* memory) {
  at::Tensor made;
  {
    const SubmittersMemory here;
    made = memory ? memory->empty(c10::multiply_integers(sizes), options) : at::empty(sizes, options);
  }
  keep(made);
  return made;
}

Lane::SubmittersMemory::SubmittersMemory() {
  if (running) there_.reset_stream(*running->submitter);
}

std::shared_ptr<Lane> Lane::of(const std::string& group, c10::Device device) {
  std::lock_guard lock(registry().mutex);
  return lane_of(group, device, nullptr);
}

std::shared_ptr<Lane> Lane::apart(c10::Device device) {
  return made(std::make_shared<GroupHealth>(), device);
}

std::shared_ptr<Lane> Lane::beside(const std::string& group, const char* what, c10::Device device) {
  std::lock_guard lock(registry().mutex);
  const std::shared_ptr<Lane> first = lane_of(group, device, nullptr);
  return lane_of(name_beside(group, what), device, first.get());
}

void start_heartbeat(const std::string& group, c10::Device device, double timeout_s) {
  auto process_group = c10d::resolve_process_group(group);
  if (process_group->getSize() < 2) return;
  auto store = c10::make_intrusive<c10d::PrefixStore>("heartbeat/", process_group->getStore()->clone());
  Heartbeat::start(store_of(std::move(store)), process_group->getRank(), process_group->getSize(), timeout_s,
                   Lane::of(group, device)->health_);
}

void end_group(const std::string& group) {
  std::vector<std::shared_ptr<Lane>> ending;
  {
    std::lock_guard lock(registry().mutex);
    for (auto at = registry().lanes.begin(); at != registry().lanes.end();) {
      const std::string& name = at->first.first;
      const bool ours = name == group || name == name_beside(group, Lane::kBetweenLines) ||
                        name == name_beside(group, Lane::kReductions);
      if (ours) ending.push_back(std::move(at->second));
      at = ours ? registry().lanes.erase(at) : std::next(at);
    }
  }
  for (const auto& lane : ending) Heartbeat::end(lane->health());
  ending.clear();
  forget_transport(group);
  forget_part(group);
}

void Lane::shutdown() {
  decltype(Registry::lanes) ending;
  std::lock_guard lock(registry().mutex);
  ending.swap(registry().lanes);
}

}  // namespace osdp::runtime
