// GroupHealth: the state that the lanes of a process group share: the computing thread's position, the
// exceptions that ended its passes, and the exception that ends all lanes. Written by the computing thread
// and the lanes; read by the heartbeat (heartbeat.hpp), which can interrupt a wait that would not end.
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
#include "faults/rank_names.hpp"

namespace osdp::faults {

// Strings that the computing thread passes by pointer: each is stored once, for ever.
const std::string* interned(const std::string& text);

class GroupHealth : public std::enable_shared_from_this<GroupHealth> {
 public:
  GroupHealth();
  ~GroupHealth();

  // The state visible to the heartbeat at one moment.
  struct Snapshot {
    std::vector<CollectiveTracker::Snapshot> lanes;  // in order of creation
    const std::string* place = nullptr;  // "forward of 'blocks.3'"; null outside of forward and backward
    // The number of passes that an exception ended, and the text of the last exception.
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
    bool connection = false;  // the connection to `peer` failed: the cause is there
    int64_t peer = -1;        // rank in the lanes' group; -1: unknown
  };

  // --- the group's maker, and whoever learns more of its ranks later (their stage of a pipeline)
  void name_ranks(RankNames names);
  RankNames names() const;

  // --- the computing thread
  void at(const std::string* place) noexcept { place_.store(place, std::memory_order_relaxed); }
  void raised(std::string text);  // an exception ended a forward or backward

  // --- the lanes
  CollectiveTracker& add_lane();  // lives as long as this
  // Called when a lane's task has thrown. Waits up to kExplainWait for the heartbeat's diagnosis; returns the
  // exception with which this and all later tasks of all lanes end.
  std::exception_ptr explain(Trouble trouble);
  std::exception_ptr interruption() const;
  void check() const;  // throws the exception that interrupted the lanes, if any
  // `backend` is aborted when the lanes are interrupted.
  void aborts(const std::shared_ptr<Abortable>& backend);

  // --- the heartbeat, and threads that wait for a task
  Snapshot snapshot();
  std::optional<Trouble> trouble() const;
  // Ends the messages being waited for, and all later ones, with `why`. Later calls have no effect.
  void interrupt(std::exception_ptr why);
  void set_explained(bool by_heartbeat) { explained_ = by_heartbeat; }
  bool explained() const { return explained_; }
  // For lanes that only enqueue, see Note [Ranks that go apart unnoticed]; one per lane.
  std::vector<TrailMark> trail_marks() const;
  std::optional<uint64_t> trail_digest(size_t lane, int64_t position) const;
  TrailPiece trail_piece(size_t lane, int64_t after, int64_t to) const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable told_;
  std::atomic<const std::string*> place_{nullptr};
  std::atomic<bool> explained_{false};
  // Under mutex_:
  std::vector<std::unique_ptr<CollectiveTracker>> lanes_;
  RankNames names_;
  int64_t raised_ = 0;
  std::string raised_text_;
  std::optional<Trouble> trouble_;
  std::exception_ptr interruption_;
  std::vector<std::weak_ptr<Abortable>> backends_;
};

}  // namespace osdp::faults
