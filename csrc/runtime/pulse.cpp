#include "runtime/pulse.hpp"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>

namespace osdp::runtime {
namespace {

std::string seconds(double s) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << s << " s";
  return out.str();
}

std::string rank_name(int64_t rank) { return "rank " + std::to_string(rank); }

std::string last_heard(const Seen& seen) {
  return seen.pulse ? "when last heard of, it " + seen.pulse->where()
                    : std::string("it had never stood still long enough to tell where it was");
}

// gloo's words without its source file and advice.
std::string brief(std::string what) {
  if (what.starts_with('['))
    if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
  return what.substr(0, what.find(". This is"));
}

std::string after_exception(const Pulse& pulse) {
  return pulse.text.empty() ? std::string("with an exception") : "with " + pulse.text;
}

}  // namespace

std::string Pulse::encode() const {
  std::ostringstream out;
  out << beat << '\n'
      << position << '\n'
      << asked << '\n'
      << busy << '\n'
      << still_s << '\n'
      << label << '\n';
  out << place << '\n' << raised << '\n' << raised_asked << '\n' << ended << '\n' << text;
  return out.str();
}

std::optional<Pulse> Pulse::decode(const std::string& encoded) {
  std::istringstream in(encoded);
  Pulse p;
  in >> p.beat >> p.position >> p.asked >> p.busy >> p.still_s;
  in.ignore();
  std::getline(in, p.label);
  std::getline(in, p.place);
  in >> p.raised >> p.raised_asked >> p.ended;
  if (!in) return std::nullopt;
  in.ignore();
  p.text.assign(std::istreambuf_iterator<char>(in), {});
  return p;
}

std::string Pulse::where() const {
  std::ostringstream out;
  if (busy)
    out << "waits at #" << position << " '" << label << "'";
  else if (position > 0)
    out << "has done #" << position << " '" << label << "' and asked for nothing since";
  else
    out << "has not begun";
  out << ", " << (place.empty() ? std::string("outside of forward and backward") : "in " + place);
  return out.str();
}

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

std::optional<Failure> certain_failure(int64_t rank, const Pulse& mine, const std::vector<Seen>& seen,
                                       double timeout_s) {
  for (size_t r = 0; r < seen.size(); ++r) {
    if (static_cast<int64_t>(r) == rank || !seen[r].pulse) continue;
    const Pulse& theirs = *seen[r].pulse;
    const auto other = static_cast<int64_t>(r);
    if (theirs.ended && theirs.position <= mine.position)
      return Failure{ErrorKind::Rank, other, rank_name(other) + " ended " + after_exception(theirs)};
    if (theirs.busy && theirs.position == mine.position && theirs.label != mine.label) {
      std::map<std::string, std::string> labels;  // where -> ranks
      for (size_t i = 0; i < seen.size(); ++i)
        if (const Pulse* p = static_cast<int64_t>(i) == rank ? &mine
                             : seen[i].pulse                 ? &*seen[i].pulse
                                                             : nullptr;
            p && p->busy && p->position == mine.position) {
          std::string& ranks = labels[p->where()];
          ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(i);
        }
      std::string cause = "ranks run different modules in one step:";
      for (const auto& [where, ranks] : labels) cause += " " + ranks + " " + where + ";";
      if (theirs.raised > mine.raised || mine.raised > theirs.raised) {
        const bool they = theirs.raised > mine.raised;
        cause += " " + rank_name(they ? other : rank) + " ended a forward or backward " +
                 after_exception(they ? theirs : mine) + ", and the others did not;";
      }
      return Failure{ErrorKind::Order, -1,
                     cause +
                         " every rank must call the same modules in the same order: look for a branch, a "
                         "number of batches or a frozen parameter that differs between ranks"};
    }
    const double patience = std::min(kRaisedPatience_s, timeout_s / 2);
    const double still_s = theirs.still_s + seen[r].heard_s;
    if (theirs.raised > mine.raised && theirs.asked < mine.position && !theirs.busy && still_s > patience)
      return Failure{ErrorKind::Rank, other,
                     rank_name(other) + " ended a forward or backward " + after_exception(theirs) +
                         ", and has not gone on for " + seconds(still_s)};
  }
  return std::nullopt;
}

Failure timed_out(int64_t rank, const Pulse& mine, const std::vector<Seen>& seen, double timeout_s,
                  double silent_s) {
  const std::string within = " (the process group's timeout is " + seconds(timeout_s) + ")";
  std::string causes;
  int64_t fault = -1;
  int behind = 0;
  for (size_t r = 0; r < seen.size(); ++r) {
    const auto other = static_cast<int64_t>(r);
    const auto& pulse = seen[r].pulse;
    if (other == rank || (pulse && pulse->busy && pulse->position >= mine.position)) continue;
    fault = ++behind == 1 ? other : -1;
    causes += (causes.empty() ? "" : "; ") + rank_name(other);
    const bool told = pulse && pulse->position >= mine.position - 1;
    if (told && pulse->place.empty() && !pulse->busy)
      causes += " does not come: it " + pulse->where();
    else if (pulse && seen[r].heard_s < silent_s)
      causes += " hangs, though its process lives: for " + seconds(pulse->still_s) + " it " + pulse->where();
    else
      causes += " hangs and gives no sign of life (stopped, or its machine is gone): " + last_heard(seen[r]);
    if (pulse && pulse->raised > mine.raised)
      causes += "; before, it ended a forward or backward " + after_exception(*pulse);
  }
  if (behind == 0) causes = "all ranks wait in the same collective: the network between them has failed";
  return {ErrorKind::Rank, fault, causes + within};
}

Failure connection_lost(int64_t peer, const std::vector<Seen>& seen, const std::string& what) {
  if (peer < 0 || peer >= static_cast<int64_t>(seen.size()))
    return {ErrorKind::Rank, -1, "the connection to another rank was lost (" + brief(what) + ")"};
  const Seen& theirs = seen[static_cast<size_t>(peer)];
  if (theirs.pulse && theirs.pulse->ended)
    return {ErrorKind::Rank, peer, rank_name(peer) + " ended " + after_exception(*theirs.pulse)};
  return {ErrorKind::Rank, peer,
          rank_name(peer) + "'s process has ended, or its machine is gone (" + brief(what) + "); " +
              last_heard(theirs)};
}

}  // namespace osdp::runtime
