#include "faults/rank_status.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

namespace osdp::faults {

std::string RankStatus::encode() const {
  std::ostringstream out;
  out << beat << '\n' << still_s << '\n' << raised << '\n' << ended << '\n' << lanes.size() << '\n';
  for (const LaneStatus& l : lanes) {
    out << l.position << '\n' << l.asked << '\n' << l.busy << '\n';
    write(out, l.task);
  }
  out << place << '\n' << text;
  return out.str();
}

std::optional<RankStatus> RankStatus::decode(const std::string& encoded) {
  std::istringstream in(encoded);
  RankStatus p;
  size_t lanes = 0;
  in >> p.beat >> p.still_s >> p.raised >> p.ended >> lanes;
  in.ignore();
  for (; in && lanes > 0; --lanes) {
    LaneStatus l;
    in >> l.position >> l.asked >> l.busy;
    l.task = read_task(in);
    p.lanes.push_back(std::move(l));
  }
  std::getline(in, p.place);
  if (!in) return std::nullopt;
  p.text.assign(std::istreambuf_iterator<char>(in), {});
  return p;
}

const LaneStatus& RankStatus::lane(size_t i) const {
  static const LaneStatus not_begun;
  return i < lanes.size() ? lanes[i] : not_begun;
}

bool RankStatus::awaits_device() const {
  return !busy() &&
         std::any_of(lanes.begin(), lanes.end(), [](const LaneStatus& l) { return l.asked > l.position; });
}

bool RankStatus::busy() const {
  return std::any_of(lanes.begin(), lanes.end(), [](const LaneStatus& l) { return l.busy; });
}

std::string RankStatus::where() const {
  std::ostringstream out;
  bool waits = false;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (!lanes[i].busy) continue;
    out << (std::exchange(waits, true) ? " and at #" : "waits at #") << lanes[i].position << " "
        << lanes[i].task.text();
  }
  if (!waits && lane(0).position > 0)
    out << "finished #" << lane(0).position << " " << lane(0).task.text()
        << (awaits_device() ? ", and its device has not reached the next"
                            : " and has requested nothing since");
  else if (!waits)
    out << (awaits_device() ? "waits for its device to reach the first collective" : "has not started");
  out << ", " << (place.empty() ? std::string("outside of forward and backward") : "in " + place);
  return out.str();
}

}  // namespace osdp::faults
