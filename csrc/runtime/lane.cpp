#include "runtime/lane.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "runtime/phase_range.hpp"

namespace osdp::runtime {

struct Ticket::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  double seconds = 0;
  std::exception_ptr error;
  std::string label;
  std::optional<c10::Event> event;  // accelerators
  c10::Device device{c10::DeviceType::CPU};

  void finish(std::exception_ptr e, double took = 0) {
    std::lock_guard lock(mutex);
    done = true;
    seconds = took;
    error = std::move(e);
    changed.notify_all();
  }
};

void Ticket::wait() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  if (!state_->done) {
    PhaseRange range;
    range.begin("wait for", state_->label.c_str());
    state_->changed.wait(lock, [this] { return state_->done; });
  }
  if (state_->error) std::rethrow_exception(state_->error);
  if (state_->event) {
    c10::impl::VirtualGuardImpl guard(state_->device.type());
    state_->event->block(guard.getStream(state_->device));
  }
}

bool Ticket::done() const {
  if (!state_) return true;
  std::unique_lock lock(state_->mutex);
  return state_->done && (state_->error || !state_->event || state_->event->query());
}

double Ticket::seconds() const {
  if (!state_) return 0;
  std::lock_guard lock(state_->mutex);
  return state_->seconds;
}

namespace {

// Runs the task under its label; what it throws is told again with the label in front.
void run(const std::string& label, const Lane::Task& task) {
  c10::InferenceMode no_inference(false);
  at::NoGradGuard no_grad;
  RECORD_FUNCTION(label, std::vector<c10::IValue>());
  try {
    task();
  } catch (const std::exception& e) {
    throw std::runtime_error(label + " failed: " + e.what());
  }
}

class ThreadLane final : public Lane {
 public:
  ThreadLane() : thread_([this] { work(); }) {}

  ~ThreadLane() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  Ticket submit(std::string label, Task task) override {
    auto state = std::make_shared<Ticket::State>();
    state->label = label;
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(label), std::move(task), state, at::get_record_function_tls_(),
                      c10::ThreadLocalDebugInfo::current()});
    changed_.notify_one();
    return Ticket(std::move(state));
  }

 private:
  struct Item {
    std::string label;
    Task task;
    std::shared_ptr<Ticket::State> state;
    // The submitter's profiler, so that a timeline shows the lane's work too.
    at::RecordFunctionTLS recording;
    std::shared_ptr<c10::ThreadLocalDebugInfo> debug_info;
  };

  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Item item = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      at::set_record_function_tls_(item.recording);
      c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::move(item.debug_info));
      const auto begin = std::chrono::steady_clock::now();
      try {
        if (!broken_) run(item.label, item.task);
      } catch (...) {
        broken_ = std::current_exception();
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      item.task = nullptr;  // what it holds is let go before anybody is told that it is done
      item.state->finish(broken_, took.count());
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool ending_ = false;
  std::exception_ptr broken_;
  std::thread thread_;
};

class StreamLane final : public Lane {
 public:
  explicit StreamLane(c10::Device device)
      : device_(device), guard_(device.type()), stream_(guard_.getStreamFromGlobalPool(device)) {}

  Ticket submit(std::string label, Task task) override {
    auto state = std::make_shared<Ticket::State>();
    state->device = device_;
    if (!broken_) {
      try {
        c10::Event before(device_.type());
        before.record(guard_.getStream(device_));
        before.block(stream_);
        c10::StreamGuard on_lane(stream_);
        run(label, task);
        state->event.emplace(device_.type());
        state->event->record(stream_);
      } catch (...) {
        broken_ = std::current_exception();
      }
    }
    state->finish(broken_);
    return Ticket(std::move(state));
  }

  void synchronize() override { stream_.synchronize(); }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
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

}  // namespace

std::shared_ptr<Lane> Lane::of(const std::string& group, c10::Device device) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  auto& lane = r.lanes[{group, device}];
  if (!lane) {
    if (device.is_cpu())
      lane = std::make_shared<ThreadLane>();
    else
      lane = std::make_shared<StreamLane>(device);
  }
  return lane;
}

void Lane::shutdown() {
  decltype(Registry::lanes) ending;
  std::lock_guard lock(registry().mutex);
  ending.swap(registry().lanes);
}

}  // namespace osdp::runtime
