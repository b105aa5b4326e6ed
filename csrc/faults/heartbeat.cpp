#include "faults/heartbeat.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include "faults/diagnosis.hpp"
#include "faults/process.hpp"
#include "faults/trail_comparison.hpp"

namespace osdp::faults {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr double kTellAfter_s = 0.25;  // standing still
constexpr double kTellEvery_s = 0.5;
constexpr double kAskAfter_s = 0.5;   // waiting
constexpr double kAskEvery_s = 0.25;  // times ranks / 16, to limit the store's load
constexpr double kSilent_s = 10;      // of a rank that does not respond
constexpr double kStoreLost_s = 1.0;  // how long the store may fail while this rank waits
constexpr double kLastWords_s = 0.3;  // for a rank whose connection closed to report why
constexpr auto kEndWait = std::chrono::milliseconds(500);

double since(Clock::time_point then) { return Seconds(Clock::now() - then).count(); }

}  // namespace

// The thread's state. It outlives shutdown() if the thread is stuck in a store that does not answer.
class Beating {
 public:
  Beating(std::shared_ptr<Store> store, int64_t rank, int64_t world, double timeout_s,
          std::shared_ptr<GroupHealth> health)
      : store_(std::move(store)),
        rank_(rank),
        timeout_s_(timeout_s),
        health_(std::move(health)),
        seen_(world),
        heard_(world, Clock::now()),
        processes_(world),
        trails_(store_, rank, world, health_) {}

  const GroupHealth* health() const { return health_.get(); }

  void loop() {
    attempt([this] { store_->set(process_key(rank_), Process::here().encode()); });
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kTick, [this] { return ending_ || !giving_up_.empty(); }) || !ending_) {
      const std::string giving_up = std::exchange(giving_up_, "");
      lock.unlock();
      tick(giving_up);
      lock.lock();
    }
    health_->set_explained(false);
    lock.unlock();
    if (!last_words_.empty()) attempt([this] { tell(true); });
    lock.lock();
    ended_ = true;
    changed_.notify_all();
  }

  void end(const std::string& last_words) {
    std::unique_lock lock(mutex_);
    last_words_ = last_words;
    ending_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kEndWait, [this] { return ended_; });
  }

  void give_up(const std::string& cause) {
    std::lock_guard lock(mutex_);
    giving_up_ = cause;
    changed_.notify_all();
  }

 private:
  void tick(const std::string& giving_up) {
    GroupHealth::Snapshot now = health_->snapshot();
    if (!lanes_stand(now)) waits_since_ = Clock::now();
    if (now != last_) {
      still_since_ = Clock::now();
      told_still_ = false;
      store_lost_.reset();
      gone_ = -1;
    }
    last_ = std::move(now);
    if (over_) return;
    if (!giving_up.empty()) {
      attempt([&] { conclude({ErrorKind::Rank, rank_, name(rank_) + " " + giving_up}); });
      over_ = true;
      return;
    }
    if (const auto trouble = health_->trouble()) return explain(*trouble);
    attempt([this] {
      if (const auto failure = trails_.compare()) conclude(*failure);
    });
    if (over_) return;
    const double still_s = since(still_since_);
    const bool inside = last_.busy() || last_.place || status().awaits_device();
    const double waits_s = since(waits_since_);
    if (still_s < kTellAfter_s && waits_s < kAskAfter_s) return;
    if (!told_still_ || (inside && since(told_) >= kTellEvery_s)) attempt([this] { tell(false); });
    if (!last_.busy() || waits_s < kAskAfter_s) return;
    const double ask_every_s = kAskEvery_s * std::max(1.0, static_cast<double>(seen_.size()) / 16);
    if (since(asked_) >= ask_every_s) attempt([this] { ask(); });
    if (!over_) look_at_processes();
    if (over_) return;
    // A heart on a busy machine is late: long silence alone says that there is none.
    const double silent_s = std::max(2 * kTellEvery_s + 2 * ask_every_s, std::min(kSilent_s, timeout_s_ / 2));
    if (waits_s >= timeout_s_) {
      const Failure failure = timed_out(rank_, status(), seen_, timeout_s_, silent_s, health_->names());
      if (!attempt([&] { conclude(failure); })) interrupt(failure);
    } else if (store_lost_ && since(*store_lost_) >= kStoreLost_s) {
      interrupt(
          {ErrorKind::Rank, -1,
           "the store that the ranks share does not respond: the process that holds it (rank 0's, or the "
           "launcher's) has ended"});
    }
  }

  // Whether no lane has made progress since the last tick, whatever the computing thread has done.
  bool lanes_stand(const GroupHealth::Snapshot& now) const {
    return std::equal(now.lanes.begin(), now.lanes.end(), last_.lanes.begin(), last_.lanes.end(),
                      [](const CollectiveTracker::Snapshot& a, const CollectiveTracker::Snapshot& b) {
                        return a.position == b.position && a.progress == b.progress && a.busy == b.busy;
                      });
  }

  // Runs `work`, which uses the store; false if the store failed.
  template <typename Work>
  bool attempt(Work work) {
    try {
      work();
      store_lost_.reset();
      return true;
    } catch (const std::exception&) {
      if (!store_lost_) store_lost_ = Clock::now();
      return false;
    }
  }

  RankStatus status() const {
    RankStatus p{.beat = beat_,
                 .lanes = {},
                 .still_s = since(still_since_),
                 .place = last_.place ? *last_.place : "",
                 .raised = last_.raised,
                 .ended = false,
                 .text = last_.raised_text};
    for (const auto& lane : last_.lanes)
      p.lanes.push_back({lane.position, lane.asked, lane.busy, lane.task ? *lane.task : TaskName()});
    return p;
  }

  std::string name(int64_t rank) const { return health_->names()(rank); }

  static std::string key(int64_t rank) { return "pulse/" + std::to_string(rank); }
  static std::string process_key(int64_t rank) { return "process/" + std::to_string(rank); }

  void tell(bool ended) {
    ++beat_;
    told_ = Clock::now();
    told_still_ = true;
    RankStatus p = status();
    p.ended = ended;
    if (ended) p.text = last_words_;
    store_->set(key(rank_), p.encode());
  }

  void look(int64_t rank) {
    Seen& seen = seen_[static_cast<size_t>(rank)];
    const auto told = store_->get(key(rank));
    auto found = told ? RankStatus::decode(*told) : std::nullopt;
    if (!found) return;
    if (!seen.status || seen.status->beat != found->beat) heard_[rank] = Clock::now();
    seen.status = std::move(found);
  }

  const std::optional<Process>& process_of(int64_t rank) {
    auto& process = processes_[static_cast<size_t>(rank)];
    if (!process)
      if (const auto told = store_->get(process_key(rank))) process = Process::decode(*told);
    return process;
  }

  // Note [A dead rank's children]. Messages that a rank sent before it ended may still arrive: it counts as
  // ended when two ticks have seen it so without any progress in between.
  void look_at_processes() {
    for (size_t r = 0; r < processes_.size(); ++r) {
      if (!processes_[r] || static_cast<int64_t>(r) == rank_ || life_of(*processes_[r]) != Life::Ended)
        continue;
      if (std::exchange(gone_, static_cast<int64_t>(r)) != gone_) return;
      const Failure failure = process_ended(gone_, seen_, health_->names());
      if (!attempt([&] { conclude(failure); })) interrupt(failure);
      return;
    }
  }

  void ask() {
    asked_ = Clock::now();
    if (store_->get(Failure::kKey)) return conclude({});
    for (size_t r = 0; r < seen_.size(); ++r) {
      if (static_cast<int64_t>(r) == rank_) continue;
      look(static_cast<int64_t>(r));
      process_of(static_cast<int64_t>(r));
      seen_[r].heard_s = since(heard_[r]);
    }
    if (auto failure = certain_failure(rank_, status(), seen_, timeout_s_, health_->names()))
      conclude(*failure);
  }

  // Adopts `mine` unless another rank concluded earlier.
  void conclude(const Failure& mine) {
    const std::string said = store_->set_first(Failure::kKey, mine.encode());
    interrupt(Failure::decode(said).value_or(mine));
  }

  void interrupt(const Failure& failure) {
    over_ = true;
    std::string here = name(rank_);
    std::string message = "OSDP: " + here + " cannot continue: " + failure.cause + ". ";
    here[0] = 'R';
    message += here + " " + status().where() +
               ". This process group can run no more collectives: end all ranks and restart them from a "
               "checkpoint.";
    health_->interrupt(make_error(failure.kind, std::move(message)));
  }

  // The lane's thread waits for this. A lost connection is the consequence of a fault elsewhere, and so may
  // be an exception of a backend; every other exception originated on this rank.
  void explain(const GroupHealth::Trouble& trouble) {
    if (!trouble.connection && (trouble.kind || !ended_elsewhere())) return blame_me(trouble);
    if (over_) return;
    const bool asked = attempt([&] {
      const auto until = Clock::now() + Seconds(kLastWords_s);
      const bool known = trouble.peer >= 0 && trouble.peer < static_cast<int64_t>(seen_.size());
      do {
        if (store_->get(Failure::kKey)) return conclude({});
        if (known) look(trouble.peer);
        if (known && seen_[static_cast<size_t>(trouble.peer)].status &&
            seen_[static_cast<size_t>(trouble.peer)].status->ended)
          break;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      } while (Clock::now() < until);
      if (known) process_of(trouble.peer);
      conclude(lost(trouble));
    });
    if (!asked) interrupt(lost(trouble));
  }

  // Whether another rank has failed or its process has ended; if so, concludes that.
  bool ended_elsewhere() {
    const auto until = Clock::now() + Seconds(kLastWords_s);
    do {
      attempt([&] {
        if (store_->get(Failure::kKey)) return conclude({});
        for (size_t r = 0; r < processes_.size() && !over_; ++r) {
          const auto other = static_cast<int64_t>(r);
          if (other == rank_) continue;
          look(other);
          const auto& process = process_of(other);
          if (process && life_of(*process) == Life::Ended)
            conclude(process_ended(other, seen_, health_->names()));
        }
      });
      if (!over_) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (!over_ && Clock::now() < until);
    return over_;
  }

  Failure lost(const GroupHealth::Trouble& trouble) const {
    const bool known = trouble.peer >= 0 && trouble.peer < static_cast<int64_t>(processes_.size());
    const auto& process = known ? processes_[static_cast<size_t>(trouble.peer)] : std::nullopt;
    return connection_lost(trouble.peer, seen_, trouble.text, process ? life_of(*process) : Life::Unseen,
                           health_->names());
  }

  void blame_me(const GroupHealth::Trouble& trouble) {
    over_ = true;
    const std::string what = name(rank_) + " failed in '" + trouble.label + "' (" +
                             (last_.place ? *last_.place : "outside of forward and backward") +
                             "): " + trouble.text;
    attempt([&] { store_->set_first(Failure::kKey, Failure{ErrorKind::Rank, rank_, what}.encode()); });
    health_->interrupt(make_error(trouble.kind.value_or(ErrorKind::Rank), "OSDP: " + what));
  }

  std::shared_ptr<Store> store_;
  const int64_t rank_;
  const double timeout_s_;
  std::shared_ptr<GroupHealth> health_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false, ended_ = false;  // under mutex_, as are the strings below
  std::string giving_up_, last_words_;

  // Used by the thread only:
  GroupHealth::Snapshot last_;
  Clock::time_point still_since_ = Clock::now(), waits_since_ = still_since_, told_{}, asked_{};
  bool told_still_ = false;
  bool over_ = false;  // concluded: nothing is left to diagnose
  int64_t beat_ = 0;
  std::vector<Seen> seen_;
  std::vector<Clock::time_point> heard_;
  std::vector<std::optional<Process>> processes_;  // those read from the store so far
  int64_t gone_ = -1;                              // the rank whose process the last tick found ended
  std::optional<Clock::time_point> store_lost_;
  TrailComparison trails_;
};

namespace {

struct Hearts {
  std::mutex mutex;
  std::vector<std::shared_ptr<Beating>> all;
};

Hearts& hearts() {
  static auto* h = new Hearts();  // never destroyed: threads may be stuck in it
  return *h;
}

}  // namespace

void Heartbeat::start(std::shared_ptr<Store> store, int64_t rank, int64_t world, double timeout_s,
                      std::shared_ptr<GroupHealth> health) {
  health->set_explained(true);  // before the thread runs, so that earlier failures wait for it
  auto beating = std::make_shared<Beating>(std::move(store), rank, world, timeout_s, std::move(health));
  std::lock_guard lock(hearts().mutex);
  hearts().all.push_back(beating);
  std::thread([beating] { beating->loop(); }).detach();
}

void Heartbeat::end(const GroupHealth& health) {
  std::vector<std::shared_ptr<Beating>> ending;
  {
    std::lock_guard lock(hearts().mutex);
    auto& all = hearts().all;
    const auto ours = std::stable_partition(
        all.begin(), all.end(), [&](const auto& beating) { return beating->health() != &health; });
    std::move(ours, all.end(), std::back_inserter(ending));
    all.erase(ours, all.end());
  }
  for (const auto& beating : ending) beating->end("");
}

void Heartbeat::shutdown(const std::string& last_words) {
  std::vector<std::shared_ptr<Beating>> ending;
  {
    std::lock_guard lock(hearts().mutex);
    ending.swap(hearts().all);
  }
  for (const auto& beating : ending) beating->end(last_words);
}

void Heartbeat::give_up(const GroupHealth& health, const std::string& cause) {
  std::lock_guard lock(hearts().mutex);
  for (const auto& beating : hearts().all)
    if (beating->health() == &health) beating->give_up(cause);
}

}  // namespace osdp::faults
