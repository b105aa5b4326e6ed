// What a heartbeat concludes, ranks as threads with a store in memory: who died, hangs, went another way; and
// its own end.
#include <signal.h>

#include "../check.hpp"
#include "ranks.hpp"
#include "runtime/errors.hpp"
#include "runtime/heartbeat.hpp"
#include "runtime/pulse.hpp"

using namespace ranks;

namespace {

constexpr auto kSoon = std::chrono::milliseconds(600);  // after which a rank that stands still has told so

bool holds(const std::string& text, const char* part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) std::cerr << "'" << part << "' is not in: " << text << "\n";
  return found;
}

// A rank with its heart: in a process of its own these would be one.
struct Member {
  Member(std::shared_ptr<rt::Store> store, int rank, int world, double timeout_s = 30)
      : alarm(std::make_shared<rt::Alarm>()), lane(alarm) {
    rt::Heartbeat::start(std::move(store), rank, world, timeout_s, alarm);
  }
  ~Member() { rt::Heartbeat::end(*alarm); }
  // What a collective that never ends by itself ends with.
  std::string wait(const std::string& label) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    try {
      lane.run(label, [&] {
        while (std::chrono::steady_clock::now() < until) {
          lane.watch().check();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      });
    } catch (const std::exception& e) {
      return e.what();
    }
    return "(nothing)";
  }
  std::string lose(int peer, const char* why = "connection reset") {
    try {
      lane.run("layers.1 all-gather", [&] { throw rt::ConnectionLost(peer, why); });
    } catch (const std::exception& e) {
      return e.what();
    }
    return "(nothing)";
  }
  std::shared_ptr<rt::Alarm> alarm;
  Lane lane;
};

// The other has told where it is, and this one has never asked: it must not look where nothing is kept yet.
void lost_before_it_asked() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 3), other(store, 2, 3);
  other.lane.run("layers.0 all-gather", [] {});
  std::this_thread::sleep_for(kSoon);
  const std::string message = me.lose(2);
  CHECK(holds(message, "rank 2"));
  CHECK(holds(message, "has done #1 'layers.0 all-gather'"));
  CHECK(holds(message, "though its process runs"));  // this one
}

// Nobody knows whose connection it was; and a rank beyond all that there are.
void lost_to_nobody() {
  for (const int peer : {-1, 7}) {
    Member me(std::make_shared<MemoryStore>(), 0, 2);
    CHECK(holds(me.lose(peer), "the connection to another rank was lost"));
  }
}

void another_way() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2), other(store, 1, 2);
  std::string theirs;
  std::thread thread([&] { theirs = other.wait("right all-gather"); });
  const std::string ours = me.wait("left all-gather");
  thread.join();
  for (const std::string& message : {ours, theirs}) {
    CHECK(holds(message, "run different modules"));
    CHECK(holds(message, "'left all-gather'") && holds(message, "'right all-gather'"));
  }
}

void times_out() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2, 1.5), other(store, 1, 2);
  std::this_thread::sleep_for(kSoon);
  CHECK(holds(me.wait("layers.1 all-gather"), "rank 1 does not come"));
}

void last_words() {
  auto store = std::make_shared<MemoryStore>();
  auto me = std::make_unique<Member>(store, 0, 2);
  rt::Pulse theirs;
  theirs.beat = 9;
  theirs.ended = true;
  theirs.text = "ValueError: the third batch\nis bad";
  store->set("pulse/1", theirs.encode());
  CHECK(holds(me->wait("layers.1 all-gather"), "rank 1 ended with ValueError: the third batch"));
}

void gives_up() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2), other(store, 1, 2);
  std::string theirs;
  std::thread thread([&] { theirs = other.wait("layers.1 all-gather"); });
  rt::Heartbeat::give_up(*me.alarm, "was interrupted by a signal");
  thread.join();
  CHECK(holds(theirs, "rank 0 was interrupted by a signal"));
}

// A process that is not there, on this host: nothing has to close for that, and the timeout is far.
void process_ended() {
  auto store = std::make_shared<MemoryStore>();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  Member me(store, 0, 2);
  rt::Process process = rt::Process::here();
  process.id = child;
  process.started = 0;
  store->set("process/1", process.encode());
  CHECK(rt::life_of(process) == rt::Life::Runs);
  std::thread killer([&] {
    std::this_thread::sleep_for(kSoon);
    kill(child, SIGKILL);  // not waited for: a process that nobody has buried yet has ended too
  });
  CHECK(holds(me.wait("layers.1 all-gather"), "rank 1's process has ended"));
  killer.join();
  CHECK(rt::life_of(process) == rt::Life::Ended);
  waitpid(child, nullptr, 0);
  CHECK(rt::life_of(process) == rt::Life::Ended);
  process.host = "another";
  CHECK(rt::life_of(process) == rt::Life::Unseen);
  process = rt::Process::here();
  CHECK(rt::life_of(process) == rt::Life::Runs);
  process.started += 1;  // the number is another process's by now
  CHECK(rt::life_of(process) == rt::Life::Ended);
  CHECK(!rt::Process::decode("") && !rt::Process::decode("x y") && !rt::Process::decode("-3 0 h"));
}

void store_fails() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2);
  store->fail();
  CHECK(holds(me.wait("layers.1 all-gather"), "the store that the ranks share does not answer"));
  auto another = std::make_shared<MemoryStore>();
  Member you(another, 0, 2);
  another->fail();
  CHECK(holds(you.lose(1), "rank 1"));
}

// An own failure: told to the others, and kept with its kind.
void fails_here() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2), other(store, 1, 2);
  std::string theirs, ours;
  std::thread thread([&] { theirs = other.wait("layers.1 all-gather"); });
  try {
    me.lane.run("layers.1 all-gather", [] { rt::throw_error(rt::ErrorKind::Memory, "out of memory"); });
  } catch (const std::exception& e) {
    ours = e.what();
    CHECK(rt::kind_of(e) == rt::ErrorKind::Memory);
  }
  thread.join();
  CHECK(holds(ours, "out of memory"));
  CHECK(holds(theirs, "rank 0 failed in 'layers.1 all-gather'") && holds(theirs, "out of memory"));
}

void many_begin_and_end() {
  for (int i = 0; i < 20; ++i) {
    auto store = std::make_shared<MemoryStore>();
    Member me(store, 0, 2);
    me.lane.run("a", [] {});
  }
  auto store = std::make_shared<MemoryStore>();
  auto alarm = std::make_shared<rt::Alarm>();
  rt::Heartbeat::start(store, 0, 2, 30, alarm);
  rt::Heartbeat::shutdown("SystemExit: 3");
  const auto said = store->get("pulse/0");
  CHECK(said && rt::Pulse::decode(*said) && rt::Pulse::decode(*said)->ended);
}

// Whatever stands in the store is a pulse, a failure, or nothing.
void what_is_read() {
  rt::Pulse pulse;
  pulse.beat = 3;
  pulse.lanes = {{4, 5, true, *rt::TaskNames("a\tb all-gather", 1, {"a"}).all(true)}, {}};
  pulse.place = "forward of 'x'";
  pulse.text = "two\nlines\n";
  const auto read = rt::Pulse::decode(pulse.encode());
  CHECK(read && read->text == pulse.text && read->lanes.size() == 2 &&
        read->lanes[0].task.label == "a\tb all-gather" && read->lanes[0].task.accumulates);
  const std::string whole = pulse.encode();
  for (size_t n = 0; n < whole.size(); ++n) (void)rt::Pulse::decode(whole.substr(0, n));
  CHECK(!rt::Pulse::decode("") && !rt::Pulse::decode("1 2 3 4 99999999\n"));
  CHECK(!rt::Failure::decode("77 0\nwhat") && !rt::Failure::decode(""));
}

}  // namespace

int main() {
  process_ended();  // forks: before there are threads
  lost_before_it_asked();
  lost_to_nobody();
  another_way();
  times_out();
  last_words();
  gives_up();
  store_fails();
  fails_here();
  many_begin_and_end();
  what_is_read();
  return report("heartbeat");
}
