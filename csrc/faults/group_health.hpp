// GroupHealth: what the lanes of a process group have in common: where the thread that computes is, which
// exceptions ended its passes, and what ends all of the lanes. Told by the threads that know, read by the
// heartbeat (heartbeat.hpp), which can interrupt a wait that will not end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "faults/abortable.hpp"
#include "faults/collective_tracker.hpp"
#include "faults/errors.hpp"

namespace osdp::runtime {

// Strings that the computing thread hands over by pointer: kept for ever, each once.
const std::string* interned(const std::string& text);

class GroupHealth : public std::enable_shared_from_this<GroupHealth> {
 public:
  GroupHealth();
  ~GroupHealth();

  // What can be seen from outside at one moment.
  struct Snapshot {
    std::vector<CollectiveTracker::Snapshot> lanes;  // in the order in which they were made
    const std::string* place = nullptr;  // "forward of 'blocks.3'"; null outside of forward and backward
    // Passes that an exception ended: how many, and with what the last one did.
    int64_t raised = 0;
    std::string raised_text;

    bool operator==(const Snapshot&) const = default;
    bool busy() const;
  };

  // Why a lane's task ended with an exception.
  struct Trouble {
    Trouble(std::string task, std::exception_ptr error);
    std::string label;  // of the task
    std::string text;
    std::optional<ErrorKind> kind;
    bool connection = false;  // it is about the connection to `peer`: that rank knows the cause
    int64_t peer = -1;        // rank of the lanes' group; -1: not known
  };

  // --- the thread that computes
  void at(const std::string* place) noexcept { place_.store(place, std::memory_order_relaxed); }
  void raised(std::string text);  // an exception ended a forward or backward

  // --- the lanes
  CollectiveTracker& add_lane();  // lives as long as this
  // A lane's task has thrown. Waits up to kExplainWait for the heartbeat's word on what happened where;
  // returns what this and all later tasks of all lanes end with.
  std::exception_ptr explain(Trouble trouble);
  std::exception_ptr interruption() const;
  void check() const;  // throws what interrupts the lanes, if anything
  // `backend` is aborted when the lanes are interrupted.
  void aborts(const std::shared_ptr<Abortable>& backend);

  // --- the heartbeat, and who waits for a task
  Snapshot snapshot();
  std::optional<Trouble> trouble() const;
  // Ends the messages that are waited for, and all later ones, with `why`. Later calls change nothing.
  void interrupt(std::exception_ptr why);
  void set_explained(bool by_heartbeat) { explained_ = by_heartbeat; }
  bool explained() const { return explained_; }
  // Of lanes that only enqueue, Note [Ranks that go apart unnoticed]; one per lane.
  std::vector<TrailMark> trail_marks() const;
  std::optional<uint64_t> trail_digest(size_t lane, int64_t position) const;
  TrailPiece trail_piece(size_t lane, int64_t after, int64_t to) const;

 private:
  friend class CollectiveTracker;

  mutable std::mutex mutex_;
  std::condition_variable told_;
  std::atomic<const std::string*> place_{nullptr};
  std::atomic<bool> explained_{false};
  // Under mutex_:
  std::vector<std::unique_ptr<CollectiveTracker>> lanes_;
  int64_t raised_ = 0;
  std::string raised_text_;
  std::optional<Trouble> trouble_;
  std::exception_ptr interruption_;
  std::vector<std::weak_ptr<Abortable>> backends_;
};

}  // namespace osdp::runtime
