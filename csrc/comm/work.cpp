#include "comm/work.hpp"

#include <atomic>
#include <chrono>
#include <string>

#include "comm/phase_range.hpp"
#include "comm/work_state.hpp"
#include "faults/errors.hpp"
#include "faults/heartbeat.hpp"

namespace osdp::comm {
namespace {

std::atomic<void (*)()> signal_check{nullptr};
constexpr auto kSignalCheck = std::chrono::milliseconds(100);

}  // namespace

void set_signal_check(void (*check)()) { signal_check = check; }

// A signal interrupted this process while it waited: ends its lanes and notifies the other ranks.
static void give_up(faults::GroupHealth& health) {
  const std::string why = "was interrupted by a signal (Ctrl-C?) while it waited for the other ranks";
  faults::Heartbeat::give_up(health, why);
  health.interrupt(faults::make_error(faults::ErrorKind::Rank, "OSDP: this rank cannot continue: it " + why));
}

void Work::wait(CallSite where) const {
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
  // After an abort, events complete although their collectives have not.
  if (state_->event) state_->health->check();
}

void Work::settle(CallSite where) const {
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

}  // namespace osdp::comm
