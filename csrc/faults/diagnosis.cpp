#include "faults/diagnosis.hpp"

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <map>
#include <sstream>

namespace osdp::faults {
namespace {

std::string seconds(double s) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << s << " s";
  return out.str();
}

std::string last_heard(const Seen& seen) {
  return seen.status ? "when last heard from, it " + seen.status->where()
                     : std::string("it never waited long enough to report where it was");
}

// gloo's message without its source location and advice.
std::string brief(std::string what) {
  if (what.starts_with('['))
    if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
  return what.substr(0, what.find(". This is"));
}

std::string after_exception(const RankStatus& status) {
  return status.text.empty() ? std::string("with an exception") : "with " + status.text;
}

}  // namespace

std::string Failure::encode() const {
  return std::to_string(static_cast<int>(kind)) + "\n" + std::to_string(rank) + "\n" + cause;
}

std::optional<Failure> Failure::decode(const std::string& encoded) {
  std::istringstream in(encoded);
  int kind = 0;
  Failure failure;
  in >> kind >> failure.rank;
  if (!in || kind < 0 || kind >= kErrorKinds) return std::nullopt;
  in.ignore();
  failure.kind = static_cast<ErrorKind>(kind);
  failure.cause.assign(std::istreambuf_iterator<char>(in), {});
  return failure;
}

namespace {

struct Advice {
  const char *what, *todo;
};

// What to say about two tasks that should be the same.
Advice advice(const TaskName& here, const TaskName& there) {
  if (here.label == there.label && here.model != there.model)
    return {
        "ranks run different models in one step",
        "models are numbered in the order in which fully_shard was called in this process group; every rank "
        "must shard and call them in the same order"};
  if (here.label == there.label && here.accumulates != there.accumulates)
    return {
        "ranks do not run the same number of micro-batches before a step",
        "every rank must run the same number of forwards and backwards between two optimizer steps: look for "
        "batches that only some ranks have, a step that only some ranks skip, or parameters that only some "
        "ranks write to"};
  if (here.label == there.label)
    return {"ranks do not agree on what they reduce",
            "in a step every rank must compute gradients of the same parameters, and pass the same arguments "
            "to the "
            "same call. If only some ranks use a parameter, `loss = loss + 0 * parameter.sum()` gives it a "
            "gradient of zeros on the others; a frozen parameter must be frozen on all ranks"};
  return {
      "ranks run different modules in one step",
      "every rank must call the same modules in the same order: look for a branch, a number of batches or a "
      "frozen parameter that differs between ranks"};
}

// For one lane, in which this rank waits.
std::optional<Failure> certain_failure(size_t lane, int64_t rank, const RankStatus& mine,
                                       const std::vector<Seen>& seen, double timeout_s,
                                       const RankNames& name) {
  const LaneStatus& here = mine.lane(lane);
  for (size_t r = 0; r < seen.size(); ++r) {
    if (static_cast<int64_t>(r) == rank || !seen[r].status) continue;
    const RankStatus& theirs = *seen[r].status;
    const LaneStatus& there = theirs.lane(lane);
    const auto other = static_cast<int64_t>(r);
    if (theirs.ended && there.position <= here.position)
      return Failure{ErrorKind::Rank, other, name(other) + " ended " + after_exception(theirs)};
    if (there.busy && there.position == here.position && there.task.digest != here.task.digest) {
      const auto [what, todo] = advice(here.task, there.task);
      std::map<std::string, std::string> places;  // where -> ranks
      for (size_t i = 0; i < seen.size(); ++i)
        if (const RankStatus* p = static_cast<int64_t>(i) == rank ? &mine
                                  : seen[i].status                ? &*seen[i].status
                                                                  : nullptr;
            p && p->lane(lane).busy && p->lane(lane).position == here.position) {
          std::string& ranks = places[p->where()];
          ranks += (ranks.empty() ? "" : ", ") + name(static_cast<int64_t>(i));
        }
      std::string cause = std::string(what) + ":";
      for (const auto& [where, ranks] : places) cause += " " + ranks + " " + where + ";";
      if (theirs.raised > mine.raised || mine.raised > theirs.raised) {
        const bool they = theirs.raised > mine.raised;
        cause.append(" ").append(name(they ? other : rank)) += " ended a forward or backward " +
                                                               after_exception(they ? theirs : mine) +
                                                               ", and the others did not;";
      }
      return Failure{ErrorKind::Order, -1, cause + " " + todo};
    }
    const double patience = std::min(kRaisedPatience_s, timeout_s / 2);
    const double still_s = theirs.still_s + seen[r].heard_s;
    if (theirs.raised > mine.raised && there.asked < here.position && !theirs.busy() && still_s > patience)
      return Failure{ErrorKind::Rank, other,
                     name(other) + " ended a forward or backward " + after_exception(theirs) +
                         ", and has not continued for " + seconds(still_s)};
  }
  return std::nullopt;
}

// Whether, in a lane in which this rank waits, the other rank has not reached this rank's position, or is at
// it but not in a collective.
bool is_behind(const RankStatus& mine, const std::optional<RankStatus>& theirs) {
  if (!theirs) return true;
  for (size_t i = 0; i < mine.lanes.size(); ++i) {
    const LaneStatus &here = mine.lanes[i], &there = theirs->lane(i);
    if (!here.busy || there.position > here.position) continue;
    if (there.position < here.position || !there.busy) return true;
  }
  return false;
}

}  // namespace

std::optional<Failure> certain_failure(int64_t rank, const RankStatus& mine, const std::vector<Seen>& seen,
                                       double timeout_s, const RankNames& name) {
  for (size_t lane = 0; lane < mine.lanes.size(); ++lane)
    if (mine.lanes[lane].busy)
      if (auto failure = certain_failure(lane, rank, mine, seen, timeout_s, name)) return failure;
  return std::nullopt;
}

Failure timed_out(int64_t rank, const RankStatus& mine, const std::vector<Seen>& seen, double timeout_s,
                  double silent_s, const RankNames& name) {
  const std::string within = " (the process group's timeout is " + seconds(timeout_s) + ")";
  std::vector<int64_t> behind, waiting;
  for (size_t r = 0; r < seen.size(); ++r) {
    const auto& status = seen[r].status;
    if (static_cast<int64_t>(r) == rank || !is_behind(mine, status)) continue;
    (status && status->busy() && seen[r].heard_s < silent_s ? waiting : behind)
        .push_back(static_cast<int64_t>(r));
  }
  if (behind.empty()) behind = std::move(waiting);
  if (behind.empty())
    return {ErrorKind::Rank, -1,
            "all ranks wait in the same collective: the network between them has failed" + within};
  std::string causes;
  for (const int64_t other : behind) {
    const auto& [status, heard_s] = seen[static_cast<size_t>(other)];
    causes += (causes.empty() ? "" : "; ") + name(other);
    bool told = status.has_value();
    for (size_t i = 0; told && i < mine.lanes.size(); ++i)
      told = !mine.lanes[i].busy || status->lane(i).position >= mine.lanes[i].position - 1;
    if (told && status->place.empty() && !status->busy())
      causes += " did not arrive: it " + status->where();
    else if (status && heard_s < silent_s)
      causes +=
          " hangs, although its process is alive: for " + seconds(status->still_s) + " it " + status->where();
    else
      causes += " hangs and does not respond (stopped, or its machine is down): " +
                last_heard(seen[static_cast<size_t>(other)]);
    if (status && status->raised > mine.raised)
      causes += "; before that, it ended a forward or backward " + after_exception(*status);
  }
  return {ErrorKind::Rank, behind.size() == 1 ? behind[0] : -1, causes + within};
}

Failure went_apart(int64_t position, const std::pair<int64_t, const TaskName*>& one,
                   const std::pair<int64_t, const TaskName*>& other, const RankNames& name) {
  const auto [what, todo] = advice(*one.second, *other.second);
  std::string cause = std::string(what) + ":";
  for (const auto& [rank, task] : {one, other})
    cause += " " + name(rank) + " ran #" + std::to_string(position) + " " + task->text() + ";";
  return {ErrorKind::Order, -1, cause + " " + todo};
}

Failure went_apart(int64_t agreed, int64_t position, int64_t one, int64_t other, const RankNames& name) {
  return {ErrorKind::Order, -1,
          name(one) + " and " + name(other) + " ran different collectives between #" +
              std::to_string(agreed + 1) + " and #" + std::to_string(position) +
              ": every rank must call the same modules in the same order"};
}

Failure connection_lost(int64_t peer, const std::vector<Seen>& seen, const std::string& what, Life life,
                        const RankNames& name) {
  if (peer < 0 || peer >= static_cast<int64_t>(seen.size()))
    return {ErrorKind::Rank, -1, "the connection to another rank was lost (" + brief(what) + ")"};
  const Seen& theirs = seen[static_cast<size_t>(peer)];
  if (life == Life::Ended || (theirs.status && theirs.status->ended)) return process_ended(peer, seen, name);
  const std::string it = name(peer);
  const std::string how = life == Life::Runs
                              ? "the connection to " + it + " was lost, although its process is running"
                              : it + "'s process has ended, or its machine is down";
  return {ErrorKind::Rank, peer, how + " (" + brief(what) + "); " + last_heard(theirs)};
}

Failure process_ended(int64_t peer, const std::vector<Seen>& seen, const RankNames& name) {
  const Seen& theirs = seen[static_cast<size_t>(peer)];
  if (theirs.status && theirs.status->ended)
    return {ErrorKind::Rank, peer, name(peer) + " ended " + after_exception(*theirs.status)};
  return {ErrorKind::Rank, peer, name(peer) + "'s process has ended; " + last_heard(theirs)};
}

}  // namespace osdp::faults
