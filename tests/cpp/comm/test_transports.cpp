// Which transport ranks have: what some of them cannot or must not, a group's transport while it is kept, and
// how ranks tell each other where they are.
#include "../check.hpp"
#include "comm/rendezvous.hpp"
#include "transports.hpp"

using namespace ranks;

namespace {

std::string chosen(Rank& me) {
  std::string name;
  Lane lane(std::make_shared<faults::GroupHealth>());
  lane.run("connecting", [&] { name = comm::make_transport(me.peers)->name(); });
  return name;
}

// What one rank must not, no rank does.
void what_one_must_not() {
  want("shared memory");
  for (const auto& [variables, expected] :
       {std::pair(std::vector<const char*>{}, "shared memory"),
        std::pair(std::vector<const char*>{"OSDP_SHARED_MEMORY"}, "sockets"),
        std::pair(std::vector<const char*>{"OSDP_SHARED_MEMORY", "OSDP_SOCKETS"}, "gloo")})
    for (const Ending& ending : on_processes(3, [&, &names = variables](Rank& me) {
           if (me.rank == 1)
             for (const char* variable : names) setenv(variable, "0", 1);
           return chosen(me);
         }))
      CHECK_EQ(ending.text, expected);
  for (const Ending& ending : on_processes(2, [&](Rank& me) {
         setenv("OSDP_SHARED_MEMORY", "0", 1);
         if (me.rank == 1) setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS", 1);  // streams must be encrypted
         return chosen(me);
       }))
    CHECK_EQ(ending.text, "gloo");
}

void kept_until_forgotten() {
  want("shared memory");
  // A group's name is this process's, and here all ranks are: each has a group of its own.
  on_threads(2, [&](Rank& me) {
    const std::string group = "group of rank " + std::to_string(me.rank);
    CHECK(!comm::is_connected(group));
    const auto first = comm::transport_of(group, me.peers);
    CHECK(comm::is_connected(group));
    CHECK(comm::transport_of(group, me.peers) == first);
    comm::forget_transport(group);
    CHECK(!comm::is_connected(group));
    comm::forget_transport(group);  // ranks end groups that others have ended
    const auto second = comm::transport_of(group, me.peers);
    CHECK(second != first);
    // Whoever still holds the first one can use it.
    for (const auto& transport : {first, second}) {
      std::vector<float> values = numbers(me.rank, 1000);
      comm::Ring(transport, me.peers, {}).all_reduce({range_of(values)});
      CHECK_EQ(values[7], mean(2, 7));
    }
    comm::forget_transport(group);
  });
}

struct Address {
  int rank;
  char name[8];
};

void endpoints_in_rank_order() {
  for (const int world : {1, 2, 5})
    on_threads(world, [&](Rank& me) {
      const auto all = comm::rendezvous(*me.peers, Address{me.rank, {static_cast<char>('a' + me.rank), 0}});
      CHECK_EQ(static_cast<int>(all.size()), world);
      for (int r = 0; r < world; ++r)
        CHECK(all[r].rank == r && all[r].name[0] == 'a' + r && all[r].name[1] == 0);
      CHECK(comm::everywhere(*me.peers, true));
      CHECK(!comm::everywhere(*me.peers, me.rank != world - 1));  // the last one's word counts everywhere
      CHECK(!comm::everywhere(*me.peers, me.rank != 0));
    });
}

// Whoever waits for it is told its rank in the group.
void a_rank_that_does_not_come() {
  const auto endings = on_processes(3, [](Rank& me) -> std::string {
    if (me.rank == 2) raise(SIGKILL);
    try {
      comm::rendezvous(*me.peers, me.rank);
    } catch (const faults::ConnectionLost& e) {
      return "lost " + std::to_string(e.peer);
    }
    return "met";
  });
  for (int r = 0; r < 2; ++r) CHECK_EQ(endings[r].text, "lost 2");
}

// Only a transport that sends early has something to send, and that is not what goes past it at once.
void early_sends() {
  for (const char* link : kTransports) {
    want(link);
    on_threads(3, [&](Rank& me) {
      const auto ring = ring_of(me);
      std::vector<float> small = numbers(me.rank, 3), large = numbers(me.rank, 90000);
      const comm::EarlySend gather = ring->early_send_of_gather({range_of(large)});
      const bool sends = ring->transport().sends_early();
      CHECK_EQ(sends, std::string(link) == "sockets");
      CHECK_EQ(gather.transport == &ring->transport(), sends);
      int64_t bytes = 0;
      for (const comm::Range& message : gather.messages) bytes += message.bytes();
      CHECK_EQ(bytes, sends ? 90000 * 4 : 0);
      // Of a reduction the chunk of the rank before: a third of it.
      bytes = 0;
      for (const comm::Range& message : ring->early_send_of_reduce_scatter({range_of(large)}).messages)
        bytes += message.bytes();
      CHECK_EQ(bytes, sends ? 30000 * 4 : 0);
      CHECK(ring->early_send_of_all_reduce({range_of(small)}).messages.empty());
      CHECK(ring->early_send_of_gather({}).transport == nullptr);
    });
  }
}

}  // namespace

int main() {
  what_one_must_not();  // forks: before there are threads
  a_rank_that_does_not_come();
  kept_until_forgotten();
  endpoints_in_rank_order();
  early_sends();
  return report("transports");
}
