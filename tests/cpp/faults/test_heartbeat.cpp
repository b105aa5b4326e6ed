// What a heartbeat concludes, ranks as threads with a store in memory: who died, hangs, went another way; and
// its own end.
#include <signal.h>

#include <atomic>

#include "../check.hpp"
#include "../comm/ranks.hpp"
#include "faults/diagnosis.hpp"
#include "faults/errors.hpp"
#include "faults/heartbeat.hpp"

using namespace ranks;

namespace {

constexpr auto kFar = std::chrono::seconds(120);  // by when everything has happened, on any machine

// Once `happened`; what must come first has then come first, however late this machine is.
template <typename Happened>
bool comes(Happened happened) {
  for (const auto until = std::chrono::steady_clock::now() + kFar; !happened();
       std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    if (std::chrono::steady_clock::now() > until) return false;
  return true;
}

std::optional<faults::RankStatus> status_in(faults::Store& store, int rank) {
  const auto told = store.get("pulse/" + std::to_string(rank));
  return told ? faults::RankStatus::decode(*told) : std::nullopt;
}
// The rank's heart has told that it stands still after so many collectives.
bool tells(faults::Store& store, int rank, int64_t position) {
  return comes([&] {
    const auto status = status_in(store, rank);
    return status && !status->busy() && status->lane(0).position == position;
  });
}

bool holds(const std::string& text, const char* part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) std::cerr << "'" << part << "' is not in: " << text << "\n";
  return found;
}

// A rank with its heart: in a process of its own these would be one.
struct Member {
  Member(std::shared_ptr<faults::Store> store, int rank, int world, double timeout_s = 30)
      : health(std::make_shared<faults::GroupHealth>()), lane(health) {
    faults::Heartbeat::start(std::move(store), rank, world, timeout_s, health);
  }
  ~Member() { faults::Heartbeat::end(*health); }
  // What a collective that never ends by itself ends with.
  std::string wait(const std::string& label) {
    try {
      lane.run(label, [&] {
        comes([&] {
          lane.tracker().check();
          return false;
        });
      });
    } catch (const std::exception& e) {
      return e.what();
    }
    return "(nothing)";
  }
  std::string lose(int peer, const char* why = "connection reset") {
    try {
      lane.run("layers.1 all-gather", [&] { throw faults::ConnectionLost(peer, why); });
    } catch (const std::exception& e) {
      return e.what();
    }
    return "(nothing)";
  }
  std::shared_ptr<faults::GroupHealth> health;
  Lane lane;
};

// The other has told where it is, and this one has never asked: it must not look where nothing is kept yet.
void lost_before_it_asked() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 3), other(store, 2, 3);
  other.lane.run("layers.0 all-gather", [] {});
  CHECK(tells(*store, 2, 1));
  const std::string message = me.lose(2);
  CHECK(holds(message, "rank 2"));
  CHECK(holds(message, "finished #1 'layers.0 all-gather'"));
  CHECK(holds(message, "although its process is running"));  // this one
}

// Nobody knows whose connection it was; and a rank beyond all that there are.
void lost_to_nobody() {
  for (const int peer : {-1, 7}) {
    Member me(std::make_shared<MemoryStore>(), 0, 2);
    CHECK(holds(me.lose(peer), "the connection to another rank was lost"));
  }
}

// With the names that the ranks of a stage have: the group's own numbers are another rank's in the job.
void another_way() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2), other(store, 1, 2);
  for (const Member* each : {&me, &other})
    each->health->name_ranks(faults::RankNames({"rank 4 (stage 1)", "rank 6 (stage 1)"}));
  std::string theirs;
  std::thread thread([&] { theirs = other.wait("right all-gather"); });
  const std::string ours = me.wait("left all-gather");
  thread.join();
  for (const std::string& message : {ours, theirs}) {
    CHECK(holds(message, "run different modules"));
    CHECK(holds(message, "'left all-gather'") && holds(message, "'right all-gather'"));
    CHECK(holds(message, "rank 4 (stage 1) waits at") && holds(message, "rank 6 (stage 1) waits at"));
  }
  CHECK(holds(theirs, "OSDP: rank 6 (stage 1) cannot continue") &&
        holds(theirs, ". Rank 6 (stage 1) waits at"));
}

void times_out() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2, 1.5), other(store, 1, 2);
  CHECK(tells(*store, 1, 0));
  me.health->name_ranks(faults::RankNames({"rank 4 (stage 1)", "rank 6 (stage 1)"}));
  CHECK(holds(me.wait("layers.1 all-gather"), "rank 6 (stage 1) did not arrive"));
}

// --- lanes that only enqueue

bool yes() { return true; }
bool no() { return false; }

std::string ended_with(const faults::GroupHealth& health) {
  std::string message = "(nothing)";
  comes([&] {
    try {
      health.check();
      return false;
    } catch (const std::exception& e) {
      message = e.what();
      return true;
    }
  });
  return message;
}

// What is aborted: a backend with a collective that the other ranks do not come to.
struct Backend final : faults::Abortable {
  void abort() noexcept override { aborted = true; }
  std::atomic<bool> aborted{false};
};

void waits_on_its_device() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2, 1.5), other(store, 1, 2);
  const auto backend = std::make_shared<Backend>();
  me.health->aborts(backend);
  me.lane.enqueue("layers.0 all-gather", yes, yes);
  other.lane.enqueue("layers.0 all-gather", yes, yes);
  CHECK(tells(*store, 1, 1));
  me.lane.enqueue("layers.1 all-gather", yes, no);
  const std::string message = ended_with(*me.health);
  CHECK(holds(message, "rank 1 did not arrive: it finished #1 'layers.0 all-gather'"));
  CHECK(holds(message, "Rank 0 waits at #2 'layers.1 all-gather'"));
  CHECK(backend->aborted);
  const auto late = std::make_shared<Backend>();
  me.health->aborts(late);
  CHECK(late->aborted);
}

// Its device still computes: it waits for nobody, and the other for it.
void device_is_late() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2, 1.5), other(store, 1, 2);
  other.lane.enqueue("layers.0 all-gather", no, no);
  CHECK(comes([&] {
    const auto theirs = status_in(*store, 1);
    return theirs && theirs->awaits_device();
  }));
  me.lane.enqueue("layers.0 all-gather", yes, no);
  const std::string message = ended_with(*me.health);
  CHECK(holds(message, "rank 1") && holds(message, "waits for its device to reach the first collective"));
}

// Collectives of equal sizes: all of them end, and the ranks go on.
void goes_apart_unnoticed(int world) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Member>> members;
  for (int r = 0; r < world; ++r) members.push_back(std::make_unique<Member>(store, r, world));
  std::vector<std::string> messages(world);
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      try {
        int step = 0;
        comes([&] {
          const bool swapped = r == 1 && step == 20;
          members[r]->lane.enqueue(swapped ? "b all-gather" : "a all-gather", yes, yes);
          members[r]->lane.enqueue(swapped ? "a all-gather" : "b all-gather", yes, yes);
          // Slower and slower: however late a heart looks, what ranks did is still kept.
          std::this_thread::sleep_for(std::chrono::milliseconds(step++));
          return false;
        });
      } catch (const std::exception& e) {
        messages[r] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : messages) {
    CHECK(holds(message, "ranks run different modules in one step"));
    CHECK(holds(message, "rank 1 ran #41 'b all-gather'") && holds(message, "ran #41 'a all-gather'"));
  }
}

// More than a heartbeat looks at: the last stands for those before it.
void enqueues_without_end() {
  Member me(std::make_shared<MemoryStore>(), 0, 2);
  std::atomic<int> done{0};
  for (int i = 0; i < 20000; ++i) me.lane.enqueue("a", yes, [&done] { return done > 0; });
  done = 1;
  CHECK(comes([&] { return !me.health->snapshot().busy(); }));
  const auto lane = me.health->snapshot().lanes[0];
  CHECK(!lane.busy && lane.position == 20000);
  me.lane.tracker().forget_enqueued();
}

void trails() {
  faults::Trail trail;
  CHECK(trail.newest() == faults::TrailMark());
  for (int64_t i = 1; i <= 3; ++i) trail.add(i, faults::task_name("a" + std::to_string(i)));
  CHECK(trail.newest().position == 3 && trail.digest_at(3) == trail.newest().digest);
  CHECK(trail.digest_at(2) != trail.digest_at(3) && !trail.digest_at(0) && !trail.digest_at(4));
  int64_t first = 0;
  const auto tasks = trail.tasks(1, 9, first);
  CHECK(first == 2 && tasks.size() == 2 && tasks[1]->label == "a3");
  for (int64_t i = 4; i <= 10000; ++i) trail.add(i, faults::task_name("b"));
  CHECK(!trail.digest_at(3) && trail.digest_at(10000 - static_cast<int64_t>(faults::Trail::kKept) + 1));
  faults::TrailPiece piece;
  piece.first = 7;
  piece.tasks = {*faults::task_name("a\tb", 3, "with 'w'", 5)};
  const auto read = faults::TrailPiece::decode(piece.encode());
  CHECK(read && read->at(7) && read->at(7)->text() == piece.tasks[0].text() && !read->at(6) && !read->at(8));
  for (size_t n = 0; n < piece.encode().size(); ++n)
    (void)faults::TrailPiece::decode(piece.encode().substr(0, n));
  CHECK(!faults::TrailPiece::decode("") && !faults::TrailPiece::decode("1 99999999\n"));
  const std::vector<faults::TrailMark> marks{{3, 4}, {}};
  CHECK(faults::decode_marks(faults::encode(marks)) == marks && !faults::decode_marks("") &&
        !faults::decode_marks("3 1 2"));
}

// An error of the backend's, where another rank has ended: that is the cause.
void an_echo_of_a_death() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2);
  faults::Process gone = faults::Process::here();
  gone.started += 1;
  store->set("process/1", gone.encode());
  std::string message;
  try {
    me.lane.run("layers.1 all-gather", [] { throw std::runtime_error("Connection closed by peer"); });
  } catch (const std::exception& e) {
    message = e.what();
  }
  CHECK(holds(message, "rank 1's process has ended"));
}

void last_words() {
  auto store = std::make_shared<MemoryStore>();
  auto me = std::make_unique<Member>(store, 0, 2);
  faults::RankStatus theirs;
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
  faults::Heartbeat::give_up(*me.health, "was interrupted by a signal");
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
  faults::Process process = faults::Process::here();
  process.id = child;
  process.started = 0;
  store->set("process/1", process.encode());
  CHECK(faults::life_of(process) == faults::Life::Runs);
  std::thread killer([&] {
    comes([&] { return me.health->snapshot().busy(); });
    kill(child, SIGKILL);  // not waited for: a process that nobody has buried yet has ended too
  });
  CHECK(holds(me.wait("layers.1 all-gather"), "rank 1's process has ended"));
  killer.join();
  CHECK(faults::life_of(process) == faults::Life::Ended);
  waitpid(child, nullptr, 0);
  CHECK(faults::life_of(process) == faults::Life::Ended);
  process.host = "another";
  CHECK(faults::life_of(process) == faults::Life::Unseen);
  process = faults::Process::here();
  CHECK(faults::life_of(process) == faults::Life::Runs);
  process.started += 1;  // the number is another process's by now
  CHECK(faults::life_of(process) == faults::Life::Ended);
  CHECK(!faults::Process::decode("") && !faults::Process::decode("x y") &&
        !faults::Process::decode("-3 0 h"));
}

void store_fails() {
  auto store = std::make_shared<MemoryStore>();
  Member me(store, 0, 2);
  store->fail();
  CHECK(holds(me.wait("layers.1 all-gather"), "the store that the ranks share does not respond"));
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
    me.lane.run("layers.1 all-gather",
                [] { faults::throw_error(faults::ErrorKind::Memory, "out of memory"); });
  } catch (const std::exception& e) {
    ours = e.what();
    CHECK(faults::kind_of(e) == faults::ErrorKind::Memory);
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
  auto health = std::make_shared<faults::GroupHealth>();
  faults::Heartbeat::start(store, 0, 2, 30, health);
  faults::Heartbeat::shutdown("SystemExit: 3");
  CHECK(comes([&] {  // it waits a while for that, and not for ever
    const auto said = status_in(*store, 0);
    return said && said->ended;
  }));
}

// Whatever stands in the store is a status, a failure, or nothing.
void what_is_read() {
  faults::RankStatus status;
  status.beat = 3;
  status.lanes = {{4, 5, true, *faults::TaskNames("a\tb all-gather", 1, {"a"}).all(true)}, {}};
  status.place = "forward of 'x'";
  status.text = "two\nlines\n";
  const auto read = faults::RankStatus::decode(status.encode());
  CHECK(read && read->text == status.text && read->lanes.size() == 2 &&
        read->lanes[0].task.label == "a\tb all-gather" && read->lanes[0].task.accumulates);
  const std::string whole = status.encode();
  for (size_t n = 0; n < whole.size(); ++n) (void)faults::RankStatus::decode(whole.substr(0, n));
  CHECK(!faults::RankStatus::decode("") && !faults::RankStatus::decode("1 2 3 4 99999999\n"));
  CHECK(!faults::Failure::decode("77 0\nwhat") && !faults::Failure::decode(""));
}

}  // namespace

int main() {
  process_ended();  // forks: before there are threads
  lost_before_it_asked();
  lost_to_nobody();
  another_way();
  times_out();
  waits_on_its_device();
  device_is_late();
  for (const int world : {2, 3}) goes_apart_unnoticed(world);
  enqueues_without_end();
  trails();
  an_echo_of_a_death();
  last_words();
  gives_up();
  store_fails();
  fails_here();
  many_begin_and_end();
  what_is_read();
  return report("heartbeat");
}
