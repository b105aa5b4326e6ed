// Ranks as processes that die, stop, or send what nobody expects, over each kind of transport, while the
// transports are connected and while they carry.
#include <signal.h>

#include "../check.hpp"
#include "comm/transports/socket.hpp"
#include "faults/heartbeat.hpp"
#include "transports.hpp"

using namespace ranks;

namespace {

constexpr int64_t kCount = 200000;  // elements: many messages

std::string reduce(comm::Ring& ring, Rank& me, int64_t count = kCount) {
  std::vector<float> values = numbers(me.rank, count);
  ring.all_reduce({range_of(values)});
  for (int64_t i = 0; i < count; ++i)
    if (values[i] != mean(me.world, i)) return "wrong at " + std::to_string(i);
  return "right";
}

// `last` is what the last rank does after some good rounds; the others go on until an error ends them, with a
// heart that says whose fault it was.
std::vector<Ending> after_good_rounds(int world, const std::function<void(comm::Ring&, Rank&, Lane&)>& last) {
  return on_processes(world, [&](Rank& me) -> std::string {
    auto health = std::make_shared<faults::GroupHealth>();
    Lane lane(health);
    faults::Heartbeat::start(me.store, me.rank, world, 15, health);
    std::unique_ptr<comm::Ring> ring;
    std::string found;
    lane.run("connecting", [&] { ring = ring_of(me); });
    for (int i = 0; i < 3; ++i) {
      lane.run("layers.0 reduce", [&] { found = reduce(*ring, me); });
      if (found != "right") return found;
    }
    if (me.rank == world - 1) last(*ring, me, lane);
    lane.run("layers.1 reduce", [&] { found = reduce(*ring, me); });
    return found;
  });
}

bool holds(const Ending& ending, const std::string& part, const std::string& what) {
  const bool found = ending.text.find(part) != std::string::npos;
  if (!found) std::cerr << what << ": '" << part << "' is not in: " << ending.text << "\n";
  return found;
}

void deaths(const std::string& link) {
  for (const int world : {2, 4}) {
    const auto endings = after_good_rounds(world, [](comm::Ring&, Rank&, Lane&) { raise(SIGKILL); });
    for (int r = 0; r < world - 1; ++r)
      CHECK(holds(endings[r], "rank " + std::to_string(world - 1) + "'s process has ended", link));
    CHECK(WIFSIGNALED(endings[world - 1].status));
  }
  // Two ranks: each survivor names one of them.
  const auto two = on_processes(4, [&](Rank& me) -> std::string {
    auto health = std::make_shared<faults::GroupHealth>();
    Lane lane(health);
    faults::Heartbeat::start(me.store, me.rank, 4, 15, health);
    std::unique_ptr<comm::Ring> ring;
    lane.run("connecting", [&] { ring = ring_of(me); });
    if (me.rank % 2) raise(SIGKILL);
    std::string found;
    lane.run("reduce", [&] { found = reduce(*ring, me); });
    return found;
  });
  for (const int r : {0, 2}) {
    const bool named = two[r].text.find("rank 1's process has ended") != std::string::npos ||
                       two[r].text.find("rank 3's process has ended") != std::string::npos;
    if (!named) std::cerr << link << ": " << two[r].text << "\n";
    CHECK(named);
  }
}

// A child that the dead rank has forked holds all that it can.
void a_child_lives_on(const std::string& link) {
  const auto endings = after_good_rounds(3, [](comm::Ring&, Rank&, Lane&) {
    if (fork() == 0) {
      sleep(3);
      _exit(0);
    }
    raise(SIGKILL);
  });
  for (int r = 0; r < 2; ++r) CHECK(holds(endings[r], "rank 2's process has ended", link + ", a child"));
}

// Stopped first, so that it looks as if it hung, then killed.
void stopped_then_killed(const std::string& link) {
  const auto endings = after_good_rounds(2, [](comm::Ring&, Rank&, Lane&) {
    const pid_t me = getpid();
    if (fork() == 0) {
      sleep(1);
      kill(me, SIGKILL);
      _exit(0);
    }
    raise(SIGSTOP);
  });
  CHECK(holds(endings[0], "rank 1's process has ended", link + ", stopped"));
}

void another_length(const std::string& link) {
  if (link == "gloo") return;  // its messages have lengths of their own to complain of
  const auto endings = after_good_rounds(2, [](comm::Ring& ring, Rank& me, Lane& lane) {
    lane.run("layers.1 reduce", [&] { reduce(ring, me, kCount / 2); });
  });
  const std::string both = endings[0].text + endings[1].text;
  CHECK(holds({both, 0}, "the ranks run different collectives", link));
}

void another_collective(const std::string& link) {
  const auto endings = after_good_rounds(3, [](comm::Ring& ring, Rank& me, Lane& lane) {
    lane.run("layers.2 reduce", [&] { reduce(ring, me); });
  });
  for (const Ending& ending : endings) CHECK(holds(ending, "run different modules", link));
}

// While they connect: before, between and after the exchanges of endpoints.
void death_while_connecting(const std::string& link) {
  const auto endings = on_processes(3, [&](Rank& me) -> std::string {
    auto health = std::make_shared<faults::GroupHealth>();
    Lane lane(health);
    faults::Heartbeat::start(me.store, me.rank, 3, 15, health);
    std::string found;
    lane.run("connecting", [&] {
      if (me.rank == 2) raise(SIGKILL);
      found = ring_of(me)->transport().name();
    });
    return found;
  });
  for (int r = 0; r < 2; ++r) CHECK(holds(endings[r], "rank 2", link + ", connecting"));
}

// A forked child holds no socket of ours, though its numbers stay taken.
void sockets_of_a_fork() {
  const auto far = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  want("sockets");
  const auto address = comm::own_address();
  CHECK(address.has_value());
  const comm::Socket listening = comm::Socket::listening(*address);
  auto out = std::make_unique<comm::Socket>(comm::Socket::connected(listening.address(), far));
  comm::Socket in = listening.accepted(far);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    out.reset();
    pause();
    _exit(byte);
  }
  out.reset();  // closed here; and, if the child has kept none, for good
  char byte;
  CHECK_THROWS(in.read_all(&byte, 1, far), std::system_error, "receive");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace

int main() {
  sockets_of_a_fork();
  for (const std::string link : kTransports) {
    want(link);
    deaths(link);
    a_child_lives_on(link);
    another_length(link);
    another_collective(link);
    death_while_connecting(link);
  }
  want("gloo");
  stopped_then_killed("gloo");
  return report("transport_faults");
}
